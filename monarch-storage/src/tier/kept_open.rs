//! [`KeptOpen`]: descriptors of the copies that other nodes ask for again and again.
//!
//! To open a small copy, look at it and close it costs a tenth of what it costs to send it. So the
//! copies that were sent last stay open:
//!
//! * at most [`MAX_KEPT`], none of them larger than [`MAX_KEPT_COPY_BYTES`]: with a larger one the
//!   calls do not count;
//! * the one that was not used for longest, roughly, goes first (second chance: Corbató 1968), and
//!   each goes when it was not used for [`MAX_UNUSED`].
//!
//! No evicted copy stays open here: [`Trash`](super::Trash) has it closed when its name has gone,
//! before it looks whether any process has the file open. One that a thread opened before, and
//! hands in after that, is refused. A file that another program removed or replaced has no link
//! left, and is not used again; its blocks are kept until it is asked for, or for [`MAX_UNUSED`].

use crate::sys::coarse_ms;
use monarch_abi::hash::CopyName;
use rustix::fd::OwnedFd;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most descriptors that are kept, if a process may have eight times as many.
const MAX_KEPT: usize = 1024;
/// The part of the descriptors of a process that a tier keeps.
const DESCRIPTORS_DIVISOR: usize = 8;
/// Largest copy that is kept open.
const MAX_KEPT_COPY_BYTES: u64 = 1 << 20;
/// How long a copy that is not used stays open.
const MAX_UNUSED: Duration = Duration::from_secs(10);

/// A complete copy that is open.
#[derive(Clone, Debug)]
pub struct OpenCopy {
    /// Its descriptor, at no particular offset.
    pub fd: Arc<OwnedFd>,
    /// Its size in bytes.
    pub size: u64,
}

impl OpenCopy {
    /// A copy, by its descriptor.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn of(fd: OwnedFd) -> rustix::io::Result<Self> {
        let size = rustix::fs::fstat(&fd)?.st_size.unsigned_abs();
        Ok(Self { fd: Arc::new(fd), size })
    }
}

/// A descriptor that is kept.
#[derive(Debug)]
struct Kept {
    fd: Arc<OwnedFd>,
    /// When it was used last, in milliseconds of the coarse clock.
    used_ms: u64,
    /// Whether it was used since it came to the front of the queue.
    is_in_use: bool,
}

/// What is kept: the names in `queue` are those in `copies`, each once.
#[derive(Debug, Default)]
struct State {
    copies: HashMap<CopyName, Kept>,
    queue: VecDeque<CopyName>,
    /// Copies that lost their names so far.
    removals: u64,
    /// Whether no more descriptors are kept.
    has_ended: bool,
}

/// How many copies had lost their names when a caller began to open one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Removals(u64);

/// Descriptors of the copies of a tier.
#[derive(Debug)]
pub(super) struct KeptOpen {
    limit: usize,
    state: Mutex<State>,
}

impl KeptOpen {
    /// Keeps as many as this process has descriptors for.
    pub(super) fn new() -> Self {
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let descriptors = descriptors.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        Self::with_limit(MAX_KEPT.min(descriptors / DESCRIPTORS_DIVISOR))
    }

