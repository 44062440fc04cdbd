//! The overlay of a staging directory: a symbolic link for each name that is not as on the PFS.
//!
//! All changes are made under the lock of the journal. The counters `entries` and `pending` of the
//! state count all links, and all but those of clean copies.

use crate::plan::{Claim, join, parent};
use monarch_abi::outputs::REMOVED_DIR;
use monarch_abi::outputs::names::{Link, SYMLINK, WHITEOUT, file_text, is_pending};
use monarch_abi::outputs::state::State;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::{Errno, Result};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// Name of a link while it is made, in the staging directory.
const NEW: &str = "link.new";

/// The overlay.
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a> {
    staging: BorrowedFd<'a>,
    tree: BorrowedFd<'a>,
    state: &'a State,
}

fn add(counter: &AtomicU64, plus: bool, minus: bool) {
    match (plus, minus) {
        (true, false) => {
            counter.fetch_add(1, Ordering::AcqRel);
        }
        (false, true) => {
            let less = |n: u64| n.checked_sub(1);
            let _ = counter.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        }
        _ => {}
    }
}

impl<'a> Tree<'a> {
    /// The overlay of a staging directory; the caller holds the lock of the journal.
    #[must_use]
    pub fn new(staging: &'a OwnedFd, tree: &'a OwnedFd, state: &'a State) -> Self {
        Self { staging: staging.as_fd(), tree: tree.as_fd(), state }
    }

    /// Where the link of a name lies: for a removed directory in the directory.
    #[must_use]
    pub fn link_path(name: &[u8], claim: &Claim) -> Vec<u8> {
        match claim {
            Claim::RemovedDir => join(name, REMOVED_DIR.as_bytes()),
            _ => name.to_vec(),
        }
    }

