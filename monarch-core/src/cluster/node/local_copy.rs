//! What this node has of a file: asked for as a reader would, waited for, opened.
//!
//! Complete copies are sent from their file. Of a large one that is being made the chunks that are
//! there are read into memory, under the same looks before and after as a reader's: they may go any
//! moment.

use super::wait_graph::Waits;
use super::{FileRef, Node};
use crate::cluster::directory::Local;
use crate::tiering::LiveSegment;
use monarch_abi::chunks::LargeFile;
use monarch_abi::demand::{self, Life, Outcome, Watch};
use monarch_abi::resolve::Found;
use monarch_abi::segment::Entry;
use monarch_abi::word::{Refusal, State, Word};
use rustix::fd::OwnedFd;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A file of an index that this node serves.
pub(super) struct Here {
    number: usize,
    live: LiveSegment,
    pub(super) entry: Entry<'static>,
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

impl Here {
    fn found(&self) -> Found<'_> {
        Found { root: self.live.root(), number: self.number, segment: &self.live.segment, entry: self.entry }
    }

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
        self.live.segment.state.large(self.entry.master.id)
    }
}

impl Node {
    /// A file that a request names.
    pub(super) fn here(&self, index: [u8; 16], id: u32) -> Option<(Here, FileRef)> {
        let (number, live) = self.tiering()?.segments.segment_of(index)?;
        let entry = live.segment.by_id(id)?;
        // What a directory or a link is, the index of the other node says as well.
        entry.record.is_file().then_some(())?;
        let file = live.file_ref(&entry);
        Some((Here { number, live, entry }, file))
    }

    /// How far this node is with a file.
    pub(super) fn standing(here: &Here, file: &FileRef, waits: &Waits) -> Local {
        let word = here.entry.word();
        match word.state() {
            State::Resident => Local::Resident,
            State::Partial if here.large().is_some_and(|l| l.is_streamed()) => Local::NoRoom,
            State::Requested | State::Fetching | State::Partial => Local::Coming(waits.source(file)),
            _ if word.packed_in().is_some() => Local::Resident,
            State::Bypass if word.is_changed() => Local::Changed,
            // This node could not read it, or finds another file in its place: its mount may be to
            // blame. Who asks looks for itself.
            State::Bypass => Local::NoRoom,
            State::Refused if word.refusal() != Some(Refusal::Replaced) => Local::NoRoom,
            _ => Local::Absent,
        }
    }

    /// Some bytes of a file, fetched if need be. `Err(None)` when there is no room for it, or it
    /// could not be had now. Blocks.
    pub(super) fn bytes(&self, here: &Here, range: &Range<u64>) -> Result<Bytes, Option<io::Error>> {
        let tiering = self.tiering().ok_or(None)?;
        let until = Instant::now() + self.options.peer_timeout;
        let mut tries = 0;
        while tries < demand::TRIES {
            let found = here.found();
            demand::raise(&tiering.cx.ctl, &found);
            match demand::wait(&tiering.cx.ctl, &found, &Inside) {
                Outcome::Resident(word) => {
                    if let Some(fd) = self.open(here, word) {
                        return Ok(Bytes::Copy(Arc::new(fd)));
                    }
                }
                Outcome::Partial(word) => {
                    if let Some(bytes) = self.chunks(here, word, range).map_err(Some)? {
                        return Ok(Bytes::Read(bytes));
                    }
                }
                // It waits in line: the one who asks would only do the same at the PFS.
                Outcome::Deadline if here.is_under_way() && Instant::now() < until => continue,
                Outcome::Refused(_) | Outcome::Deadline => return Err(None),
            }
            tries += 1;
        }
        Err(None)
    }

    /// What nobody has taken up is not fetched any more: who asked gets it elsewhere.
    pub(super) fn call_off(&self, here: &Here) {
        let (word, slot) = (here.entry.word(), &here.entry.master.word);
        if word.state() == State::Requested {
            let to = word.next(State::Absent);
            if slot.compare_exchange(word.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                monarch_abi::sys::futex_wake(slot, u32::MAX >> 1);
            }
        }
    }

    /// A complete copy, if there is one now.
    pub(super) fn copy(&self, here: &Here) -> Option<Bytes> {
        let word = here.entry.word();
        let is_there = word.state() == State::Resident;
        is_there.then(|| self.open(here, word)).flatten().map(|fd| Bytes::Copy(Arc::new(fd)))
    }

    fn open(&self, here: &Here, word: Word) -> Option<OwnedFd> {
        let tier = self.tiering()?.cx.tiers.get(word.tier())?;
        let fd = tier.open_copy(here.live.segment.copy_name(&here.entry)).ok()?;
        let st = rustix::fs::fstat(&fd).ok()?;
        // Used, for those who choose what makes way.
        if word.is_watched() {
            here.live.segment.state.touch(here.entry.master.id);
        }
        (st.st_size.unsigned_abs() == here.size()).then_some(fd)
    }

