//! A staged file as the plan knows it.

use super::opener::Opener;
use super::place::{Guard, Place};
use monarch_abi::outputs::names::Staged;

/// How far the copy of a staged file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// Not copied.
    Waiting,
    /// Handed to a copier.
    Running,
    /// The part file has all bytes.
    Done,
}

/// A name that a file has left by a rename before its publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftName {
    /// The record of the rename.
    pub seq: u64,
    /// The name.
    pub name: Vec<u8>,
    /// What of that name the PFS has, to be removed after the publication.
    pub guard: Guard,
    /// Whether the file may still be merged into a later entry: the name has nothing, or only what
    /// an earlier agent has logged and removed before, as far as that can be told.
    pub is_mergeable: bool,
}

impl LeftName {
    /// Whether what the PFS has of the name is to be removed at the place of the file.
    #[must_use]
    pub fn holds_its_place(&self) -> bool {
        self.guard == Guard::Any && !self.is_mergeable
    }
}

/// A staged file that is not published, or whose publication is being done.
///
/// Fields: 24, because the rules of the plan ask for all of them.
#[derive(Clone, Debug)]
pub struct PlannedFile {
    /// Its number, and its part file's identity.
    pub staged: Staged,
    /// Its name for the job, below the output root.
    pub name: Vec<u8>,
    /// Names that it had before, oldest first: an earlier publication may have given it any of
    /// them.
    pub former: Vec<Vec<u8>>,
    /// The directory in which its part file was made.
    pub part_dir: Vec<u8>,
    /// Names that it has left behind.
    pub left: Vec<LeftName>,
    /// The record that gave it its name.
    pub bound: u64,
    /// Its place in the order; `None` while it is open.
    pub place: Option<Place>,
    /// Earlier places, at which it gets names that it has left since.
    pub turns: Vec<Place>,
    /// All records up to this one were made while the file was open.
    pub open_until: u64,
    /// Goes up each time that the file is opened for writing: a copy of an older generation does
    /// not count.
    pub generation: u64,
    /// How far its copy is.
    pub copy: CopyState,
    /// Whether the PFS had another file of its name when it was created, of which no removal was
    /// pending.
    pub replaces: bool,
    /// Whether a whole file of its name is there, published or pending, which what a killed writer
    /// leaves must not replace.
    pub supersedes: bool,
    /// Whether its writers were killed, so that it is kept beside the file that it would replace.
    pub partial: bool,
    /// Whether another thing has got its name: it keeps its place, or is lost when it turns out to
    /// be open.
    pub is_covered: bool,
    /// The place of its removal, if it is published in its turn all the same.
    pub removed_at: Option<Place>,
    /// Whether a publication of it was begun and is not committed.
    pub in_flight: bool,
    /// The record that gave it the name under which it is being published.
    pub begun_bound: u64,
    /// Whether a publication of it was done before it was opened or renamed again.
    pub was_published: bool,
    /// Processes that opened it and have not closed it.
    pub openers: Vec<Opener>,
    /// When it was opened first, nanoseconds since 1970.
    pub opened_ns: u64,
    /// When it got its place, nanoseconds since 1970.
    pub closed_ns: u64,
    /// Whether owner or group were changed.
    pub owner_changed: bool,
    /// Whether extended attributes were changed by path or descriptor.
    pub extended_changed: bool,
}

impl PlannedFile {
    /// Directory `from` was renamed to `to`, on the PFS too: what lay below it lies there now.
    pub fn moved(&mut self, from: &[u8], to: &[u8]) {
        for path in self.places() {
            if let Some(moved) = moved_path(path, from, to) {
                *path = moved;
            }
        }
    }

    /// Two names were exchanged, on the PFS too: what lay below one of them, its own name as well,
    /// lies below the other now.
    pub fn exchanged(&mut self, a: &[u8], b: &[u8]) {
        let exchange = |path: &mut Vec<u8>| {
            if let Some(moved) = exchanged_path(path, a, b) {
                *path = moved;
            }
        };
        self.places().for_each(exchange);
        exchange(&mut self.name);
    }

    /// Where it has been, and where its part file lies.
    fn places(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        let names = self.former.iter_mut().chain(self.left.iter_mut().map(|left| &mut left.name));
        names.chain([&mut self.part_dir])
    }

    /// The name that it gets on the PFS.
    #[must_use]
    pub fn target(&self) -> Vec<u8> {
        let mut name = self.name.clone();
        if self.partial {
            name.extend_from_slice(format!(".partial-{}", self.staged.id).as_bytes());
        }
        name
    }
}

/// Where a path lies after `from` was renamed to `to`, if it is that or lies below it.
pub(super) fn moved_path(path: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let rest = path.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))?;
    Some([to, rest].concat())
}

/// Where a path lies after two names were exchanged, if it is one of them or lies below it.
pub(super) fn exchanged_path(path: &[u8], a: &[u8], b: &[u8]) -> Option<Vec<u8>> {
    moved_path(path, a, b).or_else(|| moved_path(path, b, a))
}

/// The directory of a path below the output root; empty for the root.
#[must_use]
pub fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|&c| c == b'/').map_or(b"", |at| &path[..at])
}

/// A path in a directory.
#[must_use]
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// The directories that differ when a path below a renamed directory was `a` and is `b`.
#[must_use]
pub(super) fn renamed_dirs<'p>(a: &'p [u8], b: &'p [u8]) -> (&'p [u8], &'p [u8]) {
    let same = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    let (tail, head) = (&a[a.len() - same..], a.len() - same);
    // Whole names only.
    let cut = match tail.iter().position(|&c| c == b'/') {
        Some(at) => at,
        None => return (a, b),
    };
    (&a[..head + cut], &b[..b.len() - same + cut])
}
