//! Copies that jobs have left in the tiers of this node, for commands that find no agent.
//!
//! No index says which file a copy is of. The name of a copy is a hash of the root, the path and
//! the attributes of the file, so the PFS is asked for the attributes of the files in question.

use crate::engine::Limits;
use crate::index::{self, ScanError, ScanOptions, ScanProgress};
use crate::tier::{ByName, Codec, CopyName, Lying, ServedRoot, TierDir, TierError, TierView};
use monarch_abi::hash::{Identity, path_hash};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Threads that ask the PFS for attributes: most of their time they wait.
const SCAN_THREADS: usize = 16;

/// The tiers of a configuration, as far as agents have made them.
#[derive(Debug)]
pub struct KeptCopies {
    /// The tiers, fastest first.
    pub tiers: Vec<KeptTier>,
}

/// A tier and what lies in it.
#[derive(Debug)]
pub struct KeptTier {
    /// Its name in messages.
    pub name: String,
    /// The directory that the configuration names.
    pub configured: PathBuf,
    /// Reads its copies.
    pub view: TierView,
    /// Roots whose files may have copies in it; the root served last is the last one.
    pub roots: Vec<ServedRoot>,
    /// The copies that exist. Those without a record in the log are no copies to the next agent.
    copies: ByName<Held>,
}

/// A copy that exists.
#[derive(Clone, Copy, Debug)]
struct Held {
    codec: Option<Codec>,
    /// Bytes of the file.
    size: u64,
}

/// A regular file on the PFS, and its copy.
#[derive(Clone, Debug)]
pub struct KeptFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Where its copy lies, if it has one.
    pub copy: Option<KeptCopy>,
}

/// A copy.
#[derive(Clone, Copy, Debug)]
pub struct KeptCopy {
    /// The number of its tier.
    pub tier: usize,
    /// Its name.
    pub copy: Lying,
}

/// Copies and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Copies.
    pub files: u64,
    /// Bytes of the files that they are copies of.
    pub bytes: u64,
}