    fn with_limit(limit: usize) -> Self {
        Self { limit, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copy of this name, if it is kept and still has a name.
    ///
    /// # Errors
    /// It is not: what [`KeptOpen::keep`] needs to know if the caller opens it.
    pub(super) fn find(&self, name: CopyName) -> Result<OpenCopy, Removals> {
        let mut state = self.lock();
        let removals = Removals(state.removals);
        let Some(kept) = state.copies.get_mut(&name) else { return Err(removals) };
        kept.used_ms = coarse_ms();
        kept.is_in_use = true;
        let fd = kept.fd.clone();
        drop(state);
        match rustix::fs::fstat(&fd) {
            Ok(st) if st.st_nlink > 0 => Ok(OpenCopy { fd, size: st.st_size.unsigned_abs() }),
            _ => {
                let mut state = self.lock();
                let is_same = state.copies.get(&name).is_some_and(|kept| Arc::ptr_eq(&kept.fd, &fd));
                let closed = is_same.then(|| state.take(name));
                drop(state);
                drop(closed);
                Err(removals)
            }
        }
    }

    /// Keeps a copy that was opened, unless any lost its name since `seen`.
    pub(super) fn keep(&self, name: CopyName, copy: &OpenCopy, seen: Removals) {
        let mut state = self.lock();
        let fits = copy.size <= MAX_KEPT_COPY_BYTES && self.limit > 0 && !state.has_ended;
        if !fits || state.removals != seen.0 || state.copies.contains_key(&name) {
            return;
        }
        let closed = (state.copies.len() >= self.limit).then(|| state.take_unused());
        state.copies.insert(name, Kept { fd: copy.fd.clone(), used_ms: coarse_ms(), is_in_use: false });
        state.queue.push_back(name);
        drop(state);
        drop(closed);
    }

    /// Closes a copy that has lost its name.
    pub(super) fn forget(&self, name: CopyName) {
        let mut state = self.lock();
        state.removals += 1;
        let closed = state.take(name);
        drop(state);
        drop(closed);
    }

    /// Closes what was not used for [`MAX_UNUSED`].
    pub(super) fn close_unused(&self) {
        self.close_unused_at(coarse_ms());
    }

    fn close_unused_at(&self, now_ms: u64) {
        let longest = u64::try_from(MAX_UNUSED.as_millis()).unwrap_or(u64::MAX);
        let mut state = self.lock();
        let State { copies, queue, .. } = &mut *state;
        let is_unused = |_: &CopyName, kept: &mut Kept| now_ms.saturating_sub(kept.used_ms) > longest;
        let closed: Vec<_> = copies.extract_if(is_unused).collect();
        if !closed.is_empty() {
            queue.retain(|name| copies.contains_key(name));
        }
        drop(state);
        drop(closed);
    }

    /// Closes all, and keeps no more.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        state.queue.clear();
        let closed = std::mem::take(&mut state.copies);
        drop(state);
        drop(closed);
    }
}

impl State {
    /// Takes out the copy of this name.
    fn take(&mut self, name: CopyName) -> Option<Kept> {
        let kept = self.copies.remove(&name)?;
        self.queue.retain(|of| *of != name);
        Some(kept)
    }

