//! What this node has of a file: demanded as a reader would, waited for, opened.
//!
//! Complete copies are sent from their file. Of a large file that is being copied the chunks that
//! are there are read into memory, under the same checks before and after as a reader's: they may
//! go any moment.

use super::checksum_table::ChecksumTable;
use super::store::Store;
use super::traffic_stats::TrafficStats;
use super::wait_graph::Waits;
use crate::directory::Local;
use crate::tag::{Tag, TagKey, Tagger};
use monarch_abi::chunks::{DropSnapshot, LargeFile};
use monarch_abi::demand::{self, Life, Outcome, Watch};
use monarch_abi::resolve::Found;
use monarch_abi::segment::Entry;
use monarch_abi::word::{Refusal, State, Word};
use monarch_storage::sharing::{FileRef, LocalStore, ServedIndex};
use rustix::fd::OwnedFd;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::Xxh3;

/// Most bytes of a copy that are read at a time for its checksum.
const CHECKSUM_BLOCK_BYTES: usize = 1 << 20;
/// How long a relay waits for chunks whose receipt is out: they are published a moment later.
const PUBLISH_TIMEOUT: Duration = Duration::from_millis(500);
/// How often it looks, unless it is woken.
const PUBLISH_POLL_NS: i64 = 10_000_000;

/// A file of an index that this node serves.
pub(super) struct LocalFile {
    served: ServedIndex,
    entry: Entry<'static>,
    file: FileRef,
}

/// Bytes that can be sent.
pub(super) enum Bytes {
    /// Of a complete copy.
    Copy(Arc<OwnedFd>),
    /// As they were read.
    Read(Vec<u8>),
}

/// The agent waits for itself: it is alive.
struct Inside;

impl Watch for Inside {
    fn now_us(&self) -> u64 {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        t.tv_sec.unsigned_abs() * 1_000_000 + t.tv_nsec.unsigned_abs() / 1000
    }
    fn agent(&self) -> Life {
        Life::Alive
    }
}

impl LocalFile {
    fn found(&self) -> Found<'_> {
        Found { root: self.served.root, number: self.served.number, segment: &self.served.segment, entry: self.entry }
    }

    /// The file as the nodes know it.
    pub(super) const fn file(&self) -> &FileRef {
        &self.file
    }

    /// Its entry in the index.
    pub(super) const fn entry(&self) -> &Entry<'static> {
        &self.entry
    }

    /// Its size in bytes, by the index.
    pub(super) fn size(&self) -> u64 {
        self.entry.record.size
    }

    /// Whether there is a complete copy.
    pub(super) fn is_complete(&self) -> bool {
        self.entry.word().state() == State::Resident
    }

    fn is_under_way(&self) -> bool {
        matches!(self.entry.word().state(), State::Requested | State::Fetching | State::Partial)
    }

    fn large(&self) -> Option<LargeFile<'static>> {
        self.served.segment.state.large(self.entry.master.id)
    }

    /// Whether an offset is inside of a chunk, by this node's size of chunks.
    pub(super) fn continues_chunk(&self, start: u64) -> bool {
        self.large().and_then(|large| start.checked_rem(large.chunk)).is_some_and(|within| within != 0)
    }

    /// Whether this node has some bytes of the file.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        let has_chunks = |large: LargeFile<'_>| {
            let (from, last) = (large.at(range.start), large.at(range.end.saturating_sub(1)));
            (from..=last).all(|chunk| large.has(chunk))
        };
        match self.entry.word().state() {
            State::Resident => true,
            State::Partial => self.large().is_some_and(has_chunks),
            _ => false,
        }
    }

    /// How far this node is with the file.
    pub(super) fn standing(&self, waits: &Waits) -> Local {
        let word = self.entry.word();
        match word.state() {
            State::Resident => Local::Resident,
            State::Partial if self.large().is_some_and(|l| l.is_streamed()) => Local::NoRoom,
            State::Requested | State::Fetching | State::Partial => Local::Coming(waits.source(&self.file)),
            _ if word.packed_in().is_some() => Local::Resident,
            State::Bypass if word.is_changed() => Local::Changed,
            // This node could not read it, or finds another file in its place: its mount may be to
            // blame. The asker looks for itself.
            State::Bypass => Local::NoRoom,
            State::Refused if word.refusal() != Some(Refusal::Replaced) => Local::NoRoom,
            _ => Local::Absent,
        }
    }

    /// Has the file not fetched any more if no copier has taken it up: the asker gets it elsewhere.
    pub(super) fn cancel_request(&self) {
        let (word, slot) = (self.entry.word(), &self.entry.master.word);
        if word.state() == State::Requested {
            let to = word.next(State::Absent);
            if slot.compare_exchange(word.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                monarch_abi::sys::futex_wake(slot, u32::MAX >> 1);
            }
        }
    }
}

