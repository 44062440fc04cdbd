//! [`EngineTrials`]: measures which copy engine is the better one for a mount.
//!
//! Where the configuration leaves the choice, both engines take turns at the files and chunks of a
//! mount until elapsed time and processor time have decided. A turn is a number of files (or
//! chunks) given out. The same number is in flight in every turn, so that an engine gets the next
//! one only as it finishes one. What is still in flight of the turn before is little against a
//! whole turn, and the order of the turns makes it the same for both.

use crate::engine::Source;
use crate::sync::lock;
use crate::tiering::core::lane::Lane;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Files in a turn.
const TURN_FILES: u32 = 512;
/// Chunks in a turn.
const TURN_CHUNKS: u32 = 64;
/// The order of the turns: the engine that is expected to be better (`true`), or the other. The
/// first turn does not count, as caches, connections and threads do not exist yet. A steady drift
/// of the load cancels out over the other four.
const TURNS: [bool; 5] = [true, true, false, false, true];
/// After a longer pause between two files a turn starts again: the pause says nothing about the
/// engine.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Turns that pauses may spoil before the trial is given up.
const MAX_SPOILED_TURNS: u32 = 8;
/// Two times whose ratio is within this factor are equal: then processor time decides.
const SAME_FACTOR: f64 = 1.1;
/// Bytes that count as one more file.
const UNIT_BYTES: u64 = 64 << 10;
/// Flag in [`Trial::now`]: the trial is over.
const OVER: u8 = 2;

/// The kinds of work that are measured apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Whole files.
    Files,
    /// Chunks of large files that stay.
    Chunks,
    /// Chunks that are streamed through the window of a tier: few at a time, at the pace of their
    /// readers. What is quick in bulk says nothing about them.
    Streamed,
}

/// The trials of a mount.
#[derive(Debug)]
pub(crate) struct Mount {
    files: Trial,
    chunks: Trial,
    streamed: Trial,
}

impl Mount {
    /// Expects rings to be better for files where the PFS reads without a thread of the kernel:
    /// elsewhere each call occupies such a thread anyhow, and our own threads spare the way there
    /// and back. Expects them to be better for chunks if these are also read past the page cache
    /// (docs/PERFORMANCE.md).
    fn new(source: &dyn Source, direct: bool) -> Self {
        let expected = |rings| if rings { Lane::Rings } else { Lane::Threads };
        let local = source.keeps_nowait();
        Self {
            files: Trial::new(expected(local), TURN_FILES),
            chunks: Trial::new(expected(local && direct), TURN_CHUNKS),
            streamed: Trial::new(expected(local && direct), TURN_CHUNKS),
        }
    }

    /// The trial of a kind of work.
    pub(crate) const fn trial(&self, kind: Kind) -> &Trial {
        match kind {
            Kind::Files => &self.files,
            Kind::Chunks => &self.chunks,
            Kind::Streamed => &self.streamed,
        }
    }
}

/// The trials of all mounts, by device number.
#[derive(Debug, Default)]
pub(crate) struct EngineTrials(Mutex<HashMap<u64, Arc<Mount>>>);

impl EngineTrials {
    /// The trials of the mount with this device number; made when it is first seen.
    pub(crate) fn of(&self, device: u64, source: &dyn Source, direct: bool) -> Arc<Mount> {
        lock(&self.0).entry(device).or_insert_with(|| Arc::new(Mount::new(source, direct))).clone()
    }
}

/// A change of the trial, caused by a file or chunk that was given out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    /// The turn of the other engine begins.
    Turn(Lane),
    /// The trial is over: the engine that won, and rings against threads.
    Measured(Lane, EngineRatios),
}

/// Elapsed time and processor time of rings, divided by those of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EngineRatios {
    pub(crate) time: f64,
    pub(crate) processor: f64,
}

impl EngineRatios {
    fn better(self) -> Lane {
        let rings = match self.time {
            quick if quick < 1.0 / SAME_FACTOR => true,
            slow if slow > SAME_FACTOR => false,
            _ => self.processor < 1.0,
        };
        if rings { Lane::Rings } else { Lane::Threads }
    }
}

impl std::fmt::Display for EngineRatios {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { time, processor } = self;
        write!(f, "uring takes {time:.2} of the time and {processor:.2} of the processor time of threads")
    }
}

/// Sums over the turns of one engine.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    units: u64,
    time: Duration,
    processor: Duration,
}

