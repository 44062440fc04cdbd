//! Compares an index with its root: all of it with a new scan, or a sample of its files with the
//! PFS.
//!
//! Files are compared by their identity (size, mtime, ctime, inode), links by their targets,
//! directories by their names: what decides whether a copy may be served. Directories that either
//! side left to the kernel are skipped.

use super::{ScanError, ScanOptions, ScanProgress, build, scan_within};
use crate::beneath::open_beneath;
use crate::engine::Limits;
use crate::shm::IndexBytes;
use monarch_abi::PATH_MAX;
use monarch_abi::index::{DIR_INCOMPLETE, Dir, Index, Record};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::Serialize;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Paths named as examples for each kind of difference, at most.
const MAX_EXAMPLES: usize = 10;

/// How an index and its root differ.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Differences {
    /// Entries that were compared.
    pub compared: u64,
    /// In the index, not on the PFS.
    pub missing: Paths,
    /// On the PFS, not in the index: opens of these go to the PFS. Never found by a sample.
    pub new: Paths,
    /// Another size, time, inode, type or target.
    pub changed: Paths,
}

/// The number of entries of a kind, and some of them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Paths {
    /// Their number.
    pub count: u64,
    /// Paths of some of them below the root.
    #[serde(serialize_with = "crate::shown::serial::all")]
    pub examples: Vec<PathBuf>,
}

impl Paths {
    fn add(&mut self, path: &[u8]) {
        self.count += 1;
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push(PathBuf::from(OsStr::from_bytes(path)));
        }
    }
}

impl Differences {
    /// Whether there are no differences.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.missing.count + self.new.count + self.changed.count == 0
    }
}

/// Scans `root` within the limit of calls and compares all of it with an index.
///
/// # Errors
/// When the root cannot be opened.
pub fn verify(
    old: &Index<'_>,
    root: &Path,
    options: ScanOptions,
    limits: &Limits,
    progress: &ScanProgress,
) -> Result<Differences, ScanError> {
    let built = build(scan_within(root, options, limits, progress)?, old.header.seed, old.header.uuid);
    let mut out = Differences::default();
    if let Some(new) = IndexBytes(&built.index).open() {
        let (a, b) = (old.dirs().first(), new.dirs().first());
        if let (Some(a), Some(b)) = (a, b) {
            compare(old, &new, a, b, &mut Vec::new(), &mut out);
        }
    }
    Ok(out)
}

/// Compares a directory that both have, and everything below it.
fn compare(old: &Index<'_>, new: &Index<'_>, a: &Dir, b: &Dir, path: &mut Vec<u8>, out: &mut Differences) {
    if (a.flags | b.flags) & DIR_INCOMPLETE != 0 {
        return;
    }
    let mut there: HashMap<&[u8], &Record> = new.children(b, 0).filter_map(|(_, r)| Some((new.name(r)?, r))).collect();
    let len = path.len();
    for (_, was) in old.children(a, 0) {
        let Some(name) = old.name(was) else { continue };
        path.truncate(len);
        if len > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        out.compared += 1;
        match there.remove(name) {
            None => out.missing.add(path),
            Some(is) if !same(old, new, was, is) => out.changed.add(path),
            Some(is) => {
                if let (Some(a), Some(b)) = (old.dir(was), new.dir(is)) {
                    compare(old, new, a, b, path, out);
                }
            }
        }
    }
    path.truncate(len);
    let mut added: Vec<&[u8]> = there.into_keys().collect();
    added.sort_unstable();
    for name in added {
        path.truncate(len);
        if len > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        out.compared += 1;
        out.new.add(path);
    }
    path.truncate(len);
}

fn same(old: &Index<'_>, new: &Index<'_>, was: &Record, is: &Record) -> bool {
    if was.d_type() != is.d_type() {
        return false;
    }
    if was.is_link() {
        old.link_target(was) == new.link_target(is)
    } else {
        was.is_dir() || was.identity() == is.identity()
    }
}

