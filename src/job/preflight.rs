//! Tries what a job needs before it starts: for `run --strict` and `config check`.
//!
//! A root must be listable. An output root must take a file; so must a tier, or, where that is
//! still to be made, the directory that it is to lie in.

use anyhow::{Context, Result};
use monarch_core::config::Config;
use monarch_core::index;
use monarch_core::shown::ShowPath;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a probe file.
const PROBE_BYTES: usize = 4096;

/// Lists each root, writes and removes a probe file in each tier and output root, and loads the
/// saved index.
///
/// # Errors
/// What fails first, with the reason.
pub(crate) fn check(config: &Config) -> Result<()> {
    for root in &config.dataset.roots {
        list(&root.real_path).with_context(|| format!("cannot list the root {}", root.path.shown()))?;
    }
    for tier in &config.tiers {
        write_probe(&tier.path).with_context(|| format!("cannot write into the tier {}", tier.path.shown()))?;
    }
    for output in &config.outputs {
        write_probe(&output.real_path)
            .with_context(|| format!("cannot write into the output root {}", output.path.shown()))?;
    }
    // (What a job cannot load it does not need: it scans, and the PFS pays.)
    if let Some(file) = &config.index.file {
        index::load(file).with_context(|| format!("cannot load the saved index {} (index.file)", file.shown()))?;
    }
    Ok(())
}

fn list(root: &Path) -> std::io::Result<()> {
    std::fs::read_dir(root)?.next().transpose().map(drop)
}

/// Writes and removes a file. A full file system is no failure: the tier may be full of copies.
fn write_probe(path: &Path) -> std::io::Result<()> {
    let Some(dir) = path.ancestors().take(2).find(|dir| dir.is_dir()) else { return Err(ErrorKind::NotFound.into()) };
    // Containers that share a tier have process numbers of their own.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let path = dir.join(format!(".monarch-probe-{}-{now}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let written = file.write_all(&[0; PROBE_BYTES]).and_then(|()| file.sync_all());
    let removed = std::fs::remove_file(&path);
    match written {
        Err(e) if !matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => Err(e),
        _ => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_takes_a_file_and_nothing_stays() {
        let dir = tempfile::tempdir().unwrap();
        write_probe(&dir.path().join("not-yet-there")).unwrap();
        assert!(write_probe(&dir.path().join("mistyped/tier")).is_err());
        write_probe(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        // The kernel takes no files there, from any user.
        assert!(write_probe(Path::new("/proc/self/task")).is_err());
    }

    #[test]
    fn a_root_that_is_no_directory_cannot_be_listed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(list(file.path()).is_err());
        list(Path::new("/")).unwrap();
    }
}
