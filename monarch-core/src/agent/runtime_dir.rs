//! Where the runtime directory of an agent is.
//!
//! One agent per (user, tier directories): its directory is named by a hash of the tiers' paths,
//! below a private directory in shared memory. When that is full or forbidden, the temporary
//! directory serves.

use crate::config::Config;
use crate::held_dir::HeldDir;
use crate::private_dir::{self, MAX_NAMES, PrivateDirError};
use crate::tier::MAX_LOG_BYTES;
use rustix::fs::{Mode, OFlags};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::shm::CONTROL;
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

/// The path with links followed as far as it exists: the same before and after the directory is
/// made or removed.
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

/// The private directories of this user that hold runtime directories. A base that another user can
/// exchange holds none, and a name that something else has, a link that leads nowhere for example,
/// is passed over. Such a name may be free again later: all of them are looked at.
fn privates(bases: &[PathBuf]) -> Vec<Arc<HeldDir>> {
    let bases = bases.iter().filter_map(|base| HeldDir::open(base).ok()).map(Arc::new);
    let of = |base: Arc<HeldDir>| {
        let found = (0..MAX_NAMES).filter_map(|n| private_dir::existing(&base, "monarch", n));
        found.map(Arc::new).collect::<Vec<_>>()
    };
    bases.flat_map(of).collect()
}

/// Existing runtime directories of the agent with this key, without making any.
#[must_use]
pub fn held(config: &Config) -> Vec<HeldDir> {
    let key = agent_key(config);
    privates(&bases(config)).iter().filter_map(|private| private.dir(&key).ok()).collect()
}

/// The same, by their paths.
#[must_use]
pub fn existing(config: &Config) -> Vec<PathBuf> {
    held(config).iter().map(|dir| dir.path().to_owned()).collect()
}

/// Every runtime directory of this user, whatever its key.
#[must_use]
pub fn all(bases: &[PathBuf]) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for private in privates(bases) {
        let names = private.names().unwrap_or_default();
        let dirs = names.iter().filter_map(|name| private.dir(name.to_str().ok()?).ok());
        out.extend(dirs.map(|dir| dir.path().to_owned()));
    }
    out
}

/// Returns the last bytes of the log in a runtime directory, [`MAX_LOG_BYTES`] at most.
///
/// # Errors
/// What the kernel said.
pub(super) fn log_tail(dir: &HeldDir) -> io::Result<Vec<u8>> {
    let mut log = std::fs::File::from(dir.read_file(LOG)?);
    let length = log.metadata()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG_BYTES)))?;
    let mut tail = Vec::new();
    log.take(MAX_LOG_BYTES).read_to_end(&mut tail)?;
    Ok(tail)
}

/// Wipes the runtime directory of an agent that was killed. The end of its log stays, for the next
/// agent to continue.
pub(super) fn wipe_but_log(dir: &HeldDir) {
    let log = log_tail(dir);
    dir.wipe();
    let (Ok(log), Some((private, key))) = (log, dir.parent()) else { return };
    let Some(key) = key.to_str() else { return };
    // Without its log, the next agent begins its own.
    let made = private.make_dir(key).and_then(|()| private.dir(key));
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    if let Ok(file) = made.and_then(|dir| dir.open_file(LOG, flags, Mode::RUSR | Mode::WUSR)) {
        let _ = std::fs::File::from(file).write_all(&log);
    }
}

/// Makes the directory in `base` that holds this user's runtime directories.
///
/// # Errors
/// What the kernel said, that another user can exchange `base`, or that all names are taken by
/// others.
pub fn private(base: &Path) -> io::Result<HeldDir> {
    let base = Arc::new(HeldDir::open(base)?);
    private_dir::open(&base, "monarch").map_err(|e| match e {
        PrivateDirError::Io(e) => e.into(),
        e @ PrivateDirError::Squatted => io::Error::new(io::ErrorKind::PermissionDenied, e.to_string()),
    })
}

/// Makes the runtime directory in `base`.
///
/// # Errors
/// As [`private`].
pub fn make(base: &Path, key: &str) -> io::Result<HeldDir> {
    let private = Arc::new(private(base)?);
    private.make_dir(key)?;
    Ok(private.dir(key)?)
}
