//! [`ReadOrder`]: whether a job reads the files of a root in order, by number or by name, and which
//! file follows.
//!
//! Each first open of a file is compared with the one before. Three quarters that go up are an
//! order, also where several workers read a batch each; of shuffled files half go up.

use monarch_abi::PATH_MAX;
use monarch_abi::index::Index;
use std::collections::{HashMap, HashSet};

/// Comparisons from which the order is judged.
const MIN_SEEN: u32 = 7;
/// Comparisons within directories from which these are judged alone: jobs may read directories in
/// one order and their files in another.
const MIN_LOCAL: u32 = 6;
/// Comparisons that are remembered.
const MAX_SEEN: u32 = 32;
/// Files that one open may be ahead of the one before.
const MAX_STEP: u32 = 256;
/// Files passed and read, beyond which both counts are halved.
const MAX_COUNTED: u32 = 2048;
/// Entries that a search for the next file looks at.
const MAX_LOOKED_AT: usize = 4096;
/// Children of a directory that are sorted by name, and of all sorted directories.
const MAX_SORTED: usize = 1 << 17;

/// How a job reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// It has opened too few files, or reads backwards.
    Unknown,
    /// In the order of the index, or of names.
    InOrder(By),
    /// In no order.
    Shuffled,
}

/// An order of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Their numbers in the index.
    Id,
    /// Their names.
    Name,
}

/// The last comparisons, one bit each.
#[derive(Clone, Copy, Debug, Default)]
struct Trend {
    /// Whether the path or number went up.
    rises: u32,
    /// Whether both files were in one directory.
    local: u32,
    seen: u32,
}

impl Trend {
    fn add(&mut self, rises: bool, is_local: bool) {
        self.rises = self.rises << 1 | u32::from(rises);
        self.local = self.local << 1 | u32::from(is_local);
        self.seen = (self.seen + 1).min(MAX_SEEN);
    }

    /// Whether most comparisons went up, or down; where most were within a directory, also whether
    /// those did.
    const fn steady(self) -> Option<bool> {
        let all = u32::MAX >> (32 - self.seen);
        if let Some(up) = self.steady_of(all) {
            return Some(up);
        }
        let local = self.local & all;
        let count = local.count_ones();
        if count >= MIN_LOCAL && count * 2 >= self.seen { self.steady_of(local) } else { None }
    }

    /// Whether there are enough comparisons to say that there is no order.
    const fn is_clear(self) -> bool {
        let local = (self.local & (u32::MAX >> (32 - self.seen))).count_ones();
        local >= MIN_LOCAL || local * 2 < self.seen
    }

    const fn steady_of(self, which: u32) -> Option<bool> {
        let (rises, seen) = ((self.rises & which).count_ones(), which.count_ones());
        if rises * 4 >= seen * 3 {
            Some(true)
        } else if rises * 4 <= seen {
            Some(false)
        } else {
            None
        }
    }
}

/// The order in which the files of a root are read.
#[derive(Debug, Default)]
pub(crate) struct ReadOrder {
    by_id: Trend,
    by_name: Trend,
    /// The file opened last, and its path.
    last: Option<(u32, Vec<u8>)>,
    /// The foremost file that was opened in order.
    front: Option<(u32, Vec<u8>)>,
    /// The file up to which files were looked at for prefetch.
    ahead: Option<u32>,
    /// Files between the first and the foremost one, and those of them that were opened.
    passed: u32,
    read: u32,
    /// Directories of the files that were opened, by place in the table of directories.
    dirs: HashSet<usize>,
    /// Children of directories in the order of their names, by place in the table of directories.
    sorted: HashMap<usize, Vec<u32>>,
    sorted_ids: usize,
}

impl ReadOrder {
    /// Whether enough files were opened to tell.
    pub(crate) const fn is_known(&self) -> bool {
        self.by_id.seen >= MIN_SEEN
    }

    /// How the job reads.
    pub(crate) const fn reading(&self) -> Reading {
        if !self.is_known() {
            return Reading::Unknown;
        }
        match (self.by_id.steady(), self.by_name.steady()) {
            (Some(true), _) => Reading::InOrder(By::Id),
            (_, Some(true)) => Reading::InOrder(By::Name),
            (Some(false), _) | (_, Some(false)) => Reading::Unknown,
            (None, None) if self.by_id.is_clear() => Reading::Shuffled,
            (None, None) => Reading::Unknown,
        }
    }

    /// Whether the job reads in order and leaves out less than a quarter of the files.
    pub(crate) const fn is_dense(&self) -> bool {
        self.read > MIN_SEEN && self.read * 4 >= self.passed * 3
    }