#[derive(Debug)]
enum Progress {
    /// The index of the turn in [`TURNS`].
    Turn(usize),
    Measured(EngineRatios),
    GivenUp,
}

#[derive(Debug)]
struct Turns {
    progress: Progress,
    given: u32,
    units: u64,
    /// When the turn began, and the agent's processor time then.
    begun: Option<(Instant, Duration)>,
    last: Instant,
    spoiled: u32,
    sums: [Sum; 2],
}

/// The trial of one kind of work on one mount.
#[derive(Debug)]
pub(crate) struct Trial {
    expected: Lane,
    length: u32,
    /// The lane whose turn it is, or that won, and [`OVER`]. Read with every file.
    now: AtomicU8,
    turns: Mutex<Turns>,
}

impl Trial {
    fn new(expected: Lane, length: u32) -> Self {
        let turns = Turns {
            progress: Progress::Turn(0),
            given: 0,
            units: 0,
            begun: None,
            last: Instant::now(),
            spoiled: 0,
            sums: [Sum::default(); 2],
        };
        Self { expected, length, now: AtomicU8::new(expected as u8), turns: Mutex::new(turns) }
    }

    /// The lane whose turn it is, or that won.
    pub(crate) fn lane(&self) -> Lane {
        if self.now.load(Ordering::Relaxed) & !OVER == Lane::Rings as u8 { Lane::Rings } else { Lane::Threads }
    }

    /// Why it is that lane, in words.
    pub(crate) fn why(&self) -> String {
        match lock(&self.turns).progress {
            Progress::Turn(_) => "not measured yet".to_owned(),
            Progress::Measured(ratios) => format!("measured: {ratios}"),
            Progress::GivenUp => "could not be measured: too many pauses".to_owned(),
        }
    }

    /// Notes that a file or chunk of `bytes` bytes was given out to `lane` at `now`. `processor`
    /// returns the agent's processor time.
    pub(crate) fn note(
        &self,
        lane: Lane,
        bytes: u64,
        now: Instant,
        processor: impl FnOnce() -> Duration,
    ) -> Option<Change> {
        if self.now.load(Ordering::Relaxed) & OVER != 0 {
            return None;
        }
        let mut turns = lock(&self.turns);
        let Progress::Turn(at) = turns.progress else { return None };
        // Work that the other engine took before its turn was over does not count.
        if lane != self.lane() {
            return None;
        }
        let paused = now.saturating_duration_since(turns.last) > MAX_PAUSE;
        turns.last = now;
        let (began, used) = match turns.begun {
            Some(begun) if !paused => begun,
            before => {
                (turns.given, turns.units) = (0, 0);
                turns.begun = Some((now, processor()));
                turns.spoiled += u32::from(before.is_some());
                if turns.spoiled > MAX_SPOILED_TURNS {
                    turns.progress = Progress::GivenUp;
                    return self.switch_to(self.expected, OVER).map(Change::Turn);
                }
                return None;
            }
        };
        turns.given += 1;
        turns.units += 1 + bytes / UNIT_BYTES;
        if turns.given < self.length {
            return None;
        }
        let processor_now = processor();
        if at > 0 {
            let units = turns.units;
            let sum = &mut turns.sums[lane as usize];
            sum.units += units;
            sum.time += now.saturating_duration_since(began);
            sum.processor += processor_now.saturating_sub(used);
        }
        (turns.given, turns.units, turns.begun) = (0, 0, Some((now, processor_now)));
        if let Some(&expected) = TURNS.get(at + 1) {
            turns.progress = Progress::Turn(at + 1);
            let next = if expected { self.expected } else { self.expected.other() };
            return self.switch_to(next, 0).map(Change::Turn);
        }
        let ratios = ratios(&turns.sums);
        turns.progress = Progress::Measured(ratios);
        self.switch_to(ratios.better(), OVER);
        Some(Change::Measured(ratios.better(), ratios))
    }

    /// Sets the lane, and returns it if it is another one than before.
    fn switch_to(&self, lane: Lane, over: u8) -> Option<Lane> {
        let before = self.lane();
        self.now.store(lane as u8 | over, Ordering::Relaxed);
        (lane != before).then_some(lane)
    }
}

