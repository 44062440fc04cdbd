//! What an earlier agent left in a tier: accounting for all of it, keeping what can be trusted.
//!
//! A copy is trusted if its name, size and stamp belong together and it was written in this boot of the machine: copies are
//! not synced, so that after a power loss a file of the right size may hold anything.

use super::dir::{Copy, TierDir};
use super::ledger::NAME_COST;
use monarch_abi::hash::{CopyName, Stamp};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use std::io;

/// File that names the boot.
const BOOT: &str = "boot";

impl TierDir {
    /// Accounts for everything on disk: unfinished files go, evicted ones are tried again, copies are listed and charged.
    ///
    /// # Errors
    /// What the kernel said. The tier must not be used then: what lies there is not charged.
    pub fn recover(&self) -> io::Result<Vec<Copy>> {
        for sub in ["tmp", "part"] {
            for (file, st) in self.list(sub)? {
                let path = format!("{sub}/{file}");
                if !self.unlink(&path) {
                    self.leaves_later(path, charge_of(&st));
                }
            }
        }
        for (file, st) in self.list("dying")? {
            self.leaves_later(format!("dying/{file}"), charge_of(&st));
        }
        let boot = boot_id();
        let same_boot = boot.is_some() && self.read_small(BOOT) == boot;
        let mut found = Vec::new();
        for i in 0..256 {
            let sub = format!("copies/{i:02x}");
            for (file, st) in self.list(&sub)? {
                let charged = charge_of(&st);
                self.ledger.charge(charged, 1);
                match sound(&file, &st).filter(|_| same_boot) {
                    Some((name, stamp)) => {
                        let size = st.st_size as u64;
                        self.leaving.note_charge(name, self.ledger.cost(size), charged);
                        found.push(Copy { name, size, charged, stamp });
                    }
                    None if self.unlink(&format!("{sub}/{file}")) => self.ledger.release(charged, 1),
                    None => {}
                }
            }
        }
        if !same_boot && let Err(e) = self.write_small(BOOT, &boot.unwrap_or_default()) {
            tracing::warn!(tier = self.name, error = %e, "the copies cannot be marked with this boot; the next agent will drop them");
        }
        self.sweep();
        Ok(found)
    }

    /// Names below `sub`, with what they are. What vanishes meanwhile is left out.
    pub(super) fn list(&self, sub: &str) -> io::Result<Vec<(String, Stat)>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(self.fd(), sub, flags, Mode::empty())?;
        let mut out = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(st) => out.push((name.to_owned(), st)),
                Err(rustix::io::Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(out)
    }

    pub(super) fn unlink(&self, name: &str) -> bool {
        rustix::fs::unlinkat(self.fd(), name, AtFlags::empty()).is_ok()
    }

    fn read_small(&self, name: &str) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let f = rustix::fs::openat(self.fd(), name, flags, Mode::empty()).ok()?;
        let mut bytes = [0u8; 128];
        let n = rustix::io::read(&f, &mut bytes).ok()?;
        Some(String::from_utf8_lossy(bytes.get(..n)?).trim().to_owned())
    }

    fn write_small(&self, name: &str, text: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let f = rustix::fs::openat(self.fd(), name, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::io::write(&f, text.as_bytes())?;
        let blocks = rustix::fs::fstat(&f)?.st_blocks as u64;
        self.ledger.charge(blocks * 512, 0);
        Ok(())
    }
}

/// What a file takes, its name included.
pub(super) fn charge_of(st: &Stat) -> u64 {
    st.st_blocks as u64 * 512 + NAME_COST
}

/// Name and stamp of what looks like a copy.
fn sound(file: &str, st: &Stat) -> Option<(CopyName, Stamp)> {
    let name = CopyName::parse(file.as_bytes())?;
    let stamp = Stamp::from_time(st.st_mtime, u32::try_from(st.st_mtime_nsec).ok()?)?;
    let regular = st.st_mode & 0o170_000 == 0o100_000;
    (regular && stamp.matches(name)).then_some((name, stamp))
}

/// The boot of this machine, if it can be told.
fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// The seed kept in the tier, made when there is none. If it cannot be kept, the copies serve this agent only.
pub(super) fn read_seed(fd: &OwnedFd) -> rustix::io::Result<u64> {
    let open =
        |flags| rustix::fs::openat(fd, "seed", flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::RUSR | Mode::WUSR);
    let mut bytes = [0u8; 8];
    if let Ok(f) = open(OFlags::RDONLY)
        && rustix::io::read(&f, &mut bytes)? == 8
    {
        return Ok(u64::from_le_bytes(bytes));
    }
    let seed = crate::sys::random_u64();
    match open(OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC) {
        Ok(f) => drop(rustix::io::write(&f, &seed.to_le_bytes())),
        Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {}
        Err(e) => return Err(e),
    }
    Ok(seed)
}
