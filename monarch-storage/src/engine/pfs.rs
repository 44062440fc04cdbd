//! The real source: a root directory on the PFS, opened once.

use super::{Source, SourceFile};
use crate::beneath::open_beneath;
use monarch_abi::hash::Identity;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// File systems on which a read that must not block does not: ext4, xfs, btrfs, tmpfs.
const NOWAIT_FILE_SYSTEMS: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

/// Bytes of one advice to read ahead: the window of the kernel, unless it was changed.
const READ_AHEAD_BYTES: usize = 128 << 10;

/// A root on the PFS.
#[derive(Debug)]
pub struct PfsSource {
    root: Arc<OwnedFd>,
    local: bool,
}

impl PfsSource {
    /// Opens a root.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn new(root: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty())?;
        let local = rustix::fs::fstatfs(&root).is_ok_and(|fs| NOWAIT_FILE_SYSTEMS.contains(&(fs.f_type as u64)));
        Ok(Self { root: Arc::new(root), local })
    }
}

/// A file that was opened beneath a root.
#[derive(Debug)]
pub(super) struct PfsFile(pub(super) Arc<OwnedFd>);

fn identity(st: &Statx) -> Identity {
    let ns =
        |t: rustix::fs::StatxTimestamp| t.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(t.tv_nsec));
    Identity { size: st.stx_size, mtime_ns: ns(st.stx_mtime), ctime_ns: ns(st.stx_ctime), ino: st.stx_ino }
}

impl PfsSource {
    fn open_with(&self, rel: &[u8], flags: OFlags) -> io::Result<Box<dyn SourceFile>> {
        let fd = open_beneath(self.root.as_fd(), rel, flags)?;
        check_regular(&fd)?;
        Ok(Box::new(PfsFile(Arc::new(fd))))
    }
}

impl Source for PfsSource {
    fn open(&self, rel: &[u8]) -> io::Result<Box<dyn SourceFile>> {
        self.open_with(rel, OFlags::empty())
    }

    fn open_direct(&self, rel: &[u8]) -> io::Result<Box<dyn SourceFile>> {
        match self.open_with(rel, OFlags::DIRECT) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => self.open(rel),
            other => other,
        }
    }

    fn identity(&self, rel: &[u8]) -> io::Result<Identity> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
        Ok(identity(&rustix::fs::statx(&*self.root, rel, flags, StatxFlags::BASIC_STATS)?))
    }

    fn root(&self) -> Option<Arc<OwnedFd>> {
        Some(self.root.clone())
    }

    fn keeps_nowait(&self) -> bool {
        self.local
    }
}

/// Looks whether an open file is a regular one.
///
/// # Errors
/// `EINVAL` if not.
pub(super) fn check_regular(fd: &OwnedFd) -> io::Result<()> {
    // The type never changes for an open file, so what the client has cached will do.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let st = rustix::fs::statx(fd, c"", flags, StatxFlags::TYPE)?;
    if st.stx_mode & 0o170_000 == 0o100_000 { Ok(()) } else { Err(rustix::io::Errno::INVAL.into()) }
}

impl SourceFile for PfsFile {
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<usize> {
        loop {
            match rustix::io::pread(&*self.0, &mut *buf, off) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn identity_now(&self) -> io::Result<Identity> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        Ok(identity(&rustix::fs::statx(&*self.0, c"", flags, StatxFlags::BASIC_STATS)?))
    }

    fn use_cache(&self) {
        let _ = rustix::fs::fcntl_getfl(&*self.0)
            .and_then(|flags| rustix::fs::fcntl_setfl(&*self.0, flags - OFlags::DIRECT));
    }

    fn share_cache(&self) {
        self.use_cache();
        // The kernel's own guess would look like what another process reads.
        let _ = rustix::fs::fadvise(&*self.0, 0, None, rustix::fs::Advice::Random);
    }

    fn read_ahead(&self, range: Range<u64>) {
        // (The kernel reads no more than its window for one advice.)
        for off in range.clone().step_by(READ_AHEAD_BYTES) {
            let len = (range.end - off).min(READ_AHEAD_BYTES as u64);
            let _ = rustix::fs::fadvise(&*self.0, off, NonZeroU64::new(len), rustix::fs::Advice::WillNeed);
        }
    }

    fn fd(&self) -> Option<Arc<OwnedFd>> {
        Some(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sites remove files that are not read: the agent's reads have to be seen.
    #[test]
    fn reading_a_file_renews_its_access_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "bytes").unwrap();
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(24 * 20);
        let times = std::fs::FileTimes::new().set_accessed(long_ago).set_modified(long_ago);
        std::fs::File::open(&path).unwrap().set_times(times).unwrap();
        let source = PfsSource::new(dir.path()).unwrap();
        let fd = open_beneath(source.root.as_fd(), b"file", OFlags::empty()).unwrap();
        assert!(!rustix::fs::fcntl_getfl(&fd).unwrap().contains(OFlags::NOATIME));
        source.open(b"file").unwrap().read_at(&mut [0; 5], 0).unwrap();
        let keeps = rustix::fs::fstatvfs(&fd).unwrap().f_flag.contains(rustix::fs::StatVfsMountFlags::NOATIME);
        let read = std::fs::metadata(&path).unwrap().accessed().unwrap();
        assert!(keeps || read > long_ago + std::time::Duration::from_hours(1), "as if nobody had read it");
    }
}