fn ratios(sums: &[Sum; 2]) -> EngineRatios {
    let each = |of: fn(&Sum) -> Duration, lane: Lane| {
        let sum = &sums[lane as usize];
        of(sum).as_secs_f64().max(1e-9) / sum.units.max(1) as f64
    };
    let ratio = |of| each(of, Lane::Rings) / each(of, Lane::Threads);
    EngineRatios { time: ratio(|s| s.time), processor: ratio(|s| s.processor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent in which every file takes each engine a given time, and a given processor time, in
    /// microseconds.
    struct Agent {
        trial: Trial,
        now: Instant,
        processor: Duration,
        costs: [(u64, u64); 2],
    }

    impl Agent {
        fn new(expected: Lane, threads: (u64, u64), rings: (u64, u64)) -> Self {
            let trial = Trial::new(expected, 10);
            Self { trial, now: Instant::now(), processor: Duration::ZERO, costs: [threads, rings] }
        }

        fn file(&mut self) -> (Lane, Option<Change>) {
            let lane = self.trial.lane();
            let (time, processor) = self.costs[lane as usize];
            self.now += Duration::from_micros(time);
            self.processor += Duration::from_micros(processor);
            (lane, self.trial.note(lane, 100, self.now, || self.processor))
        }

        /// Gives out files until the trial is over. Returns how many went to each engine.
        fn run(&mut self) -> ([u32; 2], Lane, EngineRatios) {
            let mut files = [0; 2];
            loop {
                let (lane, change) = self.file();
                files[lane as usize] += 1;
                assert!(files.iter().sum::<u32>() < 1000);
                if let Some(Change::Measured(lane, ratios)) = change {
                    assert_eq!(self.trial.lane(), lane);
                    return (files, lane, ratios);
                }
            }
        }
    }

    #[test]
    fn the_quicker_engine_wins_whatever_was_expected() {
        for expected in [Lane::Threads, Lane::Rings] {
            let (files, lane, ratios) = Agent::new(expected, (100, 50), (80, 70)).run();
            assert_eq!(lane, Lane::Rings);
            assert!((ratios.time - 0.8).abs() < 0.02 && (ratios.processor - 1.4).abs() < 0.02, "{ratios:?}");
            assert_eq!(files[expected.other() as usize], 20, "{files:?}");
            let (_, lane, _) = Agent::new(expected, (80, 70), (100, 50)).run();
            assert_eq!(lane, Lane::Threads);
        }
    }

    #[test]
    fn between_equals_processor_time_decides() {
        let (_, lane, _) = Agent::new(Lane::Threads, (100, 50), (105, 40)).run();
        assert_eq!(lane, Lane::Rings);
        let (_, lane, _) = Agent::new(Lane::Rings, (105, 40), (100, 50)).run();
        assert_eq!(lane, Lane::Threads);
    }

    #[test]
    fn a_turn_with_a_pause_in_it_begins_anew_and_many_end_the_trial() {
        let mut agent = Agent::new(Lane::Threads, (100, 50), (80, 40));
        (0..15).for_each(|_| _ = agent.file());
        agent.now += Duration::from_secs(60);
        let (_, lane, ratios) = agent.run();
        assert_eq!(lane, Lane::Rings);
        assert!((ratios.time - 0.8).abs() < 0.02, "{ratios:?}");

        let mut agent = Agent::new(Lane::Threads, (2_000_000, 50), (80, 40));
        (0..100).for_each(|_| _ = agent.file());
        assert_eq!((agent.trial.lane(), agent.trial.why().contains("pauses")), (Lane::Threads, true));
    }

    #[test]
    fn what_the_other_engine_was_given_before_its_turn_was_over_does_not_count() {
        let mut agent = Agent::new(Lane::Threads, (100, 50), (80, 40));
        while agent.trial.lane() == Lane::Threads {
            agent.file();
        }
        for _ in 0..100 {
            agent.now += Duration::from_micros(1);
            assert_eq!(agent.trial.note(Lane::Threads, 100, agent.now, || Duration::ZERO), None);
        }
        assert_eq!(agent.trial.lane(), Lane::Rings);
        assert_eq!(lock(&agent.trial.turns).given, 0);
    }

    #[test]
    fn after_the_trial_nothing_changes() {
        let mut agent = Agent::new(Lane::Rings, (100, 50), (80, 40));
        agent.run();
        agent.costs = [(10, 10), (1000, 1000)];
        for _ in 0..1000 {
            assert_eq!(agent.file(), (Lane::Rings, None));
        }
    }
}
