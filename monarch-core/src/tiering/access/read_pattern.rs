//! [`ReadPattern`]: how many files of a data set, and which, may be prefetched by what the job has
//! opened so far. Pure: it is handed the index and the opens.
//!
//! * A job that reads in order, and leaves out little, gets the files that follow: up to a
//!   twentieth of the bytes that it has opened.
//! * A job that opens shuffled files gets others of the directories that it has opened files of: up
//!   to 16 times the bytes that it has opened. Where its opens are spread over the subdirectories
//!   of a directory as chance would spread them, further subdirectories follow.
//! * Otherwise, and before eight opens, nothing is prefetched.
//!
//! Bytes that were prefetched count until the job opens them, so that a part of a data set costs
//! the PFS a bounded amount beside what the job reads.

use super::read_order::{By, ReadOrder, Reading};
use monarch_abi::index::{Index, Record};
use std::collections::{HashMap, HashSet, VecDeque};

/// Bytes that may be prefetched, as a multiple of the bytes opened, of files that are read in no
/// order.
const SHUFFLED_FACTOR: u64 = 16;
/// Bytes that may be prefetched, as a part of the bytes opened, of files that are read in order.
const ORDERED_DIVISOR: u64 = 20;
/// Opens below a directory from which their spread over its parts is judged.
const MIN_OPENS: u32 = 8;
/// Parts that are added at a time, at least.
const MIN_ADDED: usize = 8;
/// Entries that one search looks at.
const MAX_LOOKED_AT: usize = 4096;

/// One bit for each entry of an index.
#[derive(Debug)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(entries: usize) -> Self {
        Self(vec![0; entries.div_ceil(64)])
    }

    fn has(&self, id: u32) -> bool {
        self.0.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Sets a bit. Returns whether it was clear.
    fn set(&mut self, id: u32) -> bool {
        let Some(word) = self.0.get_mut(id as usize / 64) else { return false };
        let before = *word;
        *word |= 1 << (id % 64);
        *word != before
    }
}

/// The opens below a directory.
#[derive(Debug, Default)]
struct Spread {
    /// Files opened below it.
    opens: u32,
    /// Its parts that files were opened of: subdirectories, and its own files as one.
    opened: u32,
    /// All its parts.
    parts: u32,
    /// The child at which to look for further subdirectories.
    next: u32,
}

impl Spread {
    /// Whether the opens are spread over the parts as chance would spread them.
    fn is_even(&self) -> bool {
        if self.opens < MIN_OPENS || self.opened < 2 {
            return false;
        }
        let parts = f64::from(self.parts);
        let expected = parts * (1.0 - (1.0 - 1.0 / parts).powf(f64::from(self.opens)));
        f64::from(self.opened) >= 0.75 * expected
    }
}

/// Directories whose own files may be prefetched: places in the table of directories, and the entry
/// of the first to look at.
#[derive(Clone, Copy, Debug)]
struct Open {
    at: usize,
    end: usize,
    from: u32,
}

/// What is known of the data set before the job opens anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prior {
    /// Nothing.
    Unknown,
    /// Earlier jobs opened a part of it: shuffled opens are no evidence for more.
    Partial,
    /// It is not prefetched by evidence; opens are counted.
    CountOnly,
}

/// What a job has opened of a root, and what may be prefetched for that.
///
/// Fields: 14, one per count or set that a rule of the module needs.
#[derive(Debug)]
pub(crate) struct ReadPattern {
    opened: Bits,
    granted: Bits,
    /// Files opened, and their bytes, each once.
    files: u64,
    bytes: u64,
    /// Bytes granted and not opened yet.
    unopened: u64,
    /// The order of all opens as they are tracked, and the files in it.
    order: ReadOrder,
    tracked: Bits,
    /// The order of demands, which are known earlier.
    demands: ReadOrder,
    /// Directories with files to grant to a job that reads in no order.
    open: VecDeque<Open>,
    spread: HashMap<usize, Spread>,
    /// Directories, by entry, with opens below them, and those granted as a whole without.
    touched: HashSet<u32>,
    added: HashSet<u32>,
    prior: Prior,
    /// Whether nothing is to be granted before the next open.
    is_dry: bool,
}

