//! [`PageFollower`]: fetches ahead of processes that read a large file by pages: through a mapping,
//! or a stream of the C library.
//!
//! Such a process has the PFS's file, and the page cache gives it the bytes. The chunks of the copy
//! are read through the page cache as well, so each byte leaves the PFS once, whoever asks for it
//! first. The page cache also tells what the process reads: pages of a chunk that was not fetched
//! are pages that a process has read (cachestat(2)). From there on chunks are fetched
//! ([`PageWindow`]): a reader of all of the file gets it at the rate of the copy, a reader of a
//! part little else.

use crate::sys::cached_pages;
use crate::tiering::copy::chunked_fetch::{ChunkedFetch, ProgressView};
use crate::tiering::copy::chunked_fetches::ChunkedFetches;
use crate::tiering::copy::page_window::PageWindow;
use crate::tiering::copy::paged_fetches::{Handed, PagedFetches};
use crate::tiering::core::context::Context;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Pause between two looks at files that are being read, and at others.
const BUSY_TICK: Duration = Duration::from_millis(2);
const IDLE_TICK: Duration = Duration::from_millis(20);
/// Time without reads after which the file counts as not being read, for the pause between looks.
const BUSY_FOR: Duration = Duration::from_millis(200);
/// Time without reads after which the rest of a file is fetched.
const REST_AFTER: Duration = Duration::from_secs(1);
/// The same where reads cannot be seen.
const UNSEEN_REST_AFTER: Duration = Duration::from_secs(5);
/// Chunks that are looked at in turn, beside those that follow fetched ones.
const MAX_LOOKED_AT: usize = 1024;
/// Chunks that were read through the page cache and are not in it, after which the file counts as
/// one whose pages other processes do not share.
const MAX_MISSING: u32 = 3;

/// A file whose readers are followed.
struct Followed {
    fetch: Arc<ChunkedFetch>,
    held_until: Option<Instant>,
    window: PageWindow,
    /// When pages of it were last found to be read.
    read: Instant,
    /// The next chunk to look at in turn.
    turn: u32,
    /// Whether the page cache is known to hold what the agent reads; how many chunks it did not.
    shares: bool,
    missing: u32,
    /// Words of present chunks when they were last looked at.
    present: Vec<u64>,
    /// Whether reads cannot be seen.
    unseen: bool,
    /// Whether the rest was asked for.
    finishing: bool,
}

impl Followed {
    fn new(handed: Handed) -> Self {
        Self {
            fetch: handed.fetch,
            held_until: handed.held_until,
            window: PageWindow::default(),
            read: Instant::now(),
            turn: 0,
            shares: false,
            missing: 0,
            present: Vec::new(),
            unseen: false,
            finishing: false,
        }
    }
}

/// Follows the readers of all files that are read by pages, in a thread of its own.
pub(crate) struct PageFollower {
    cx: Arc<Context>,
    paged: Arc<PagedFetches>,
    fetches: Arc<ChunkedFetches>,
}

impl PageFollower {
    pub(crate) fn new(cx: &Arc<Context>, paged: &Arc<PagedFetches>, fetches: &Arc<ChunkedFetches>) -> Self {
        Self { cx: cx.clone(), paged: paged.clone(), fetches: fetches.clone() }
    }