    /// The text of the link at a path.
    ///
    /// # Errors
    /// What the kernel said, except that there is none.
    pub fn read(&self, path: &[u8]) -> Result<Option<Vec<u8>>> {
        match rustix::fs::readlinkat(self.tree, path, Vec::new()) {
            Ok(text) => Ok(Some(text.into_bytes())),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::INVAL) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes or replaces the link at a path.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn set(&self, path: &[u8], text: &[u8]) -> Result<()> {
        let old = self.read(path)?;
        let _ = rustix::fs::unlinkat(self.staging, NEW, AtFlags::empty());
        rustix::fs::symlinkat(text, self.staging, NEW)?;
        let put = || rustix::fs::renameat(self.staging, NEW, self.tree, path);
        match self.kept(parent(path), put) {
            Err(Errno::NOENT) => {
                self.make_dirs(parent(path))?;
                self.kept(parent(path), put)?;
            }
            other => other?,
        }
        let was_pending = old.as_deref().is_some_and(is_pending);
        add(&self.state.pending, is_pending(text) && !was_pending, was_pending && !is_pending(text));
        add(&self.state.entries, old.is_none(), false);
        Ok(())
    }

    fn make_dirs(&self, dir: &[u8]) -> Result<()> {
        let ends = dir.iter().enumerate().filter(|(_, c)| **c == b'/').map(|(at, _)| at).chain([dir.len()]);
        for end in ends.filter(|end| *end > 0) {
            let made = &dir[..end];
            match self.kept(parent(made), || rustix::fs::mkdirat(self.tree, made, Mode::RWXU)) {
                Ok(()) => self.set_modified(made, Timespec { tv_sec: 0, tv_nsec: 0 }),
                Err(Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Makes a change of a directory of the overlay that is none of the job's. Its time says when
    /// the job has last changed names there: the shim shows it while something is pending.
    fn kept<T>(&self, dir: &[u8], change: impl FnOnce() -> T) -> T {
        let at: &[u8] = if dir.is_empty() { b"." } else { dir };
        let before = rustix::fs::statat(self.tree, at, AtFlags::SYMLINK_NOFOLLOW);
        let done = change();
        if let Ok(st) = before {
            self.set_modified(at, Timespec { tv_sec: st.st_mtime, tv_nsec: st.st_mtime_nsec as _ });
        }
        done
    }

    fn set_modified(&self, dir: &[u8], last_modification: Timespec) {
        let last_access = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let times = Timestamps { last_access, last_modification };
        // (Then the directory seems to have been changed later than it was.)
        let _ = rustix::fs::utimensat(self.tree, dir, &times, AtFlags::SYMLINK_NOFOLLOW);
    }

    /// Removes the link at a path, and directories that are empty without it.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn remove(&self, path: &[u8]) -> Result<()> {
        let Some(old) = self.read(path)? else { return Ok(()) };
        self.kept(parent(path), || rustix::fs::unlinkat(self.tree, path, AtFlags::empty()))?;
        add(&self.state.pending, false, is_pending(&old));
        add(&self.state.entries, false, true);
        let mut dir = parent(path);
        while !dir.is_empty() {
            let removed = self.kept(parent(dir), || rustix::fs::unlinkat(self.tree, dir, AtFlags::REMOVEDIR));
            if removed.is_err() {
                break;
            }
            dir = parent(dir);
        }
        Ok(())
    }

    /// All links: paths and texts.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn links(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (mut links, mut dirs) = (Vec::new(), vec![Vec::new()]);
        while let Some(dir) = dirs.pop() {
            let at: &[u8] = if dir.is_empty() { b"." } else { &dir };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(self.tree, at, flags, Mode::empty())?;
            for entry in rustix::fs::Dir::read_from(&fd)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name == b"." || name == b".." {
                    continue;
                }
                let path = join(&dir, name);
                match entry.file_type() {
                    FileType::Directory => dirs.push(path),
                    _ => {
                        if let Some(text) = self.read(&path)? {
                            links.push((path, text));
                        }
                    }
                }
            }
        }
        Ok(links)
    }

    /// Makes the overlay what the claims say. Links of clean copies stay where no claim is; a link
    /// of a file that `clean` knows as published becomes one.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn rebuild<'c>(
        &self,
        claims: impl Iterator<Item = (&'c [u8], &'c Claim)>,
        clean: impl Fn(&Link<'_>) -> Option<Vec<u8>>,
    ) -> Result<()> {
        let claims: Vec<_> = claims.collect();
        let has_no_names = |claim: &Claim| matches!(claim, Claim::File(_) | Claim::Symlink(_));
        let leaves: HashSet<&[u8]> =
            claims.iter().filter(|(_, claim)| has_no_names(claim)).map(|(name, _)| *name).collect();
        // (What a removed directory had is of no concern where a file has its name now.)
        let is_below_leaf = |name: &[u8]| above(name).any(|dir| leaves.contains(dir));
        let mut wanted: HashMap<Vec<u8>, Vec<u8>> = claims
            .iter()
            .filter(|(name, _)| !is_below_leaf(name))
            .map(|(name, claim)| (Self::link_path(name, claim), text_of(claim)))
            .collect();
        for (path, text) in self.links()? {
            match wanted.get(&path) {
                Some(want) if *want == text => {
                    wanted.remove(&path);
                }
                Some(_) => {}
                None => match Link::parse(&text).and_then(|link| clean(&link)) {
                    Some(kept) if kept == text => {}
                    Some(kept) => self.set(&path, &kept)?,
                    None => self.remove(&path)?,
                },
            }
        }
        for (path, text) in wanted {
            // A clean copy may lie where a directory is needed now, or such copies below a name.
            self.clear_way(parent(&path))?;
            match self.set(&path, &text) {
                Err(Errno::ISDIR) => {
                    self.clear_below(&path)?;
                    self.set(&path, &text)?;
                }
                done => done?,
            }
        }
        let links = self.links()?;
        let pending = links.iter().filter(|(_, text)| is_pending(text)).count();
        self.state.pending.store(pending as u64, Ordering::Release);
        self.state.entries.store(links.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Removes all links below a directory, and with them the directory.
    fn clear_below(&self, dir: &[u8]) -> Result<()> {
        for (path, _) in self.links()? {
            if path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/")) {
                self.remove(&path)?;
            }
        }
        self.remove_dirs(dir)
    }

    /// Removes a directory that has directories only, if it is there.
    fn remove_dirs(&self, dir: &[u8]) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(self.tree, dir, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            fd => fd?,
        };
        for entry in rustix::fs::Dir::read_from(&fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                self.remove_dirs(&join(dir, name))?;
            }
        }
        rustix::fs::unlinkat(self.tree, dir, AtFlags::REMOVEDIR)
    }

    fn clear_way(&self, mut dir: &[u8]) -> Result<()> {
        while !dir.is_empty() {
            self.remove(dir)?;
            dir = parent(dir);
        }
        Ok(())
    }
}

/// The directories above a path, the nearest first.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(parent(path)), |dir| Some(parent(dir))).take_while(|dir| !dir.is_empty())
}

/// The text of the link of a claim.
#[must_use]
pub fn text_of(claim: &Claim) -> Vec<u8> {
    match claim {
        Claim::File(file) => file_text(file).to_vec(),
        Claim::Absent | Claim::Left | Claim::RemovedDir => WHITEOUT.to_vec(),
        Claim::Symlink(target) => [SYMLINK, target.as_slice()].concat(),
    }
}