impl ReadPattern {
    /// Nothing opened yet of an index with this number of entries.
    pub(crate) fn new(entries: usize, prior: Prior) -> Self {
        Self {
            opened: Bits::new(entries),
            granted: Bits::new(entries),
            files: 0,
            bytes: 0,
            unopened: 0,
            order: ReadOrder::default(),
            tracked: Bits::new(entries),
            demands: ReadOrder::default(),
            open: VecDeque::new(),
            spread: HashMap::new(),
            touched: HashSet::new(),
            added: HashSet::new(),
            prior,
            is_dry: true,
        }
    }

    /// Number of files that were opened.
    pub(crate) const fn files(&self) -> u64 {
        self.files
    }

    /// Whether there may be a file to grant.
    pub(crate) const fn has_more(&self) -> bool {
        !self.is_dry
    }

    /// Notes a demand: an open that waits for a copy. It is tracked as well, a moment later.
    pub(crate) fn demanded(&mut self, index: &Index<'_>, id: u32) {
        if self.count(index, id) {
            self.demands.opened(index, id);
        }
    }

    /// Notes an open, in the order in which the job opened files.
    pub(crate) fn opened(&mut self, index: &Index<'_>, id: u32) {
        self.count(index, id);
        let is_file = index.record(id).is_some_and(Record::is_file);
        if is_file && self.prior != Prior::CountOnly && self.tracked.set(id) {
            self.order.opened(index, id);
            self.is_dry = false;
        }
    }

    /// Counts a file that was opened. Returns whether it is the first open of the file, and is
    /// evidence.
    fn count(&mut self, index: &Index<'_>, id: u32) -> bool {
        let Some(record) = index.record(id).filter(|r| r.is_file()) else { return false };
        if !self.opened.set(id) {
            return false;
        }
        if self.granted.has(id) {
            self.unopened = self.unopened.saturating_sub(record.size);
        }
        self.files += 1;
        if self.prior == Prior::CountOnly {
            return false;
        }
        self.bytes = self.bytes.saturating_add(record.size);
        self.note_spread(index, id);
        self.is_dry = false;
        true
    }

    /// How the job reads: by all opens, at first by the demands.
    const fn reading(&self) -> Reading {
        if self.order.is_known() { self.order.reading() } else { self.demands.reading() }
    }

    /// Counts an open for all directories above it.
    fn note_spread(&mut self, index: &Index<'_>, id: u32) {
        let Some(mut at) = index.parent_of(id) else { return };
        let mut is_first = self.open_own(index, at, id);
        while let Some(dir) = index.dir_at(at) {
            let new = || Spread { parts: parts(index, at), ..Spread::default() };
            let spread = self.spread.entry(at).or_insert_with(new);
            spread.opens += 1;
            spread.opened += u32::from(is_first);
            is_first = self.touched.insert(dir.id);
            match index.parent_of(dir.id) {
                Some(up) => at = up,
                None => break,
            }
        }
    }

    /// Lets the own files of a directory be granted, from behind the one that was opened on.
    /// Returns whether this is the first open of one of them.
    fn open_own(&mut self, index: &Index<'_>, at: usize, id: u32) -> bool {
        // (The entry of a directory stands for its own files here: it is never opened itself.)
        if !index.dir_at(at).is_some_and(|dir| self.opened.set(dir.id)) {
            return false;
        }
        self.open.push_back(Open { at, end: at + 1, from: id + 1 });
        self.open.push_back(Open { at, end: at + 1, from: 0 });
        true
    }

    /// The next file to prefetch, of those for which `is_wanted`.
    pub(crate) fn next(&mut self, index: &Index<'_>, is_wanted: impl Fn(u32, &Record) -> bool) -> Option<u32> {
        if self.is_dry || self.prior == Prior::CountOnly {
            self.is_dry = true;
            return None;
        }
        let granted = match self.reading() {
            Reading::InOrder(by) if self.order.is_dense() => self.next_in_order(index, by, &is_wanted),
            Reading::Shuffled if self.prior == Prior::Unknown => {
                self.next_of_open(index, &is_wanted).filter(|&id| self.grant(index, id))
            }
            _ => None,
        };
        self.is_dry = granted.is_none();
        granted
    }

