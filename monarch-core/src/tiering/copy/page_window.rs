//! [`PageWindow`]: which chunks of a file are fetched ahead of processes that read it by pages.
//!
//! The same idea as the kernel's readahead, a chunk at a time: a process that reads on where chunks
//! were fetched gets a window that is half as long as that run, a process that begins elsewhere a
//! short one. So little is fetched that a reader of a part does not need, and a reader of all of it
//! soon has the rest on its way.

/// Chunks of the first window of a run.
const MIN_WINDOW_CHUNKS: u32 = 2;
/// Longest window of a run that is short for its file, in chunks.
const MAX_WINDOW_CHUNKS: u32 = 64;
/// Part of a file, as a divisor, from which on a run is taken for a reader of all of it.
const WHOLE_READER: u32 = 4;
/// Runs that are remembered: readers of one file at different places.
const MAX_RUNS: usize = 8;
/// Chunks in flight for a short window, and for a long one.
const FEW_IN_FLIGHT: usize = 2;
const MANY_IN_FLIGHT: usize = 4;
/// Length from which a window is a long one, in chunks.
const LONG_WINDOW_CHUNKS: u32 = 8;

/// Chunks to fetch: those from `next` to `end`.
#[derive(Debug)]
struct Run {
    next: u32,
    end: u32,
}

/// The windows of a file's readers.
#[derive(Debug, Default)]
pub(super) struct PageWindow {
    runs: Vec<Run>,
}

impl PageWindow {
    /// Notes that a process has read pages of a chunk that was not fetched. `before` is the number
    /// of chunks in a row before it that were.
    pub(super) fn touched(&mut self, chunk: u32, before: u32, chunks: u32) {
        if self.runs.iter().any(|run| run.next <= chunk && chunk < run.end) {
            return;
        }
        let window = (before / 2).clamp(MIN_WINDOW_CHUNKS, MAX_WINDOW_CHUNKS);
        let is_whole = before >= (chunks / WHOLE_READER).max(LONG_WINDOW_CHUNKS);
        let end = if is_whole { chunks } else { chunk.saturating_add(window).min(chunks) };
        self.runs.retain(|run| run.next < run.end);
        if self.runs.len() >= MAX_RUNS {
            self.runs.remove(0);
        }
        self.runs.push(Run { next: chunk, end });
    }

    /// The chunks to fetch now, beside `in_flight` others. Runs take turns.
    pub(super) fn take(&mut self, in_flight: usize, is_taken: impl Fn(u32) -> bool) -> Vec<u32> {
        let is_long = |run: &Run| run.end - run.next >= LONG_WINDOW_CHUNKS;
        let most = if self.runs.iter().any(is_long) { MANY_IN_FLIGHT } else { FEW_IN_FLIGHT };
        let (mut room, mut chunks) = (most.saturating_sub(in_flight), Vec::new());
        while room > 0 && !self.runs.is_empty() {
            for run in &mut self.runs {
                while run.next < run.end && (is_taken(run.next) || chunks.contains(&run.next)) {
                    run.next += 1;
                }
                if run.next < run.end && room > 0 {
                    chunks.push(run.next);
                    run.next += 1;
                    room -= 1;
                }
            }
            self.runs.retain(|run| run.next < run.end);
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads chunks in order: the chunks that were fetched, and how often the reader came to one
    /// that was not.
    fn read(order: impl IntoIterator<Item = u32>, chunks: u32) -> (u32, u32) {
        let (mut window, mut taken, mut faults) = (PageWindow::default(), vec![false; chunks as usize], 0);
        for chunk in order {
            if !taken[chunk as usize] {
                faults += 1;
                let before = (0..chunk).rev().take_while(|&c| taken[c as usize]).count();
                window.touched(chunk, u32::try_from(before).unwrap(), chunks);
                loop {
                    let next = window.take(0, |c| taken[c as usize]);
                    next.iter().for_each(|&c| taken[c as usize] = true);
                    if next.is_empty() {
                        break;
                    }
                }
            }
        }
        (u32::try_from(taken.iter().filter(|t| **t).count()).unwrap(), faults)
    }

    #[test]
    fn a_reader_of_all_soon_has_the_rest_on_its_way() {
        let (fetched, faults) = read(0..320, 320);
        assert_eq!(fetched, 320);
        assert!(faults <= 12, "{faults}");
        assert_eq!(read(0..3, 3), (3, 2));
    }

    #[test]
    fn a_reader_of_parts_gets_little_more_than_these() {
        let parts = [3, 11, 19, 27, 35].map(|tensor| tensor * 8..tensor * 8 + 9);
        let (fetched, _) = read(parts.into_iter().flatten(), 320);
        assert!((45..=60).contains(&fetched), "{fetched} of 45");
        assert_eq!(read([7], 320).0, 2, "one page");
    }

    #[test]
    fn readers_at_several_places_take_turns_within_the_bound() {
        let mut window = PageWindow::default();
        window.touched(0, 0, 100);
        window.touched(50, 0, 100);
        assert_eq!(window.take(1, |_| false), [0], "one is in flight");
        assert_eq!(window.take(0, |_| false), [1, 50]);
        assert_eq!(window.take(0, |c| c == 51), [0u32; 0]);
        window.touched(20, 20, 100);
        window.touched(22, 0, 100);
        assert_eq!(window.take(0, |_| false), [20, 21, 22, 23], "a long window");
        (0..30).for_each(|at| window.touched(30 + at * 2, 0, 100));
        assert!(window.runs.len() <= MAX_RUNS);
    }
}
