//! The lock of a tier: one agent at a time.
//!
//! An agent that ends removes the lock file last. Another agent that opened it before may then lock
//! a file without a name, so it looks whether the name still leads to the file that it locked.

use crate::held_dir::HeldDir;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};

/// The name of the lock file.
pub(super) const LOCK: &str = "lock";
/// The word that an agent which is about to end writes behind its process id.
const ENDING: &str = "ending";

/// Another process holds the lock.
#[derive(Debug)]
pub(super) struct Taken {
    /// What it wrote into it.
    pub(super) holder: String,
    /// Whether it is about to end.
    pub(super) ending: bool,
}

/// Takes the lock in directory `dir`.
///
/// # Errors
/// What the kernel said, other than that the lock is taken.
pub(super) fn take(dir: &HeldDir) -> rustix::io::Result<Result<OwnedFd, Taken>> {
    // (Without blocking, should a pipe have the name.)
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
    loop {
        let lock = dir.open_file(LOCK, flags, Mode::RUSR | Mode::WUSR)?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(Err(taken(&lock)));
        }
        let ours = rustix::fs::fstat(&lock)?;
        match dir.stat(LOCK) {
            Ok(st) if (st.st_dev, st.st_ino) == (ours.st_dev, ours.st_ino) => {
                write(&lock, "");
                return Ok(Ok(lock));
            }
            _ => {}
        }
    }
}

fn taken(lock: &OwnedFd) -> Taken {
    let mut bytes = [0u8; 64];
    let n = rustix::io::pread(lock, &mut bytes, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(bytes.get(..n).unwrap_or(&[])).into_owned();
    // Behind the first line there may be more of what an earlier holder wrote.
    let text = text.lines().next().unwrap_or("").trim().to_owned();
    let ending = text.ends_with(ENDING);
    let holder = if text.is_empty() { "unknown process".to_owned() } else { format!("process {text}") };
    Taken { holder, ending }
}

fn write(lock: &OwnedFd, what: &str) {
    let text = format!("{} {what}\n", std::process::id());
    // Only messages of other agents suffer if this fails.
    let _ = rustix::io::pwrite(lock, text.as_bytes(), 0);
}

/// Writes into the lock that it will be free soon.
pub(super) fn mark_ending(lock: &OwnedFd) {
    write(lock, ENDING);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_holder_wrote_is_not_taken_for_the_present_one() {
        let dir = tempfile::tempdir().expect("temp dir");
        std::fs::write(dir.path().join(LOCK), "123456789012 ending\n").expect("write");
        let dir = HeldDir::at(dir.path()).expect("open");
        let lock = take(&dir).expect("no error").expect("free");
        let refused = take(&dir).expect("no error").expect_err("taken");
        assert_eq!((refused.holder, refused.ending), (format!("process {}", std::process::id()), false));
        mark_ending(&lock);
        assert!(take(&dir).expect("no error").expect_err("taken").ending);
    }
}
