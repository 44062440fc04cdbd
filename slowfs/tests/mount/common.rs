//! A temporary source directory and a place to mount it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use slowfs::{Builder, Slowfs};
use tempfile::TempDir;

pub(crate) type Test = io::Result<()>;

pub(crate) struct World {
    dir: TempDir,
}

impl World {
    /// An empty source and mount point; `None` where FUSE cannot work.
    pub(crate) fn new() -> io::Result<Option<Self>> {
        if fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
            println!("skipped: /dev/fuse cannot be opened");
            return Ok(None);
        }
        let world = Self { dir: tempfile::tempdir()? };
        fs::create_dir(world.src())?;
        fs::create_dir(world.mnt())?;
        Ok(Some(world))
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn src(&self) -> PathBuf {
        self.dir.path().join("src")
    }

    pub(crate) fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub(crate) fn builder(&self) -> Builder {
        Slowfs::builder(self.src(), self.mnt())
    }

    /// What a file of the source holds now.
    pub(crate) fn file_content(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.src().join(name))
    }

    /// Writes a file into the source: `size` bytes that depend on its name.
    pub(crate) fn file(&self, name: &str, size: usize) -> io::Result<Vec<u8>> {
        let seed = name.bytes().fold(7u8, |a, b| a.wrapping_mul(31).wrapping_add(b));
        let content: Vec<u8> = (0..size).map(|i| (i % 251) as u8 ^ seed).collect();
        let path = self.src().join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, &content)?;
        Ok(content)
    }
}

/// The errno of a call that must fail.
pub(crate) fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}