    /// Takes out a copy that was not used since it came to the front last.
    fn take_unused(&mut self) -> Option<Kept> {
        while let Some(name) = self.queue.pop_front() {
            match self.copies.get_mut(&name) {
                Some(kept) if kept.is_in_use => {
                    kept.is_in_use = false;
                    self.queue.push_back(name);
                }
                _ => return self.copies.remove(&name),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::{TierDir, write_all_at};
    use monarch_abi::hash::PathHash;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    fn name(n: u128) -> CopyName {
        CopyName(n << 100 | 3)
    }

    /// A file that keeps its name for as long as the test needs it.
    fn named() -> (tempfile::NamedTempFile, OpenCopy) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let copy = OpenCopy::of(file.reopen().unwrap().into()).unwrap();
        (file, copy)
    }

    fn is_open_only_here(copy: &OpenCopy) -> bool {
        Arc::strong_count(&copy.fd) == 1
    }

    #[test]
    fn a_copy_that_loses_its_name_while_it_is_opened_is_not_kept() {
        let kept = KeptOpen::with_limit(8);
        let (_file, copy) = named();
        let seen = kept.find(name(1)).unwrap_err();
        kept.forget(name(1));
        kept.keep(name(1), &copy, seen);
        assert!(kept.find(name(1)).is_err() && is_open_only_here(&copy));
        // The next one of the name is another file.
        kept.keep(name(1), &copy, kept.find(name(1)).unwrap_err());
        assert!(Arc::ptr_eq(&kept.find(name(1)).unwrap().fd, &copy.fd));
        kept.forget(name(1));
        assert!(kept.find(name(1)).is_err() && is_open_only_here(&copy));
    }

    #[test]
    fn a_file_that_another_program_removed_is_not_used_again() {
        let kept = KeptOpen::with_limit(8);
        let (file, copy) = named();
        kept.keep(name(1), &copy, kept.find(name(1)).unwrap_err());
        assert!(kept.find(name(1)).is_ok());
        drop(file);
        assert!(kept.find(name(1)).is_err() && is_open_only_here(&copy));
    }

    #[test]
    fn there_are_no_more_descriptors_than_the_limit_and_those_in_use_stay() {
        let kept = KeptOpen::with_limit(3);
        let files: Vec<_> = (0..40).map(|_| named()).collect();
        for (n, (_, copy)) in files.iter().enumerate() {
            let at = name(n as u128);
            kept.keep(at, copy, kept.find(at).unwrap_err());
            assert!(kept.find(name(0)).is_ok(), "it is asked for all the time");
            let state = kept.lock();
            assert_eq!((state.copies.len(), state.queue.len()), ((n + 1).min(3), (n + 1).min(3)));
        }
        assert_eq!(files.iter().filter(|(_, copy)| !is_open_only_here(copy)).count(), 3);
        kept.end();
        assert!(files.iter().all(|(_, copy)| is_open_only_here(copy)));
        kept.keep(name(0), &files[0].1, kept.find(name(0)).unwrap_err());
        assert!(kept.find(name(0)).is_err(), "no more are kept at the end");
    }

    #[test]
    fn what_is_not_used_for_a_while_is_closed() {
        let kept = KeptOpen::with_limit(8);
        let (_file, copy) = named();
        kept.keep(name(1), &copy, kept.find(name(1)).unwrap_err());
        let used_ms = kept.lock().copies[&name(1)].used_ms;
        kept.close_unused_at(used_ms + 10_000);
        assert!(!is_open_only_here(&copy));
        kept.close_unused_at(used_ms + 10_001);
        assert!(is_open_only_here(&copy) && kept.lock().queue.is_empty());
    }

    #[test]
    fn large_copies_are_not_kept_and_a_process_without_descriptors_keeps_none() {
        let (_file, copy) = named();
        let large = OpenCopy { size: MAX_KEPT_COPY_BYTES + 1, ..copy.clone() };
        for (limit, copy) in [(8, &large), (0, &copy)] {
            let kept = KeptOpen::with_limit(limit);
            kept.keep(name(1), copy, kept.find(name(1)).unwrap_err());
            assert!(kept.find(name(1)).is_err());
        }
        drop(large);
        assert!(is_open_only_here(&copy));
    }

    fn tier() -> (tempfile::TempDir, TierDir) {
        let dir = tempfile::tempdir().unwrap();
        let tier = TierDir::open("t", dir.path(), 64 << 20, 0).unwrap();
        tier.recover(|_| {}).unwrap();
        (dir, tier)
    }

    fn publish(tier: &TierDir, name: CopyName, bytes: &[u8]) {
        let file = tier.copies.create(bytes.len() as u64).unwrap().unwrap();
        write_all_at(file.fd(), bytes, 0).unwrap();
        let stamp = name.stamp(PathHash { fp: 1 << 40, check: 5 });
        // (Without a record in the log, which takes room as well.)
        file.publish_passing(name, stamp).unwrap().unwrap();
    }

    fn bytes_of(copy: &OpenCopy) -> Vec<u8> {
        let mut bytes = vec![0; copy.size as usize + 1];
        let got = rustix::io::pread(&copy.fd, &mut bytes, 0).unwrap();
        bytes.truncate(got);
        bytes
    }

    /// Whatever lies below the tier's directory of evicted files.
    fn trashed(tier: &TierDir) -> usize {
        std::fs::read_dir(tier.path.join("trash")).unwrap().count()
    }

    #[test]
    fn a_copy_that_was_sent_is_evicted_at_once_and_the_next_of_its_name_is_sent_in_its_place() {
        let (_dir, tier) = tier();
        let before = tier.space.ledger.usage().used;
        for bytes in [&b"first"[..], b"the second", b"third"] {
            publish(&tier, name(1), bytes);
            for _ in 0..3 {
                let copy = tier.copies.open_shared(name(1)).unwrap();
                assert_eq!((bytes_of(&copy), copy.size), (bytes.to_vec(), bytes.len() as u64));
            }
            let (one, other) = (tier.copies.open_shared(name(1)).unwrap(), tier.copies.open_shared(name(1)).unwrap());
            assert!(Arc::ptr_eq(&one.fd, &other.fd), "it is opened once");
            drop((one, other));
            tier.trash.evict_resident(name(1), bytes.len() as u64);
            assert_eq!((trashed(&tier), tier.space.ledger.usage().used), (0, before));
            assert_eq!(tier.copies.open_shared(name(1)).unwrap_err().kind(), std::io::ErrorKind::NotFound);
        }
        // A copy that is published in the place of another one.
        publish(&tier, name(1), b"fourth");
        assert_eq!(bytes_of(&tier.copies.open_shared(name(1)).unwrap()), b"fourth");
        publish(&tier, name(1), b"fifth");
        assert_eq!(bytes_of(&tier.copies.open_shared(name(1)).unwrap()), b"fifth");
        assert_eq!(trashed(&tier), 0);
    }

    #[test]
    fn a_copy_that_is_being_sent_stays_charged_until_it_was_sent() {
        let (_dir, tier) = tier();
        let before = tier.space.ledger.usage().used;
        publish(&tier, name(1), b"bytes");
        let sent = tier.copies.open_shared(name(1)).unwrap();
        tier.trash.evict_resident(name(1), 5);
        assert_eq!((trashed(&tier), tier.trash.sweep()), (1, 1));
        assert!(tier.space.ledger.usage().used > before);
        assert_eq!(bytes_of(&sent), b"bytes");
        drop(sent);
        assert_eq!((tier.trash.sweep(), tier.space.ledger.usage().used), (0, before));
    }

    #[test]
    fn a_copy_that_another_program_replaced_or_removed_is_not_sent_as_it_was() {
        let (_dir, tier) = tier();
        publish(&tier, name(1), b"bytes");
        drop(tier.copies.open_shared(name(1)).unwrap());
        let path = tier.path.join(str::from_utf8(&name(1).rel_path()).unwrap());
        std::fs::write(tier.path.join("other"), b"others").unwrap();
        std::fs::rename(tier.path.join("other"), &path).unwrap();
        assert_eq!(bytes_of(&tier.copies.open_shared(name(1)).unwrap()), b"others");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(tier.copies.open_shared(name(1)).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }

    #[test]
    fn a_tier_that_the_agent_gives_away_keeps_no_copy_open() {
        for give_away in [TierDir::release, |tier: &TierDir| assert!(tier.remove_all().1.is_ok())] {
            let (_dir, tier) = tier();
            publish(&tier, name(1), b"bytes");
            let copy = tier.copies.open_shared(name(1)).unwrap();
            assert!(!is_open_only_here(&copy));
            give_away(&tier);
            assert!(is_open_only_here(&copy));
        }
    }

    /// Threads send copies while others are evicted and made again: each sends a whole version, and
    /// what was evicted takes no room once it was sent.
    #[test]
    fn evictions_while_copies_are_sent_leave_none_open() {
        let (_dir, tier) = tier();
        let before = tier.space.ledger.usage().used;
        let is_over = AtomicBool::new(false);
        let sent = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        for n in 0..4 {
                            let Ok(copy) = tier.copies.open_shared(name(n)) else { continue };
                            let bytes = bytes_of(&copy);
                            assert!(!bytes.is_empty() && bytes.iter().all(|byte| *byte == bytes[0]));
                            sent.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for turn in 0..500_usize {
                let (at, len) = (name(turn as u128 % 4), 1 + turn % 9);
                publish(&tier, at, &vec![turn as u8; len]);
                let copy = tier.copies.open_shared(at).unwrap();
                assert_eq!(bytes_of(&copy), vec![turn as u8; len]);
                drop(copy);
                tier.trash.evict_resident(at, len as u64);
                assert!(tier.copies.open_shared(at).is_err());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(sent.load(Ordering::Relaxed) > 0);
        assert_eq!((tier.trash.sweep(), tier.space.ledger.usage().used), (0, before));
    }
}