/// Compares `count` files of an index, chosen at random, with those below `root`: two calls each,
/// within the limit of calls, by `threads` threads.
///
/// # Errors
/// When the root cannot be opened.
pub fn verify_sample(
    index: &Index<'_>,
    root: &Path,
    count: usize,
    threads: usize,
    limits: &Limits,
    progress: &ScanProgress,
) -> Result<Differences, ScanError> {
    let fail = |e: rustix::io::Errno| ScanError::Root { path: root.display().to_string(), source: e.into() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(root, flags, Mode::empty()).map_err(fail)?;
    let ids = sample(index, count);
    let (next, out) = (AtomicUsize::new(0), Mutex::new(Differences::default()));
    std::thread::scope(|s| {
        for _ in 0..threads.clamp(1, 256) {
            s.spawn(|| {
                while let Some(&id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut buf = [0; PATH_MAX];
                    let Some(path) = index.path(id, &mut buf).and_then(|len| buf.get(..len)) else { continue };
                    (0..2).for_each(|_| limits.before_scan_call());
                    progress.calls.fetch_add(2, Ordering::Relaxed);
                    let now = identity(dir.as_fd(), path);
                    progress.entries.fetch_add(1, Ordering::Relaxed);
                    let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
                    out.compared += 1;
                    match now {
                        None => out.missing.add(path),
                        Some(now) if index.record(id).is_some_and(|r| r.identity() != now) => out.changed.add(path),
                        Some(_) => {}
                    }
                }
            });
        }
    });
    Ok(out.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The identity of a file now, if it can be opened.
fn identity(root: rustix::fd::BorrowedFd<'_>, path: &[u8]) -> Option<monarch_abi::hash::Identity> {
    // Opened with `O_PATH`: a plain `statx` by path would follow links on the way.
    let fd = open_beneath(root, path, OFlags::PATH).ok()?;
    let st = rustix::fs::statat(&fd, c"", AtFlags::EMPTY_PATH).ok()?;
    let nanos = |s: i64, ns: i64| s.saturating_mul(1_000_000_000).saturating_add(ns);
    Some(monarch_abi::hash::Identity {
        size: st.st_size as u64,
        mtime_ns: nanos(st.st_mtime, st.st_mtime_nsec as i64),
        ctime_ns: nanos(st.st_ctime, st.st_ctime_nsec as i64),
        ino: st.st_ino,
    })
}

/// Ids of `count` regular files chosen at random, or of all if there are fewer: reservoir sampling
/// (Vitter's algorithm R).
fn sample(index: &Index<'_>, count: usize) -> Vec<u32> {
    let mut random = crate::sys::random_u64() | 1;
    let mut chosen: Vec<u32> = Vec::new();
    let files = (0..index.len() as u32).filter(|&id| index.record(id).is_some_and(Record::is_file));
    for (seen, id) in files.enumerate() {
        if chosen.len() < count {
            chosen.push(id);
            continue;
        }
        // xorshift64.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let at = (random % (seen as u64 + 1)) as usize;
        if let Some(place) = chosen.get_mut(at) {
            *place = id;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn indexed(root: &Path) -> super::super::Built {
        let options = ScanOptions { threads: 2, max_memory: u64::MAX };
        build(scan_within(root, options, &Limits::default(), &ScanProgress::default()).unwrap(), 1, [1; 16])
    }

    fn names(p: &Paths) -> Vec<&str> {
        let mut names: Vec<&str> = p.examples.iter().map(|p| p.to_str().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        for name in ["kept", "a/cut", "a/gone", "a/b/deep", "a/b/touched", "turned"] {
            fs::write(at(name), name).unwrap();
        }
        std::os::unix::fs::symlink("kept", at("link")).unwrap();
        let built = indexed(dir.path());
        let old = IndexBytes(&built.index).open().unwrap();
        let options = ScanOptions { threads: 2, max_memory: u64::MAX };
        let progress = ScanProgress::default();
        let none = verify(&old, dir.path(), options, &Limits::default(), &progress).unwrap();
        assert!(none.is_empty() && none.compared == 9, "{none:?}");

        fs::write(at("a/cut"), "").unwrap();
        fs::remove_file(at("a/gone")).unwrap();
        fs::File::open(at("a/b/touched")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        fs::remove_file(at("turned")).unwrap();
        fs::create_dir(at("turned")).unwrap();
        fs::write(at("a/b/added"), "x").unwrap();
        fs::remove_file(at("link")).unwrap();
        std::os::unix::fs::symlink("a", at("link")).unwrap();
        let all = verify(&old, dir.path(), options, &Limits::default(), &progress).unwrap();
        assert_eq!(names(&all.missing), ["a/gone"]);
        assert_eq!(names(&all.new), ["a/b/added"]);
        assert_eq!(names(&all.changed), ["a/b/touched", "a/cut", "link", "turned"]);

        let some = verify_sample(&old, dir.path(), 100, 3, &Limits::default(), &progress).unwrap();
        assert_eq!(some.compared, 6);
        assert_eq!(names(&some.missing), ["a/gone"]);
        assert_eq!(names(&some.changed), ["a/b/touched", "a/cut", "turned"]);
    }

    #[test]
    fn a_sample_has_as_many_files_as_asked_for_and_none_twice() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..200 {
            fs::write(dir.path().join(n.to_string()), "x").unwrap();
        }
        let built = indexed(dir.path());
        let index = IndexBytes(&built.index).open().unwrap();
        for count in [0, 1, 50, 200, 1000] {
            let mut ids = sample(&index, count);
            let len = ids.len();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!((ids.len(), len), (count.min(200), count.min(200)));
        }
    }
}