    /// Notes the first open of a file.
    pub(crate) fn opened(&mut self, index: &Index<'_>, id: u32) {
        let path = path(index, id);
        if let Some((last, name)) = &self.last {
            let is_local = index.parent_of(*last) == index.parent_of(id);
            self.by_id.add(id > *last, is_local);
            self.by_name.add(path > *name, is_local);
        }
        let is_new_dir = index.parent_of(id).is_some_and(|dir| self.dirs.insert(dir));
        match self.reading() {
            Reading::InOrder(by) => self.advance(index, by, (id, &path), is_new_dir),
            _ => (self.front, self.ahead, self.passed, self.read) = (None, None, 0, 0),
        }
        self.last = Some((id, path));
    }

    fn advance(&mut self, index: &Index<'_>, by: By, (id, name): (u32, &[u8]), is_new_dir: bool) {
        self.read += 1;
        match self.front.take() {
            None => {
                self.passed += 1;
                self.front = Some((id, name.to_vec()));
            }
            Some((front, of)) if !is_behind(by, (id, name), (front, &of)) => {
                if is_new_dir {
                    // The next directory comes before this one.
                    (self.ahead, self.passed) = (None, self.passed + 1);
                }
                self.front = Some(if is_new_dir { (id, name.to_vec()) } else { (front, of) });
            }
            Some((front, _)) => {
                let mut at = front;
                for _ in 0..MAX_STEP {
                    let Some(next) = self.following(index, by, at) else { break };
                    at = next;
                    self.passed += 1;
                    if at == id {
                        break;
                    }
                }
                self.front = Some((id, name.to_vec()));
            }
        }
        if self.passed.max(self.read) > MAX_COUNTED {
            (self.passed, self.read) = (self.passed / 2, self.read / 2);
        }
    }

    /// The next file to look at for prefetch: behind the foremost one that was opened, and behind
    /// those that were looked at.
    pub(crate) fn next(&mut self, index: &Index<'_>, by: By) -> Option<u32> {
        let (front, name) = self.front.clone()?;
        let from = self.ahead.filter(|&id| is_behind(by, (id, &path(index, id)), (front, &name))).unwrap_or(front);
        self.following(index, by, from)
    }

    /// Notes that a file was looked at for prefetch.
    pub(crate) const fn looked_at(&mut self, id: u32) {
        self.ahead = Some(id);
    }

    /// The file that follows `id`.
    fn following(&mut self, index: &Index<'_>, by: By, id: u32) -> Option<u32> {
        let name = |id: u32| index.record(id).and_then(|r| index.name(r));
        let is_file = |id: u32| index.record(id).is_some_and(monarch_abi::index::Record::is_file);
        if by == By::Id {
            return (id + 1..index.len() as u32).take(MAX_LOOKED_AT).find(|&id| is_file(id));
        }
        let mut at = index.parent_of(id)?;
        let mut behind = Some(id);
        for _ in 0..MAX_LOOKED_AT {
            let children = self.sorted(index, at)?;
            let place = match behind {
                Some(id) => children.binary_search_by_key(&name(id), |&c| name(c)).ok()? + 1,
                None => 0,
            };
            match children.get(place) {
                Some(&next) if is_file(next) => return Some(next),
                Some(&next) => match index.record(next).filter(|r| r.is_dir()) {
                    Some(dir) => (at, behind) = (dir.aux as usize, None),
                    None => behind = Some(next),
                },
                None => {
                    let dir = index.dir_at(at)?;
                    behind = Some(dir.id);
                    at = index.parent_of(dir.id)?;
                }
            }
        }
        None
    }

    /// The children of a directory in the order of their names; `None` if they are too many.
    fn sorted(&mut self, index: &Index<'_>, at: usize) -> Option<&[u32]> {
        if !self.sorted.contains_key(&at) {
            let mut children: Vec<u32> =
                index.children(index.dir_at(at)?, 0).take(MAX_SORTED + 1).map(|(id, _)| id).collect();
            if children.len() > MAX_SORTED {
                return None;
            }
            children.sort_by_key(|&id| index.record(id).and_then(|r| index.name(r)));
            if self.sorted_ids + children.len() > MAX_SORTED {
                self.sorted.clear();
                self.sorted_ids = 0;
            }
            self.sorted_ids += children.len();
            self.sorted.insert(at, children);
        }
        self.sorted.get(&at).map(Vec::as_slice)
    }
}

/// Whether the first file comes after the second.
fn is_behind(by: By, of: (u32, &[u8]), other: (u32, &[u8])) -> bool {
    match by {
        By::Id => of.0 > other.0,
        By::Name => of.1 > other.1,
    }
}

/// The path of an entry below its root. A zero byte stands for each slash, so that paths compare as
/// their components do.
fn path(index: &Index<'_>, id: u32) -> Vec<u8> {
    let mut buf = [0u8; PATH_MAX];
    let len = index.path(id, &mut buf).unwrap_or(0);
    buf.get(..len).unwrap_or_default().iter().map(|&b| if b == b'/' { 0 } else { b }).collect()
}
