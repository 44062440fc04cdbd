//! Files that hold a plan: what was not published when the journal was cut. The log of what was
//! published names the one that counts, by the checksum of its bytes, and begins with it.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// The file under which one is written.
const NEW: &str = "plan.new";
/// Begin of the names.
const PREFIX: &str = "plan-";

/// Which file holds a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanFile {
    /// XXH3-64 of its bytes, in its name, too.
    pub sum: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

impl PlanFile {
    fn name(&self) -> String {
        format!("{PREFIX}{:016x}", self.sum)
    }

    /// Where it lies in a staging directory.
    #[must_use]
    pub fn path(&self, staging: &Path) -> PathBuf {
        staging.join(self.name())
    }

    /// Writes a plan to the disk.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn write(dir: &OwnedFd, plan: &[u8]) -> Result<Self> {
        let this = Self { sum: xxh3_64(plan), bytes: plan.len() as u64 };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = File::from(rustix::fs::openat(dir, NEW, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all_at(plan, 0).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        rustix::fs::fdatasync(&file)?;
        rustix::fs::renameat(dir, NEW, dir, this.name())?;
        rustix::fs::fsync(dir)?;
        Ok(this)
    }

    /// Reads the plan; `None` if the file is not there, or is not whole.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn read(&self, dir: &OwnedFd) -> Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat(dir, self.name(), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => File::from(file?),
        };
        let mut plan = Vec::new();
        file.take(self.bytes + 1).read_to_end(&mut plan).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        Ok((plan.len() as u64 == self.bytes && xxh3_64(&plan) == self.sum).then_some(plan))
    }
}

/// Removes the plans that do not count, and what a process that was killed has left of one.
pub fn remove_others(dir: impl AsFd, counts: Option<PlanFile>) {
    let counts = counts.map(|plan| plan.name());
    let Ok(names) = rustix::fs::Dir::read_from(&dir) else { return };
    for entry in names.filter_map(std::result::Result::ok) {
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == NEW || name.starts_with(PREFIX) && Some(name) != counts.as_deref() {
            let _ = rustix::fs::unlinkat(&dir, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_if_it_is_whole_and_others_are_removed() {
        let tier = tempfile::tempdir().unwrap();
        let dir = OwnedFd::from(File::open(tier.path()).unwrap());
        let first = PlanFile::write(&dir, b"first").unwrap();
        let second = PlanFile::write(&dir, b"second plan").unwrap();
        assert_eq!(PlanFile::write(&dir, b"first").unwrap(), first);
        std::fs::write(tier.path().join(NEW), "half").unwrap();
        std::fs::write(tier.path().join("journal"), "").unwrap();
        remove_others(&dir, Some(second));
        assert_eq!(first.read(&dir), Ok(None));
        assert_eq!(second.read(&dir), Ok(Some(b"second plan".to_vec())));
        assert_eq!(std::fs::read_dir(tier.path()).unwrap().count(), 2);
        let path = tier.path().join(second.name());
        for bytes in [&b"second pla"[..], b"second plans", b"second_plan"] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(second.read(&dir), Ok(None));
        }
        remove_others(&dir, None);
        assert!(!path.exists() && tier.path().join("journal").exists());
    }
}