/// What is taken of bytes in one go.
struct Digests {
    /// XXH3, by which this node knows its copies.
    sum: u64,
    /// What other nodes go by.
    tag: Tag,
}

/// The copies of this node, their checksums and tags.
pub(super) struct LocalCopies {
    store: Arc<Store>,
    sums: Arc<ChecksumTable>,
    tags: TagKey,
    traffic: Arc<TrafficStats>,
    /// How long a file that waits in line is waited for.
    patience: Duration,
}

impl LocalCopies {
    /// Copies in `store`; a file that waits in line is waited for no longer than `patience`.
    pub(super) fn new(
        store: Arc<Store>,
        (sums, tags): (Arc<ChecksumTable>, TagKey),
        traffic: Arc<TrafficStats>,
        patience: Duration,
    ) -> Self {
        Self { store, sums, tags, traffic, patience }
    }

    /// A file that a request names.
    pub(super) fn find(&self, index: [u8; 16], id: u32) -> Option<LocalFile> {
        let served = self.store.served_index(&index)?;
        let entry = served.segment.by_id(id)?;
        // What a directory or a link is, the index of the other node says as well.
        entry.record.is_file().then_some(())?;
        let file = FileRef::of(&served.segment, &entry);
        Some(LocalFile { served, entry, file })
    }

    /// Some bytes of a file, fetched if need be. `Err(None)` when there is no room for it, or it
    /// could not be had now. Blocks.
    pub(super) fn bytes(&self, here: &LocalFile, range: &Range<u64>) -> Result<Bytes, Option<io::Error>> {
        let store = self.store.get().ok_or(None)?;
        let until = Instant::now() + self.patience;
        let mut tries = 0;
        while tries < demand::TRIES {
            let found = here.found();
            demand::raise(store.control(), &found);
            match demand::wait(store.control(), &found, &Inside) {
                Outcome::Resident(word) => {
                    if let Some(fd) = self.open(here, word) {
                        return Ok(Bytes::Copy(fd));
                    }
                }
                Outcome::Partial(word) => {
                    if let Some(bytes) = chunks(&*store, here, word, range).map_err(Some)? {
                        return Ok(Bytes::Read(bytes));
                    }
                }
                // It waits in line: the asker would only do the same at the PFS.
                Outcome::Deadline if here.is_under_way() && Instant::now() < until => continue,
                Outcome::Refused(_) | Outcome::Deadline => return Err(None),
            }
            tries += 1;
        }
        Err(None)
    }

