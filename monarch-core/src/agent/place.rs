//! Where the runtime directory of an agent is.
//!
//! One agent per (user, tier directories): its directory is named by a hash of the tiers' paths, below a private
//! directory in shared memory. When that is full or forbidden, the temporary directory serves.

use crate::config::Config;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the control block in a runtime directory.
pub const CONTROL: &str = "control";
/// Name of the socket.
pub const SOCKET: &str = "agent.sock";
/// Name of the lock whose holder is the living agent.
pub const LOCK: &str = "lock";
/// Name of the log.
pub const LOG: &str = "agent.log";

/// The key of the agent that serves these tiers: sixteen hex digits.
#[must_use]
pub fn agent_key(config: &Config) -> String {
    tiers_key(config.tiers.iter().map(|t| t.path.as_path()))
}

/// [`agent_key`] by the tiers' directories alone.
pub fn tiers_key<'a>(tiers: impl Iterator<Item = &'a Path>) -> String {
    let mut paths: Vec<PathBuf> = tiers.map(real).collect();
    paths.sort();
    let mut text = Vec::new();
    for p in &paths {
        text.extend_from_slice(crate::tier::bytes(p));
        text.push(0);
    }
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&text))
}

/// The path with links followed as far as it exists: the same before and after the directory is made or removed.
fn real(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|base| Some((base, base.canonicalize().ok()?)));
    found.map_or_else(
        || path.to_owned(),
        |(base, real)| real.join(path.strip_prefix(base).unwrap_or(Path::new(""))).components().collect(),
    )
}

/// Directories that may hold runtime directories, best first.
#[must_use]
pub fn bases(config: &Config) -> Vec<PathBuf> {
    if let Some(dir) = &config.runtime_dir {
        return vec![dir.clone()];
    }
    let tmp = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    vec![PathBuf::from("/dev/shm"), tmp]
}

/// Existing runtime directories of the agent with this key, without making any.
#[must_use]
pub fn existing(config: &Config) -> Vec<PathBuf> {
    let key = agent_key(config);
    let mut out = Vec::new();
    for base in bases(config) {
        for n in 0..16 {
            // A name may be squatted, by a link that leads nowhere too, and free again later: all of them are looked at.
            let private = base.join(crate::private_dir::name("monarch", n));
            let dir = private.join(&key);
            if is_private(&private) && dir.is_dir() {
                out.push(dir);
            }
        }
    }
    out
}

/// Every runtime directory of this user, whatever its key.
#[must_use]
pub fn all(bases: &[PathBuf]) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for base in bases {
        for n in 0..16 {
            let private = base.join(crate::private_dir::name("monarch", n));
            let Ok(entries) = std::fs::read_dir(&private) else { continue };
            if is_private(&private) {
                out.extend(entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()));
            }
        }
    }
    out
}

fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path)
        .is_ok_and(|m| m.is_dir() && m.uid() == rustix::process::geteuid().as_raw() && m.mode() & 0o777 == 0o700)
}

/// Makes the directory in `base` that holds this user's runtime directories.
///
/// # Errors
/// What the kernel said, or that all names are taken by others.
pub fn private(base: &Path) -> io::Result<PathBuf> {
    use crate::private_dir::PrivateDirError;
    let (private, _) = crate::private_dir::open(base, "monarch").map_err(|e| match e {
        PrivateDirError::Io(e) => e.into(),
        e @ PrivateDirError::Squatted => io::Error::new(io::ErrorKind::PermissionDenied, e.to_string()),
    })?;
    Ok(private)
}

/// Makes the runtime directory in `base`.
///
/// # Errors
/// As [`private`].
pub fn make(base: &Path, key: &str) -> io::Result<PathBuf> {
    let dir = private(base)?.join(key);
    match rustix::fs::mkdir(&dir, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(dir),
        Err(e) => Err(e.into()),
    }
}
