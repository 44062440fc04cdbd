//! The seed of path hashes that a tier keeps.

use crate::held_dir::HeldDir;
use rustix::fs::{Mode, OFlags};

/// A seed of path hashes.
#[derive(Clone, Copy, Debug)]
pub struct Seed {
    /// Its value.
    pub value: u64,
    /// Whether it is new: no copy of the tier has a name by it.
    pub is_new: bool,
}

/// The seed kept in the tier, made when there is none. If it cannot be
/// kept, whatever file has its name, the copies serve this agent only.
pub(super) fn read_seed(dir: &HeldDir) -> Seed {
    let mut bytes = [0u8; 8];
    if let Ok(f) = dir.read_file("seed")
        && rustix::io::read(&f, &mut bytes) == Ok(8)
    {
        return Seed { value: u64::from_le_bytes(bytes), is_new: false };
    }
    let value = crate::sys::random_u64();
    let _ = write_seed(dir, value);
    Seed { value, is_new: true }
}

/// Keeps a seed in the tier.
///
/// # Errors
/// The file cannot be opened. That the disk does not take the seed is no error.
pub(super) fn write_seed(dir: &HeldDir, seed: u64) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK;
    let f = dir.open_file("seed", flags, Mode::RUSR | Mode::WUSR)?;
    // A disk that fails now may work later: until then the copies serve this agent only.
    let _ = rustix::io::write(&f, &seed.to_le_bytes());
    Ok(())
}