    /// Some bytes of a file that is here or is being published; it is not fetched for them. `None`
    /// when they are not here. Blocks for a moment.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) fn present(&self, here: &LocalFile, range: &Range<u64>) -> Option<io::Result<Bytes>> {
        let store = self.store.get()?;
        let until = Instant::now() + PUBLISH_TIMEOUT;
        loop {
            if let Some(copy) = self.copy(here) {
                return Some(Ok(copy));
            }
            let (large, word) = (here.large()?, here.entry.word());
            let (seen, tick) = (large.drop_snapshot(word), large.head.tick.load(Ordering::Acquire));
            let (from, end) = (large.at(range.start), large.at(range.end.saturating_sub(1)) + 1);
            if word.state() == State::Partial && (from..end).all(|chunk| large.has(chunk)) {
                // (Otherwise it was completed or dropped meanwhile.)
                if let Some(read) = read_chunks(&*store, here, word, seen, range).transpose() {
                    return Some(read.map(Bytes::Read));
                }
            }
            let may_come = matches!(word.state(), State::Partial | State::Resident);
            if !may_come || Instant::now() >= until {
                return None;
            }
            monarch_abi::sys::futex_wait(&large.head.tick, tick, Some([0, PUBLISH_POLL_NS]));
        }
    }

    /// A complete copy, if there is one now.
    pub(super) fn copy(&self, here: &LocalFile) -> Option<Bytes> {
        let word = here.entry.word();
        let is_there = word.state() == State::Resident;
        is_there.then(|| self.open(here, word)).flatten().map(Bytes::Copy)
    }

    fn open(&self, here: &LocalFile, word: Word) -> Option<Arc<OwnedFd>> {
        let segment = &here.served.segment;
        let copy = self.store.get()?.open_copy(word.tier(), segment.copy_name(&here.entry))?;
        // Used, for the policy that picks what is dropped first.
        if word.is_watched() {
            segment.state.touch(here.entry.master.id);
        }
        (copy.size == here.size()).then_some(copy.fd)
    }

    /// The checksum of some bytes, if it is known.
    fn known_sum(&self, here: &LocalFile, range: &Range<u64>) -> Option<u64> {
        self.sums.get(&here.file, part(range), here.size())
    }

    /// Whether the tag of some bytes was made.
    pub(super) fn knows_tag(&self, here: &LocalFile, range: &Range<u64>) -> bool {
        self.sums.tag(&here.file, part(range)).is_some()
    }

    /// The tag of some bytes, which is made when they are first sent.
    ///
    /// # Errors
    /// They cannot be read, or are not those that came from the PFS.
    pub(super) fn tag(&self, here: &LocalFile, range: &Range<u64>, bytes: &Bytes) -> io::Result<Tag> {
        if let Some(tag) = self.sums.tag(&here.file, part(range)) {
            return Ok(tag);
        }
        let (word, known) = (here.entry.word(), self.known_sum(here, range));
        let digests = match bytes {
            Bytes::Read(bytes) => self.digests(here, range, bytes),
            Bytes::Copy(fd) => {
                // A tag of damaged bytes would not show that they are damaged.
                if known.is_none() && !self.is_whole_sound(here, fd)? {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                self.digests_of(here, range, fd)?
            }
        };
        if known.is_some_and(|known| known != digests.sum) {
            if let Bytes::Copy(_) = bytes {
                self.drop_damaged(here, word);
            }
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.sums.note_tag(&here.file, part(range), digests.tag);
        Ok(digests.tag)
    }

    fn begin_digests(&self, here: &LocalFile, range: &Range<u64>) -> (Xxh3, Tagger) {
        (Xxh3::new(), self.tags.of_file(here.file.index, here.file.id, range))
    }

    fn digests(&self, here: &LocalFile, range: &Range<u64>, bytes: &[u8]) -> Digests {
        let (mut sum, mut tag) = self.begin_digests(here, range);
        sum.update(bytes);
        tag.update(bytes);
        Digests { sum: sum.digest(), tag: tag.finish() }
    }

    fn digests_of(&self, here: &LocalFile, range: &Range<u64>, copy: &OwnedFd) -> io::Result<Digests> {
        let (mut sum, mut tag) = self.begin_digests(here, range);
        each_block(copy, range, |block| {
            sum.update(block);
            tag.update(block);
        })?;
        Ok(Digests { sum: sum.digest(), tag: tag.finish() })
    }

    /// Whether the copy of a file that is not large is what it was when it came; one that is not is
    /// dropped. Once for each copy, and by all that ask before the first has found out: none of
    /// them may have a part of it. (The chunks of large files are summed as they come.)
    fn is_whole_sound(&self, here: &LocalFile, copy: &OwnedFd) -> io::Result<bool> {
        let all = 0..here.size();
        let Some(whole) = self.known_sum(here, &all).filter(|_| here.large().is_none()) else { return Ok(true) };
        if self.sums.is_compared(&here.file) {
            return Ok(true);
        }
        if sum_of(copy, &all)? == whole {
            self.sums.note_compared(&here.file);
            return Ok(true);
        }
        self.drop_damaged(here, here.entry.word());
        Ok(false)
    }

    /// Whether some bytes of a copy still have the checksum that was noted when they came, or the
    /// tag that they were sent with, or the copy is what the log of its tier says; `None` if none
    /// of these is known, or they cannot be read.
    pub(super) fn is_sound(&self, here: &LocalFile, range: &Range<u64>, copy: &OwnedFd) -> Option<bool> {
        let (sum, tag) = (self.known_sum(here, range), self.sums.tag(&here.file, part(range)));
        if sum.is_none() && tag.is_none() {
            return self.store.get()?.is_as_logged(&here.served, &here.entry);
        }
        let now = self.digests_of(here, range, copy).ok()?;
        Some(sum.is_none_or(|sum| sum == now.sum) && tag.is_none_or(|tag| tag == now.tag))
    }

    /// Drops a copy that is damaged and has the file fetched again; `false` if it is another copy
    /// than that of the word `seen` by now.
    pub(super) fn drop_damaged(&self, here: &LocalFile, seen: Word) -> bool {
        let Some(store) = self.store.get() else { return false };
        if !store.drop_damaged(&here.served, &here.entry, seen) {
            return false;
        }
        self.traffic.found_damaged.fetch_add(1, Ordering::Relaxed);
        // Some may have been taken from the copy itself.
        self.sums.forget_parts(&here.file);
        store.fetch_again(&here.served, &here.entry);
        true
    }
}

/// Chunks of a file that is being fetched; `None` when something else has become of it meanwhile.
fn chunks(store: &dyn LocalStore, here: &LocalFile, word: Word, range: &Range<u64>) -> io::Result<Option<Vec<u8>>> {
    // (What is streamed is for readers of this node. Chunks in the window are not seen here.)
    let Some(large) = here.large().filter(|large| !large.is_streamed()) else { return Ok(None) };
    let found = here.found();
    let seen = large.drop_snapshot(word);
    let (from, end) = (large.at(range.start), large.at(range.end.saturating_sub(1)) + 1);
    demand::want_chunks(store.control(), &found, &large, from, end);
    for chunk in from..end {
        if !demand::wait_chunk(store.control(), &found, &large, seen, chunk, &Inside) {
            return Ok(None);
        }
    }
    read_chunks(store, here, word, seen, range)
}

/// Reads chunks that are there; `None` when they have gone since `seen`.
fn read_chunks(
    store: &dyn LocalStore,
    here: &LocalFile,
    word: Word,
    seen: DropSnapshot,
    range: &Range<u64>,
) -> io::Result<Option<Vec<u8>>> {
    let Some(large) = here.large() else { return Ok(None) };
    let number = large.head.part.load(Ordering::Acquire);
    let Some(part) = store.open_part(word.tier(), number) else { return Ok(None) };
    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(&part, &mut bytes[done..], range.start + done as u64) {
            Ok(0) => return Ok(None),
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(seen.still_holds(&large, &here.entry.master.word).then_some(bytes))
}

/// A range as the table names it.
const fn part(range: &Range<u64>) -> (u64, u64) {
    (range.start, range.end - range.start)
}

fn sum_of(fd: &OwnedFd, range: &Range<u64>) -> io::Result<u64> {
    let mut hash = Xxh3::new();
    each_block(fd, range, |block| hash.update(block))?;
    Ok(hash.digest())
}

/// Reads a part of a file in blocks.
fn each_block(fd: &OwnedFd, range: &Range<u64>, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let block = usize::try_from(range.end - range.start).unwrap_or(CHECKSUM_BLOCK_BYTES);
    let mut buf = vec![0; block.clamp(1, CHECKSUM_BLOCK_BYTES)];
    let mut off = range.start;
    while off < range.end {
        let n = usize::try_from(range.end - off).unwrap_or(usize::MAX).min(buf.len());
        match rustix::io::pread(fd, &mut buf[..n], off) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => {
                take(&buf[..got]);
                off += got as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_checksum_of_a_part_is_that_of_its_bytes_and_a_short_file_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..CHECKSUM_BLOCK_BYTES + 4096).map(|n| n as u8).collect();
        file.write_all(&bytes).unwrap();
        let fd = OwnedFd::from(file);
        for range in [0..bytes.len(), 4096..8192, 7..CHECKSUM_BLOCK_BYTES + 9] {
            let sum = sum_of(&fd, &(range.start as u64..range.end as u64)).unwrap();
            assert_eq!(sum, xxhash_rust::xxh3::xxh3_64(&bytes[range]));
        }
        let beyond = sum_of(&fd, &(0..bytes.len() as u64 + 1)).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    }
}
