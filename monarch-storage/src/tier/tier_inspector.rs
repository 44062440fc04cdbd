//! Inspects a tier without holding its lock: which copies exist, and whether they are sound.

use super::checksum::{Fits, Sum};
use super::codec::Codec;
use super::log_reader::{self, Logged};
use super::names::ByName;
use super::notes::{self, ServedRoot};
use super::packed_copies::{path_of, split_suffix};
use super::packed_format::PackedFile;
use super::recover::sound;
use crate::held_dir::HeldDir;
use crate::private_dir::MAX_NAMES;
use crate::working_set::WorkingSet;
use monarch_abi::hash::CopyName;
use rustix::io::Errno;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A tier whose lock need not be held.
#[derive(Debug)]
pub struct TierView {
    dir: HeldDir,
    logged: ByName<Logged>,
    /// Tiers that may have packed copies of what lies decoded here.
    beside: Vec<HeldDir>,
}

/// A copy as it lies in a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lying {
    /// Its name.
    pub name: CopyName,
    /// That of a packed copy; `None`: it is a plain one.
    pub codec: Option<Codec>,
}

impl Lying {
    /// Whether it is a packed copy.
    #[must_use]
    pub const fn is_packed(self) -> bool {
        self.codec.is_some()
    }

    /// Its path below the tier.
    #[must_use]
    pub fn path(self) -> String {
        match self.codec {
            Some(codec) => path_of(self.name, codec),
            None => String::from_utf8_lossy(&self.name.rel_path()).into_owned(),
        }
    }
}

/// What a check of a copy found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Its bytes are what was copied.
    Sound,
    /// They are not, or it cannot be read; why.
    Damaged(String),
    /// No checksum of it is known.
    Unknown,
    /// It was removed meanwhile.
    Gone,
}

impl TierView {
    /// Opens the tier in this directory: the one that holds `copies`.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(path: &Path) -> io::Result<Self> {
        let dir = HeldDir::open(path)?;
        let logged = log_reader::read(&dir, None)?.copies;
        Ok(Self { dir, logged, beside: Vec::new() })
    }

    /// Opens the tier of this user that an agent has made in a configured directory. `None`: no
    /// agent has.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open_configured(configured: &Path) -> io::Result<Option<Self>> {
        // The path of the default tier is already that of the private directory.
        let is_private = configured.file_name() == Some(crate::private_dir::name("monarch", 0).as_ref());
        let base = if is_private { configured.parent().unwrap_or(configured) } else { configured };
        let base = match HeldDir::open(base) {
            Ok(base) => Arc::new(base),
            Err(e) => {
                let e = io::Error::from(e);
                return if e.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(e) };
            }
        };
        let tiers = (0..MAX_NAMES).filter_map(|n| crate::private_dir::existing(&base, "monarch", n));
        // Runtime directories have the same names.
        match tiers.into_iter().find(|dir| dir.has("copies")) {
            Some(dir) => {
                let logged = log_reader::read(&dir, None)?.copies;
                Ok(Some(Self { dir, logged, beside: Vec::new() }))
            }
            None => Ok(None),
        }
    }

    /// The directory that holds `copies`.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Whether an agent has made it: an agent makes its lock before all else, and removes it last.
    #[must_use]
    pub fn is_of_an_agent(&self) -> bool {
        self.dir.has(super::lock::LOCK)
    }

    /// The roots whose files may have copies here; the root served last is the last one.
    #[must_use]
    pub fn roots(&self) -> Vec<ServedRoot> {
        notes::roots(&self.dir)
    }

    /// The working sets that earlier jobs have left here.
    #[must_use]
    pub fn working_sets(&self) -> Vec<WorkingSet> {
        notes::working_sets(&self.dir)
    }

    /// Looks in these tiers for the packed copies of decoded ones, which are in no log.
    #[must_use]
    pub fn beside<'a>(mut self, tiers: impl Iterator<Item = &'a Path>) -> Self {
        self.look_beside(tiers);
        self
    }

    /// Looks in these tiers for the packed copies of decoded ones, which are in no log.
    pub fn look_beside<'a>(&mut self, tiers: impl Iterator<Item = &'a Path>) {
        self.beside = tiers.filter_map(|path| HeldDir::open(path).ok()).collect();
    }

    /// Checksum and size of the copy of this name, as a packed copy has them.
    fn as_packed(&self, name: CopyName) -> Option<(Sum, u64)> {
        let paths = Codec::ALL.map(|codec| path_of(name, codec));
        let open = |dir: &HeldDir| paths.iter().find_map(|path| dir.read_file(path).ok());
        let (size, sum) =
            self.beside.iter().filter_map(open).find_map(|fd| PackedFile::new(fd, None).contents().ok())?;
        Some((sum, size))
    }

    /// Reads the log again, for copies that were published since.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn refresh(&mut self) -> io::Result<()> {
        self.logged = log_reader::read(&self.dir, None)?.copies;
        Ok(())
    }

    /// The copies in one of the 256 directories.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn copies(&self, directory: u8) -> io::Result<Vec<Lying>> {
        let dir = self.dir.open_dir(&format!("copies/{directory:02x}"))?;
        let mut copies = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            let Ok(file) = entry.file_name().to_str() else { continue };
            let (hex, codec) = split_suffix(file);
            copies.extend(CopyName::parse(hex.as_bytes()).map(|name| Lying { name, codec }));
        }
        Ok(copies)
    }

    /// The log's record of a copy.
    #[must_use]
    pub fn logged(&self, name: CopyName) -> Option<Logged> {
        self.logged.get(name).copied()
    }

    /// Reads a copy and compares it with the log; also its size in bytes.
    #[must_use]
    pub fn check(&self, copy: Lying) -> (Health, u64) {
        let path = copy.path();
        let file = path.rsplit('/').next().unwrap_or_default();
        let st = match self.dir.stat(&path) {
            Err(Errno::NOENT) => return (Health::Gone, 0),
            Err(e) => return (Health::Damaged(e.to_string()), 0),
            Ok(st) => st,
        };
        let size = st.st_size as u64;
        let logged = self.logged(copy.name).filter(|logged| logged.packed == copy.is_packed());
        let known = logged.map(|logged| (logged.sum, logged.size));
        let known = known.or_else(|| if copy.is_packed() { None } else { self.as_packed(copy.name) });
        let Some((sum, whole)) = known else { return (Health::Unknown, size) };
        if whole != size && !copy.is_packed() {
            return (Health::Damaged(format!("it has {size} bytes, not {whole}")), size);
        }
        if sound(file, &st).is_none() {
            return (Health::Damaged("its modification time was changed".to_owned()), size);
        }
        let opened = self.dir.read_file(&path);
        let fits = opened.map_err(io::Error::from).and_then(|fd| match copy.is_packed() {
            true => {
                let packed = PackedFile::new(fd, None);
                Ok(packed.contents()?.0 == whole && packed.fits(sum)?)
            }
            false => sum.fits(fd, size),
        });
        let health = match fits {
            Ok(true) => Health::Sound,
            Ok(false) => Health::Damaged("its bytes are not those that were copied".to_owned()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Health::Gone,
            Err(e) => Health::Damaged(e.to_string()),
        };
        (health, size)
    }
}