    /// The next file for a job that reads in order.
    fn next_in_order(&mut self, index: &Index<'_>, by: By, is_wanted: impl Fn(u32, &Record) -> bool) -> Option<u32> {
        for _ in 0..MAX_LOOKED_AT {
            let id = self.order.next(index, by)?;
            let is_new = self.is_new(index, id, &is_wanted);
            if is_new && !self.grant(index, id) {
                return None;
            }
            self.order.looked_at(id);
            if is_new {
                return Some(id);
            }
        }
        None
    }

    fn is_new(&self, index: &Index<'_>, id: u32, is_wanted: impl Fn(u32, &Record) -> bool) -> bool {
        !self.opened.has(id)
            && !self.granted.has(id)
            && index.record(id).is_some_and(|r| r.is_file() && is_wanted(id, r))
    }

    /// Bytes that may be granted and not opened.
    fn allowance(&self) -> u64 {
        match self.reading() {
            Reading::Shuffled => self.bytes.saturating_mul(SHUFFLED_FACTOR),
            _ => self.bytes / ORDERED_DIVISOR,
        }
    }

    /// Grants a file, if the allowance suffices.
    fn grant(&mut self, index: &Index<'_>, id: u32) -> bool {
        let size = index.record(id).map_or(0, |r| r.size);
        let sum = self.unopened.saturating_add(size);
        if sum > self.allowance() || !self.granted.set(id) {
            return false;
        }
        self.unopened = sum;
        true
    }

    /// The next file of the directories that may be prefetched.
    fn next_of_open(&mut self, index: &Index<'_>, is_wanted: impl Fn(u32, &Record) -> bool) -> Option<u32> {
        let mut looked = 0;
        loop {
            let Some(mut open) = self.open.front().copied() else {
                if self.add_parts(index) {
                    continue;
                }
                return None;
            };
            let Some(dir) = index.dir_at(open.at).filter(|_| open.at < open.end) else {
                self.open.pop_front();
                continue;
            };
            let from = if open.from > dir.id { open.from } else { 0 };
            let mut found = None;
            for (id, _) in index.children(dir, from) {
                looked += 1;
                if self.is_new(index, id, &is_wanted) {
                    found = Some(id);
                    break;
                }
            }
            match found {
                Some(id) => open.from = id,
                None => (open.at, open.from) = (open.at + 1, 0),
            }
            if let Some(front) = self.open.front_mut() {
                *front = open;
            }
            if found.is_some() || looked > 64 * MAX_LOOKED_AT {
                return found;
            }
        }
    }

    /// Adds subdirectories without opens of directories whose opens are spread evenly. Returns
    /// whether there were any.
    fn add_parts(&mut self, index: &Index<'_>) -> bool {
        let most = MIN_ADDED.max(self.touched.len());
        let mut added = Vec::new();
        for (&at, spread) in self.spread.iter_mut().filter(|(_, spread)| spread.is_even()) {
            let Some(dir) = index.dir_at(at) else { continue };
            for (id, record) in index.children(dir, spread.next) {
                if added.len() >= most {
                    break;
                }
                let Some(child) = index.dir(record) else { continue };
                spread.next = child.end.max(id + 1);
                if !self.touched.contains(&id) && self.added.insert(id) {
                    let from = record.aux as usize;
                    let end = index.dirs().partition_point(|d| d.id < child.end);
                    added.push(Open { at: from, end, from: 0 });
                }
            }
        }
        self.open.extend(&added);
        !added.is_empty()
    }

    /// Lets all files be granted again: of those that were, copies are missing.
    pub(crate) fn rewind(&mut self, index: &Index<'_>) {
        self.granted = Bits::new(index.len());
        (self.unopened, self.is_dry) = (0, self.files == 0);
        self.open.clear();
        self.added.clear();
        self.spread.values_mut().for_each(|spread| spread.next = 0);
        let own = index.dirs().iter().enumerate().filter(|(_, dir)| self.opened.has(dir.id));
        self.open.extend(own.map(|(at, _)| Open { at, end: at + 1, from: 0 }));
    }
}

/// Number of parts of a directory: its subdirectories, and its own files as one.
fn parts(index: &Index<'_>, at: usize) -> u32 {
    let Some(dir) = index.dir_at(at) else { return 0 };
    let (mut dirs, mut own) = (0, 0);
    for (_, r) in index.children(dir, 0) {
        if r.is_dir() {
            dirs += 1;
        } else if r.is_file() {
            own = 1;
        }
    }
    dirs + own
}

#[cfg(test)]
mod tests;