    /// Chunks of a file that is being fetched; `None` when something else has become of it
    /// meanwhile.
    fn chunks(&self, here: &Here, word: Word, range: &Range<u64>) -> io::Result<Option<Vec<u8>>> {
        let (Some(tiering), Some(large)) = (self.tiering(), here.large()) else { return Ok(None) };
        let found = here.found();
        let seen = large.drop_snapshot(word);
        let (from, end) = (large.at(range.start), large.at(range.end.saturating_sub(1)) + 1);
        demand::want_chunks(&tiering.cx.ctl, &found, &large, from, end);
        for chunk in from..end {
            if !demand::wait_chunk(&tiering.cx.ctl, &found, &large, seen, chunk, &Inside) {
                return Ok(None);
            }
        }
        let Some(tier) = tiering.cx.tiers.get(word.tier()) else { return Ok(None) };
        let Ok(part) = tier.read_part(large.head.part.load(Ordering::Acquire)) else { return Ok(None) };
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

    /// Whether it is known what some bytes come to.
    pub(super) fn knows_sum(&self, here: &Here, file: &FileRef, range: &Range<u64>) -> bool {
        self.sums.get(file, (range.start, range.end - range.start), here.size()).is_some()
    }

    /// What some bytes come to, as was noted when they came from the PFS; else as they are.
    pub(super) fn sum(&self, here: &Here, file: &FileRef, range: &Range<u64>, bytes: &Bytes) -> io::Result<u64> {
        let part = (range.start, range.end - range.start);
        if let Some(sum) = self.sums.get(file, part, here.size()) {
            return Ok(sum);
        }
        let sum = match bytes {
            Bytes::Read(bytes) => xxhash_rust::xxh3::xxh3_64(bytes),
            Bytes::Copy(fd) => {
                // A part of a copy whose whole is known: nobody could tell by a sum of damaged
                // bytes that they are.
                if !self.checked(here, file, fd)? {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                sum_of(fd, range)?
            }
        };
        self.sums.note_part(file, part, sum);
        Ok(sum)
    }

    /// Whether the copy of a file that is not large is what it was when it came; one that is not
    /// goes. Once for each copy, and by all who ask before the first has found out: none of
    /// them may have a part of it. (Of large ones the chunks are summed as they come.)
    fn checked(&self, here: &Here, file: &FileRef, copy: &OwnedFd) -> io::Result<bool> {
        let whole = self.sums.get(file, (0, here.size()), here.size());
        let Some(whole) = whole.filter(|_| here.large().is_none()) else { return Ok(true) };
        if self.sums.is_compared(file) {
            return Ok(true);
        }
        if sum_of(copy, &(0..here.size()))? == whole {
            self.sums.note_compared(file);
            return Ok(true);
        }
        self.drop_damaged(here, file, here.entry.word());
        Ok(false)
    }

    /// Whether some bytes of a copy are still what was noted when they came, or the copy what the
    /// log of its tier says; `None` if nobody knows what they should be, or they cannot be
    /// read.
    pub(super) fn is_sound(&self, here: &Here, file: &FileRef, range: &Range<u64>, copy: &OwnedFd) -> Option<bool> {
        let noted = self.sums.get(file, (range.start, range.end - range.start), here.size());
        match noted {
            Some(sum) => sum_of(copy, range).ok().map(|now| now == sum),
            None => self.tiering()?.cx.is_as_logged(&here.live, &here.entry),
        }
    }

    /// Drops a copy that is damaged and has the file fetched again; `false` if it is another copy
    /// by now.
    pub(super) fn drop_damaged(&self, here: &Here, file: &FileRef, seen: Word) -> bool {
        let Some(tiering) = self.tiering() else { return false };
        let key = demand::file_key(here.number, here.entry.master.id);
        if !tiering.scrubber.drop_found_damaged(key, &here.live, &here.entry, seen) {
            return false;
        }
        // Some may have been taken from the copy itself.
        self.sums.forget_parts(file);
        tiering.refetch.make_again(key);
        true
    }

    /// Whether this node has more to do than it should, so that others who have a file had better
    /// send it.
    pub(super) fn is_busy(&self) -> bool {
        self.answering.load(Ordering::Relaxed) > self.options.busy
    }
}

fn sum_of(fd: &OwnedFd, range: &Range<u64>) -> io::Result<u64> {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    let mut buf = vec![0; usize::try_from(range.end - range.start).unwrap_or(1 << 20).clamp(1, 1 << 20)];
    let mut off = range.start;
    while off < range.end {
        let n = usize::try_from(range.end - off).unwrap_or(usize::MAX).min(buf.len());
        match rustix::io::pread(fd, &mut buf[..n], off) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => {
                hash.update(&buf[..got]);
                off += got as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(hash.digest())
}
