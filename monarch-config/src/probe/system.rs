//! The machine itself.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::site_file::SiteSettings;
use crate::trusted::Exposed;
use rustix::fs::{Access, access, statfs, statvfs};

use super::{FsInfo, LocalDisk, Memory, Meta, Probe, memory, mounts};

/// Files that [`Probe::used_below`] looks at before it estimates the rest: a start must not wait
/// for a walk over millions.
const MAX_FILES: usize = 50_000;

/// Asks this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemProbe;

impl Probe for SystemProbe {
    fn meta(&self, path: &Path) -> io::Result<Meta> {
        let meta = fs::metadata(path)?;
        Ok(Meta { is_dir: meta.is_dir(), dev: meta.dev(), ino: meta.ino() })
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn file_system(&self, path: &Path) -> io::Result<FsInfo> {
        let dev = fs::metadata(path)?.dev();
        let sizes = statvfs(path)?;
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // A tmpfs mounted without a size says that it has no blocks; then memory is the bound.
        let memory = self.memory();
        let sized = sizes.f_blocks != 0;
        Ok(FsInfo {
            fs_type: mounts::fs_type(&mountinfo, path, dev).unwrap_or_default(),
            magic: u64::from_ne_bytes(statfs(path)?.f_type.to_ne_bytes()),
            total: if sized { sizes.f_blocks.saturating_mul(sizes.f_frsize) } else { memory.total },
            free: if sized { sizes.f_bavail.saturating_mul(sizes.f_frsize) } else { memory.available },
            inodes_total: sizes.f_files,
            inodes_free: sizes.f_favail,
            dev,
        })
    }

    fn writable(&self, dir: &Path) -> bool {
        access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    }

    fn exposed(&self, path: &Path) -> Option<Exposed> {
        crate::trusted::exposed(path)
    }

    fn used_below(&self, dir: &Path, enough: u64) -> u64 {
        used_below(dir, enough, MAX_FILES)
    }

    fn memory(&self) -> Memory {
        memory::read(Path::new("/"))
    }

    fn in_kubernetes(&self) -> bool {
        std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
    }

    fn local_disks(&self) -> Vec<LocalDisk> {
        let variables = ["SLURM_TMPDIR", "TMPDIR"].into_iter().filter_map(|name| {
            let path = PathBuf::from(std::env::var_os(name)?);
            path.is_absolute().then(|| LocalDisk { label: format!("${name} = {}", path.display()), path })
        });
        let usual = ["/local", "/scratch/local", "/tmp", "/var/tmp"];
        variables.chain(usual.map(|path| LocalDisk { label: path.to_owned(), path: path.into() })).collect()
    }

    fn uid(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn site(&self) -> SiteSettings {
        SiteSettings::load()
    }
}

/// Bytes of the blocks of all files below a directory, level by level. After `most_files` the
/// directories left on a level are taken to hold as much as those looked at: a tier spreads its
/// copies evenly over 256 directories, so the result is right to about a percent.
fn used_below(dir: &Path, enough: u64, most_files: usize) -> u64 {
    let (mut used, mut seen, mut level) = (0_u64, 0, vec![dir.to_owned()]);
    while !level.is_empty() && used < enough {
        let (mut here, mut looked_at, mut next) = (0_u64, 0, Vec::new());
        for dir in &level {
            if looked_at > 0 && (seen >= most_files || used.saturating_add(here) >= enough) {
                break;
            }
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let Ok(meta) = entry.metadata() else { continue };
                here = here.saturating_add(meta.blocks() * 512);
                seen += 1;
                if meta.is_dir() {
                    next.push(entry.path());
                }
            }
            looked_at += 1;
        }
        let all = u128::from(here) * level.len() as u128 / looked_at.max(1);
        used = used.saturating_add(u64::try_from(all).unwrap_or(u64::MAX));
        level = next;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_answers() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), vec![1; 100_000]).unwrap();
        let probe = SystemProbe;
        let meta = probe.meta(dir.path()).unwrap();
        let system = probe.file_system(dir.path()).unwrap();
        assert!(meta.is_dir && meta.dev == system.dev && !system.fs_type.is_empty(), "{meta:?} {system:?}");
        assert!(system.total >= system.free && system.total > 0);
        assert!(probe.writable(dir.path()) && !probe.writable(&dir.path().join("none")));
        assert!(probe.memory().total > 0 && probe.memory().remaining() > 0);
        assert!(probe.used_below(dir.path(), u64::MAX) >= 100_000);
        assert_eq!(probe.used_below(&dir.path().join("none"), u64::MAX), 0);
    }

    #[test]
    fn of_very_many_copies_all_are_counted_as_used() {
        let dir = tempfile::tempdir().unwrap();
        for sub in 0..32 {
            let sub = dir.path().join("copies").join(format!("{sub:02x}"));
            fs::create_dir_all(&sub).unwrap();
            (0..20).for_each(|n| fs::write(sub.join(n.to_string()), vec![1; 8192]).unwrap());
        }
        let exact = used_below(dir.path(), u64::MAX, usize::MAX);
        let estimate = used_below(dir.path(), u64::MAX, 100);
        assert!(exact >= 32 * 20 * 8192 && estimate.abs_diff(exact) < exact / 20, "{estimate} for {exact}");
        assert!(used_below(dir.path(), 100_000, usize::MAX) < exact, "it stops when there is enough");
    }
}