    /// Follows readers until the agent stops.
    pub(crate) fn run(&self) {
        let mut all: Vec<Followed> = Vec::new();
        while !self.cx.stop.load(Ordering::Relaxed) {
            let pause = all.iter().map(|f| if f.read.elapsed() < BUSY_FOR { BUSY_TICK } else { IDLE_TICK }).min();
            for handed in self.paged.take(pause) {
                // (A file that is held back is known already when a process maps it.)
                match all.iter_mut().find(|f| Arc::ptr_eq(&f.fetch, &handed.fetch)) {
                    Some(known) => (known.held_until, known.read) = (handed.held_until, Instant::now()),
                    None => all.push(Followed::new(handed)),
                }
            }
            all.retain_mut(|f| self.look(f).is_some());
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.paged.wake();
    }

    /// Looks at a file. `None` once there is nothing more to do for it.
    fn look(&self, f: &mut Followed) -> Option<()> {
        let view = f.fetch.view()?;
        if let Some(until) = f.held_until {
            if Instant::now() < until {
                return Some(());
            }
            self.finish(&f.fetch);
            return None;
        }
        let Some(file) = f.fetch.original() else {
            // The first chunk opens the file.
            if view.in_flight == 0 {
                self.want(&f.fetch, &[0]);
            }
            return Some(());
        };
        let Some(fd) = file.fd() else {
            self.finish(&f.fetch);
            return None;
        };
        if f.present.is_empty() {
            file.share_cache();
            f.present.resize(view.present.len(), 0);
        }
        let seen = self.shares(f, &view, fd.as_fd()) && self.follow(f, &view, fd.as_fd());
        if !seen && !f.unseen {
            f.unseen = true;
            self.cannot_see(&f.fetch);
        }
        let rest_after = if f.unseen { UNSEEN_REST_AFTER } else { REST_AFTER };
        let wants_rest = self.cx.options.prefetch || view.rest_asked;
        if !f.finishing && f.read.elapsed() > rest_after && wants_rest {
            f.finishing = true;
            self.finish(&f.fetch);
        }
        Some(())
    }

    /// Whether other processes share the pages that the agent reads, as far as it is known.
    fn shares(&self, f: &mut Followed, view: &ProgressView, fd: BorrowedFd<'_>) -> bool {
        let new = |(at, (now, before)): (usize, (&u64, &u64))| {
            let bits = now & !before;
            (bits != 0).then(|| (at * 64) as u32 + bits.trailing_zeros())
        };
        let new: Vec<u32> = view.present.iter().zip(&f.present).enumerate().filter_map(new).collect();
        f.present.clone_from(&view.present);
        for chunk in new {
            if f.shares {
                break;
            }
            let range = f.fetch.range(chunk);
            match cached_pages(fd, range.start, range.end - range.start) {
                Ok(0) => f.missing += 1,
                Ok(_) => f.shares = true,
                Err(_) => return false,
            }
        }
        f.shares || f.missing < MAX_MISSING
    }

    /// Fetches ahead of what was read. Returns whether reads can be seen.
    fn follow(&self, f: &mut Followed, view: &ProgressView, fd: BorrowedFd<'_>) -> bool {
        let chunks = f.fetch.large.chunks();
        let is_taken = |chunk: u32| view.taken.get(chunk as usize / 64).is_none_or(|w| w & 1 << (chunk % 64) != 0);
        for chunk in chunks_to_look_at(chunks, &mut f.turn, is_taken) {
            let range = f.fetch.range(chunk);
            match cached_pages(fd, range.start, range.end - range.start) {
                Ok(0) => {}
                Ok(_) => {
                    let before = (0..chunk).rev().take_while(|&c| is_taken(c)).count();
                    f.window.touched(chunk, u32::try_from(before).unwrap_or(u32::MAX), chunks);
                    f.read = Instant::now();
                }
                Err(_) => return false,
            }
        }
        if !view.rest {
            let wanted = f.window.take(view.in_flight, is_taken);
            if !wanted.is_empty() {
                self.want(&f.fetch, &wanted);
            }
        }
        true
    }

    fn want(&self, fetch: &Arc<ChunkedFetch>, chunks: &[u32]) {
        fetch.want(chunks);
        self.fetches.requeue(fetch);
    }

    /// Has the rest of a file fetched.
    fn finish(&self, fetch: &Arc<ChunkedFetch>) {
        fetch.fetch_rest();
        self.fetches.requeue(fetch);
    }

    /// Tells readers of the root that they cannot be followed: mappings to come decide by rates.
    fn cannot_see(&self, fetch: &ChunkedFetch) {
        let root = fetch.file.live.root;
        let bit = u32::try_from(root).ok().and_then(|root| 1u32.checked_shl(root)).unwrap_or(0);
        let before = self.cx.ctl.ctl.unpaged_roots.fetch_or(bit, Ordering::Relaxed);
        if before & bit == 0 {
            let file = crate::shown::bytes(&fetch.file.rel);
            tracing::info!(%file, "what mappings read cannot be seen on this PFS; they wait for copies by rates");
        }
    }
}

/// Chunks that were not fetched, to look at: those behind fetched ones, and others in turn.
fn chunks_to_look_at(chunks: u32, turn: &mut u32, is_taken: impl Fn(u32) -> bool) -> Vec<u32> {
    let open = |&c: &u32| !is_taken(c);
    if chunks as usize <= MAX_LOOKED_AT {
        return (0..chunks).filter(open).collect();
    }
    let mut found: Vec<u32> = (1..chunks).filter(open).filter(|&c| is_taken(c - 1)).take(MAX_LOOKED_AT / 4).collect();
    let from = (*turn).min(chunks);
    let others: Vec<u32> = (from..chunks).chain(0..from).filter(open).take(MAX_LOOKED_AT - found.len()).collect();
    *turn = others.last().map_or(0, |&c| c + 1);
    found.extend(others);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_chunks_of_a_huge_file_are_looked_at_in_turn_and_those_behind_fetched_ones_always() {
        let (chunks, mut turn) = (10_000, 0);
        let is_taken = |c: u32| (5000..5010).contains(&c);
        let mut seen = vec![false; chunks as usize];
        for _ in 0..10 {
            let now = chunks_to_look_at(chunks, &mut turn, is_taken);
            assert!(now.len() <= MAX_LOOKED_AT && now.contains(&5010), "{}", now.len());
            now.iter().for_each(|&c| seen[c as usize] = true);
        }
        assert!((0..chunks).all(|c| seen[c as usize] != is_taken(c)));
        assert_eq!(chunks_to_look_at(4, &mut turn, |c| c == 1), [0, 2, 3]);
    }
}
