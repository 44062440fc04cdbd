//! [`ReadOrder`]: whether a job reads the files of a root in order, by number or by name, and which
//! file follows.
//!
//! Each first open of a file is compared with the one before. Three quarters that go up are an
//! order, also where several workers read a batch each; of shuffled files half go up.

use monarch_abi::PATH_MAX;
use monarch_abi::index::Index;
use std::collections::HashMap;

/// Comparisons from which the order is judged.
const MIN_SEEN: u32 = 7;
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
    rises: u32,
    seen: u32,
}

impl Trend {
    fn add(&mut self, rises: bool) {
        self.rises = self.rises << 1 | u32::from(rises);
        self.seen = (self.seen + 1).min(MAX_SEEN);
    }

    /// Whether most comparisons went up, or down.
    const fn steady(self) -> Option<bool> {
        let rises = (self.rises & (u32::MAX >> (32 - self.seen))).count_ones();
        if rises * 4 >= self.seen * 3 {
            Some(true)
        } else if rises * 4 <= self.seen {
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
    /// Files between the first and the foremost one, and those of them that were opened.
    passed: u32,
    read: u32,
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
            (None, None) => Reading::Shuffled,
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
            self.by_id.add(id > *last);
            self.by_name.add(path > *name);
        }
        match self.reading() {
            Reading::InOrder(by) => self.advance(index, by, id, &path),
            _ => (self.front, self.passed, self.read) = (None, 0, 0),
        }
        self.last = Some((id, path));
    }

    fn advance(&mut self, index: &Index<'_>, by: By, id: u32, name: &[u8]) {
        self.read += 1;
        match self.front.take() {
            None => {
                self.passed += 1;
                self.front = Some((id, name.to_vec()));
            }
            Some((front, of)) if !is_behind(by, (id, name), (front, &of)) => self.front = Some((front, of)),
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

    /// The file behind `from`, or behind the foremost one that was opened if that is further.
    pub(crate) fn next(&mut self, index: &Index<'_>, by: By, from: Option<u32>) -> Option<u32> {
        let (front, name) = self.front.clone()?;
        let from = from.filter(|&id| is_behind(by, (id, &path(index, id)), (front, &name))).unwrap_or(front);
        self.following(index, by, from)
    }

    /// The file that follows `id`.
    fn following(&mut self, index: &Index<'_>, by: By, id: u32) -> Option<u32> {
        let name = |id: u32| index.record(id).and_then(|r| index.name(r));
        let is_file = |id: u32| index.record(id).is_some_and(|r| r.is_file());
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
