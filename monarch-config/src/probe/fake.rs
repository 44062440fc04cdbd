//! A machine made up for a test.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::{FsInfo, LocalDisk, Memory, Meta, Probe};
use crate::site_file::{SITE_FILE, SiteSettings};
use crate::trusted::{Exposed, Why};

const GIB: u64 = 1 << 30;

/// A scripted [`Probe`]: a few mounts, directories, files and symbolic links.
#[derive(Clone, Debug)]
pub struct FakeProbe {
    mounts: BTreeMap<PathBuf, FsInfo>,
    dirs: BTreeSet<PathBuf>,
    files: BTreeSet<PathBuf>,
    links: BTreeMap<PathBuf, PathBuf>,
    read_only: BTreeSet<PathBuf>,
    used: BTreeMap<PathBuf, u64>,
    exposed: BTreeMap<PathBuf, (u32, u32)>,
    /// What [`Probe::memory`] answers; 64 GiB without a limit, 48 available, to begin with.
    pub memory: Memory,
    /// What [`Probe::in_kubernetes`] answers; false to begin with.
    pub kubernetes: bool,
    /// What [`Probe::local_disks`] answers; `/tmp` to begin with.
    pub disks: Vec<PathBuf>,
    /// The text of the site's file that [`Probe::site`] reads; none to begin with.
    pub site: Option<String>,
}

impl Default for FakeProbe {
    /// A node with an ext4 root of 100 GiB, half of it free, and `/tmp` on it.
    fn default() -> Self {
        let probe = Self {
            mounts: BTreeMap::new(),
            dirs: BTreeSet::new(),
            files: BTreeSet::new(),
            links: BTreeMap::new(),
            read_only: BTreeSet::new(),
            used: BTreeMap::new(),
            exposed: BTreeMap::new(),
            memory: Memory { limit: None, used: 0, total: 64 * GIB, available: 48 * GIB },
            kubernetes: false,
            disks: vec!["/tmp".into()],
            site: None,
        };
        probe.mount("/", "ext4", 100 * GIB, 50 * GIB).dir("/tmp")
    }
}

impl FakeProbe {
    /// Mounts a file system of `total` bytes, `free` of them free.
    #[must_use]
    pub fn mount(mut self, point: &str, fs_type: &str, total: u64, free: u64) -> Self {
        let dev = self.mounts.len() as u64 + 1;
        let fs_type = fs_type.to_owned();
        let info = FsInfo { fs_type, magic: 0, total, free, inodes_total: 1 << 20, inodes_free: 1 << 19, dev };
        self.mounts.insert(point.into(), info);
        self.dir(point)
    }

    /// Makes a directory with all above it.
    #[must_use]
    pub fn dir(mut self, path: &str) -> Self {
        self.dirs.extend(Path::new(path).ancestors().map(Path::to_owned));
        self
    }

    /// Makes a file.
    #[must_use]
    pub fn file(mut self, path: &str) -> Self {
        self.files.insert(path.into());
        self
    }

    /// Makes a symbolic link, `from` leading to `to`.
    #[must_use]
    pub fn link(mut self, from: &str, to: &str) -> Self {
        self.links.insert(from.into(), to.into());
        self
    }

    /// Takes the right to write to a directory away.
    #[must_use]
    pub fn read_only(mut self, path: &str) -> Self {
        self.read_only.insert(path.into());
        self.dir(path)
    }

    /// Lets copies of an earlier job take space in a directory.
    #[must_use]
    pub fn used(mut self, path: &str, bytes: u64) -> Self {
        self.used.insert(path.into(), bytes);
        self.dir(path)
    }

    /// Gives a directory an owner and a mode by which other users can exchange what lies in it; if
    /// the owner is root, a mode by which they may write to it.
    #[must_use]
    pub fn exposed_dir(mut self, path: &str, uid: u32, mode: u32) -> Self {
        self.exposed.insert(path.into(), (uid, mode));
        self.dir(path)
    }

    fn follow(&self, path: &Path) -> PathBuf {
        match self.links.iter().find(|(from, _)| path.starts_with(from)) {
            Some((from, to)) => to.join(path.strip_prefix(from).unwrap_or(path)).components().collect(),
            None => path.to_owned(),
        }
    }

    fn mounted(&self, path: &Path) -> io::Result<&FsInfo> {
        path.ancestors().find_map(|point| self.mounts.get(point)).ok_or_else(missing)
    }
}

/// The kernel's own words, as users would read them.
fn missing() -> io::Error {
    io::Error::from(rustix::io::Errno::NOENT)
}

impl Probe for FakeProbe {
    fn meta(&self, path: &Path) -> io::Result<Meta> {
        let path = self.follow(path);
        let is_dir = self.dirs.contains(&path);
        if !is_dir && !self.files.contains(&path) {
            return Err(missing());
        }
        let ino = self.dirs.iter().chain(&self.files).position(|known| *known == path).unwrap_or(0) as u64;
        Ok(Meta { is_dir, dev: self.mounted(&path)?.dev, ino })
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        self.meta(path).map(|_| self.follow(path))
    }

    fn file_system(&self, path: &Path) -> io::Result<FsInfo> {
        self.mounted(&self.follow(path)).cloned()
    }

    fn writable(&self, dir: &Path) -> bool {
        !self.read_only.contains(dir)
    }

    fn exposed(&self, path: &Path) -> Option<Exposed> {
        let (at, (uid, mode)) = path.ancestors().find_map(|dir| self.exposed.get_key_value(dir))?;
        let why = if *uid == 0 { Why::Writable } else { Why::Owner };
        Some(Exposed { path: at.clone(), uid: *uid, mode: *mode, why })
    }

    fn used_below(&self, dir: &Path, enough: u64) -> u64 {
        self.used.get(dir).map_or(0, |used| (*used).min(enough))
    }

    fn memory(&self) -> Memory {
        self.memory
    }

    fn in_kubernetes(&self) -> bool {
        self.kubernetes
    }

    fn local_disks(&self) -> Vec<LocalDisk> {
        self.disks.iter().map(|path| LocalDisk { label: path.display().to_string(), path: path.clone() }).collect()
    }

    fn uid(&self) -> u32 {
        1000
    }

    fn site(&self) -> SiteSettings {
        self.site.as_deref().map_or_else(SiteSettings::default, |text| SiteSettings::of(Path::new(SITE_FILE), text))
    }
}