/// Why the files below a path cannot be matched with copies.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The path does not exist, or the PFS does not answer.
    #[error("{path}: {source}")]
    Io {
        /// The path, as it was named.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// No earlier job has served the path.
    #[error("{path} is below no root that an earlier job was served from these tiers")]
    Outside {
        /// The path, as it was named.
        path: String,
    },
    /// The directory cannot be listed.
    #[error(transparent)]
    Scan(#[from] ScanError),
}

impl KeptCopies {
    /// Reads the tiers in these directories of a configuration, fastest first. Directories in which
    /// no agent has made a tier are left out.
    ///
    /// # Errors
    /// The directory that cannot be read, and what the kernel said.
    pub fn read<'a>(configured: impl Iterator<Item = &'a Path>) -> Result<Self, (PathBuf, io::Error)> {
        let mut tiers = Vec::new();
        for (number, dir) in configured.enumerate() {
            let fail = |e: io::Error| (dir.to_owned(), e);
            let Some(view) = TierView::open_configured(dir).map_err(fail)? else { continue };
            tiers.push(KeptTier::read(format!("tier{number}"), dir, view).map_err(fail)?);
        }
        let paths: Vec<PathBuf> = tiers.iter().map(|t| t.view.path().to_owned()).collect();
        for tier in &mut tiers {
            tier.view.look_beside(paths.iter().map(PathBuf::as_path));
        }
        Ok(Self { tiers })
    }

    /// Returns the roots that earlier jobs were served, each once.
    #[must_use]
    pub fn roots(&self) -> Vec<&Path> {
        let mut roots: Vec<&Path> = self.tiers.iter().flat_map(|t| &t.roots).map(|r| r.path.as_path()).collect();
        roots.sort_unstable();
        roots.dedup();
        roots
    }

    /// Returns the root that a real path lies below: the innermost.
    #[must_use]
    pub fn root_of(&self, real: &Path) -> Option<&Path> {
        self.roots().into_iter().filter(|root| real.starts_with(root)).max_by_key(|root| root.as_os_str().len())
    }

    /// Returns the copies of a root, by the bits of it in their names: without a call to the PFS.
    /// Copies of earlier versions of its files count as well.
    #[must_use]
    pub fn of_root(&self, root: &Path) -> Sum {
        let id = index::root_id(root);
        let mut sum = Sum::default();
        for (_, held) in self.tiers.iter().flat_map(|t| t.copies.iter()).filter(|(name, _)| name.is_below(id)) {
            sum.add(held.size);
        }
        sum
    }

    /// Visits each regular file at or below a path with its copy. Asks the PFS for attributes,
    /// within the limit of calls. Returns whether directories could not be read.
    ///
    /// # Errors
    /// See [`KeptError`].
    pub fn each_file(
        &self,
        path: &Path,
        limits: &Limits,
        progress: &ScanProgress,
        mut each: impl FnMut(KeptFile),
    ) -> Result<bool, KeptError> {
        let named = || path.display().to_string();
        let fail = |source| KeptError::Io { path: named(), source };
        limits.before_call(0, false);
        let real = path.canonicalize().map_err(fail)?;
        let root = self.root_of(&real).ok_or_else(|| KeptError::Outside { path: named() })?.to_owned();
        let meta = std::fs::metadata(&real).map_err(fail)?;
        let below = real.strip_prefix(&root).unwrap_or(Path::new("")).as_os_str().as_bytes().to_vec();
        let seeds = self.seeds(&root);
        if meta.is_file() {
            let ns = |s: i64, ns: i64| s.saturating_mul(1_000_000_000).saturating_add(ns);
            let id = Identity {
                size: meta.size(),
                mtime_ns: ns(meta.mtime(), meta.mtime_nsec()),
                ctime_ns: ns(meta.ctime(), meta.ctime_nsec()),
                ino: meta.ino(),
            };
            each(KeptFile { path: real, size: id.size, copy: self.copy_of(&root, &seeds, &below, &id) });
            return Ok(false);
        }
        if !meta.is_dir() {
            return Ok(false);
        }
        let options = ScanOptions { threads: SCAN_THREADS, max_memory: u64::MAX };
        let tree = index::scan_within(&real, options, limits, progress)?;
        let mut rel = below;
        if !rel.is_empty() {
            rel.push(b'/');
        }
        let above = rel.len();
        index::each_file(&tree, |name, record| {
            rel.truncate(above);
            rel.extend_from_slice(name);
            let copy = self.copy_of(&root, &seeds, &rel, &record.identity());
            each(KeptFile { path: real.join(std::ffi::OsStr::from_bytes(name)), size: record.size, copy });
        });
        Ok(tree.incomplete)
    }

    /// Returns the seeds by which paths below a root were hashed.
    fn seeds(&self, root: &Path) -> Vec<u64> {
        let of = |t: &KeptTier| t.roots.iter().filter(|r| r.path == root).map(|r| r.seed).collect::<Vec<_>>();
        let mut seeds: Vec<u64> = self.tiers.iter().flat_map(of).collect();
        seeds.sort_unstable();
        seeds.dedup();
        seeds
    }

    /// Returns the copy of a file: its path below a root, and its attributes now.
    fn copy_of(&self, root: &Path, seeds: &[u64], rel: &[u8], id: &Identity) -> Option<KeptCopy> {
        let root = index::root_id(root);
        seeds.iter().find_map(|&seed| {
            let name = CopyName::new(root, path_hash(seed, rel), id);
            let find = |(tier, t): (usize, &KeptTier)| {
                let held = t.copies.get(name)?;
                Some(KeptCopy { tier, copy: Lying { name, codec: held.codec } })
            };
            self.tiers.iter().enumerate().find_map(find)
        })
    }
}

impl KeptTier {
    fn read(name: String, configured: &Path, view: TierView) -> io::Result<Self> {
        let mut copies = ByName::default();
        for directory in 0..=u8::MAX {
            let listed = match view.copies(directory) {
                // An agent that was killed while it made the tier.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                listed => listed?,
            };
            for copy in listed {
                let logged = view.logged(copy.name).filter(|logged| logged.packed == copy.is_packed());
                if let Some(logged) = logged {
                    copies.insert(copy.name, Held { codec: copy.codec, size: logged.size });
                }
            }
        }
        let roots = view.roots();
        Ok(Self { name, configured: configured.to_owned(), view, roots, copies })
    }

    /// Returns the copies in the tier.
    #[must_use]
    pub fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        self.copies.iter().for_each(|(_, held)| sum.add(held.size));
        sum
    }

    /// Returns the names of all copies.
    #[must_use]
    pub fn names(&self) -> Vec<Lying> {
        self.copies.iter().map(|(name, held)| Lying { name, codec: held.codec }).collect()
    }

    /// Takes the lock of the tier, to change it.
    ///
    /// # Errors
    /// [`TierError`]; an agent may hold it.
    pub fn hold(&self) -> Result<TierDir, TierError> {
        let held = TierDir::open(&self.name, &self.configured, u64::MAX, 0)?;
        held.check_format()?;
        Ok(held)
    }

    /// Returns the bytes of the file that a copy is of, if the copy exists.
    #[must_use]
    pub fn size_of(&self, name: CopyName) -> Option<u64> {
        self.copies.get(name).map(|held| held.size)
    }
}

impl Sum {
    /// Adds a copy of a file with `bytes` bytes.
    pub const fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}
