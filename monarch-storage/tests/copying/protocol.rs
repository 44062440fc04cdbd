//! State words and demand bitmaps under contention.
//!
//! Readers demand, a copier drains, claims and publishes, an evictor drops copies, a job bypasses:
//! all at once, on few words, in real shared memory. Checked: Bypass is sticky, nothing is
//! published over it, the generation never goes back, every demand is picked up, every waiter ends.

use monarch_abi::control::ControlMap;
use monarch_abi::demand::{Life, Outcome, Watch, raise, wait};
use monarch_abi::resolve::Found;
use monarch_abi::segment::Segment;
use monarch_abi::sys::{futex_wait, futex_wake};
use monarch_abi::word::{Refusal, State, Word};
use monarch_storage::held_dir::HeldDir;
use monarch_storage::index::{ScanOptions, ScanProgress, build, scan};
use monarch_storage::shm;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

const STATES: [State; 8] = [
    State::Absent,
    State::Requested,
    State::Fetching,
    State::Resident,
    State::Refused,
    State::Bypass,
    State::Link,
    State::NonFile,
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn words_keep_their_parts_apart(raw in any::<u32>(), tier in 0..16usize, n in 0..8usize) {
        let w = Word(raw);
        let to = STATES[n];
        prop_assert_eq!((w.with(to).state(), w.with(to).generation()), (to, w.generation()));
        prop_assert_eq!((w.next(to).state(), w.next(to).generation()), (to, w.generation().wrapping_add(1) & 0x00ff_ffff));
        let f = w.partial(tier);
        prop_assert_eq!((f.state(), f.tier(), f.generation()), (State::Partial, tier, w.generation()));
        prop_assert_eq!(f.completed(), w.resident(tier));
        let s = w.refused(Refusal::Streamable);
        prop_assert!(s.state() == State::Refused && s.is_streamable() && !w.next(State::Refused).is_streamable());
        let r = w.resident(tier);
        prop_assert_eq!((r.state(), r.tier(), r.generation()), (State::Resident, tier, w.generation()));
        prop_assert_eq!(w.with(to).tier(), 0);
        prop_assert!(raw & 0xf < 9 || w.state() == State::Bypass, "what is not known is not trusted");
    }
}

/// A control block and a segment of `files` files.
struct Shared {
    _dir: tempfile::TempDir,
    ctl: ControlMap<'static>,
    segment: &'static Segment<'static>,
}

impl Shared {
    fn new(files: usize) -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        let root = dir.path().join("root");
        std::fs::create_dir(&root).expect("mkdir");
        (0..files).for_each(|n| std::fs::write(root.join(format!("f{n}")), b"x").expect("write"));
        let options = ScanOptions { threads: 2, max_memory: u64::MAX };
        let built = build(scan(&root, options, &ScanProgress::default()).expect("scan"), 1, [1; 16]);
        let held = Arc::new(HeldDir::at(dir.path()).expect("directory"));
        let segment = shm::create_segment(
            &held,
            &built.index,
            &built.buckets,
            [2; 16],
            shm::Chunking { threshold: 16 << 20, size: 4 << 20 },
            shm::Checks::default(),
        )
        .expect("segment")
        .0;
        let params = shm::ControlParams { mnt_ns: 0, slash: (0, 0), user_ns: 0, pid_ns: 0 };
        let ctl = shm::create_control(&held, params).expect("control block");
        let c = ctl.ctl;
        c.incarnation.store(1, Ordering::Relaxed);
        for (clock, ms) in [(&c.pickup_ms, 20_000), (&c.stall_ms, 20_000), (&c.max_wait_ms, 60_000)] {
            clock.store(ms, Ordering::Relaxed);
        }
        Self { _dir: dir, ctl, segment: Box::leak(Box::new(segment)) }
    }

    fn found(&self, id: u32) -> Found<'static> {
        Found { root: 0, number: 0, segment: self.segment, entry: self.segment.by_id(id).expect("entry") }
    }

    fn word(&self, id: u32) -> &'static AtomicU32 {
        &self.found(id).entry.master.word
    }
}

struct Clock(Instant, AtomicBool);

impl Clock {
    fn new() -> Self {
        Self(Instant::now(), AtomicBool::new(true))
    }
}

impl Watch for Clock {
    fn now_us(&self) -> u64 {
        self.0.elapsed().as_micros() as u64
    }
    fn agent(&self) -> Life {
        if self.1.load(Ordering::Relaxed) { Life::Alive } else { Life::Dead }
    }
}

/// Random numbers without a crate.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u32 % n
    }
}

/// Replaces a word as long as `change` returns a word; the word that was written.
fn change(word: &AtomicU32, change: impl Fn(Word) -> Option<Word>) -> Option<Word> {
    loop {
        let now = Word(word.load(Ordering::Acquire));
        let to = change(now)?;
        if word.compare_exchange(now.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            futex_wake(word, u32::MAX >> 1);
            return Some(to);
        }
    }
}

fn bypass(word: &AtomicU32) {
    change(word, |w| (w.state() != State::Bypass).then(|| w.next(State::Bypass)));
}

/// A copier: drains, claims, "copies", publishes. `drained` counts how often each id came up.
fn copier(s: &Shared, drained: &[AtomicU64], over: &AtomicBool, seed: u64) {
    let mut dice = Dice(seed);
    loop {
        let seen = s.ctl.ctl.demand.load(Ordering::SeqCst);
        let last = over.load(Ordering::SeqCst);
        let mut ids = Vec::new();
        s.segment.state.drain(|id| ids.push(id));
        for &id in &ids {
            drained[id as usize].fetch_add(1, Ordering::Relaxed);
            let word = s.word(id);
            let claim = change(word, |w| (w.state() == State::Requested).then(|| w.with(State::Fetching)));
            let Some(claim) = claim else { continue };
            (0..dice.roll(50)).for_each(|_| std::hint::spin_loop());
            let to = if dice.roll(10) == 0 { claim.next(State::Refused) } else { claim.resident(3) };
            let published = word.compare_exchange(claim.0, to.0, Ordering::AcqRel, Ordering::Acquire);
            if let Err(now) = published {
                assert_eq!(Word(now).state(), State::Bypass, "only a bypass beats a claim");
            }
            futex_wake(word, u32::MAX >> 1);
        }
        if ids.is_empty() {
            if last {
                return;
            }
            s.ctl.ctl.sleepers.fetch_add(1, Ordering::SeqCst);
            // Far longer than the test may take: a lost wake-up shows as a stuck reader, not as a
            // slow one.
            futex_wait(&s.ctl.ctl.demand, seen, Some([30, 0]));
            s.ctl.ctl.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn readers_copier_evictor_and_job_at_once() {
    const FILES: u32 = 12;
    let s = Shared::new(FILES as usize);
    let over = AtomicBool::new(false);
    let drained: Vec<AtomicU64> = (0..=FILES).map(|_| AtomicU64::new(0)).collect();
    let bypassed: Vec<AtomicBool> = (0..=FILES).map(|_| AtomicBool::new(false)).collect();
    let clock = Clock::new();
    let ends: [AtomicU64; 3] = Default::default();
    scope(|t| {
        let copiers: Vec<_> = (1..3)
            .map(|n| {
                t.spawn({
                    let (s, d, o) = (&s, &drained, &over);
                    move || copier(s, d, o, n * 77)
                })
            })
            .collect();
        let mut others = Vec::new();
        for n in 1..5u64 {
            let (s, clock, bypassed, ends) = (&s, &clock, &bypassed, &ends);
            others.push(t.spawn(move || {
                let mut dice = Dice(n * 0x9e37_79b9);
                // The last `FILES` rounds read each file once, after the job has bypassed its half:
                // a quick reader would otherwise end before anything was refused.
                let random = (0..8_000).map(|_| None);
                for all in random.chain((1..=FILES).map(Some)) {
                    let id = all.unwrap_or_else(|| 1 + dice.roll(FILES));
                    while all.is_some() && !bypassed[FILES as usize / 2].load(Ordering::Acquire) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let was_bypassed = bypassed[id as usize].load(Ordering::Acquire);
                    let f = s.found(id);
                    raise(&s.ctl, &f);
                    let end = wait(&s.ctl, &f, clock);
                    let at = match end {
                        Outcome::Resident(w) => {
                            assert_eq!((w.state(), w.tier()), (State::Resident, 3));
                            0
                        }
                        Outcome::Refused(_) => 1,
                        Outcome::Partial(_) | Outcome::Deadline => {
                            panic!("a demand of {id} was lost: {:?}", f.entry.word())
                        }
                    };
                    ends[at].fetch_add(1, Ordering::Relaxed);
                    assert!(
                        !was_bypassed || matches!(end, Outcome::Refused(word) if word.state() == State::Bypass),
                        "Bypass is sticky"
                    );
                }
            }));
        }
        // An evictor that also retries and checks that generations only go up.
        others.push(t.spawn({
            let s = &s;
            move || {
                let mut dice = Dice(5);
                let mut last = [0u32; FILES as usize + 1];
                for _ in 0..40_000 {
                    let id = 1 + dice.roll(FILES);
                    let now = change(s.word(id), |w| {
                        matches!(w.state(), State::Resident | State::Refused).then(|| w.next(State::Absent))
                    });
                    let now = now.unwrap_or(Word(s.word(id).load(Ordering::Acquire))).generation();
                    assert!(now >= last[id as usize], "a generation went back");
                    last[id as usize] = now;
                    if dice.roll(4) == 0 {
                        std::thread::yield_now();
                    }
                }
            }
        }));
        // The job bypasses half of the files, one after the other.
        others.push(t.spawn({
            let (s, bypassed, drained) = (&s, &bypassed, &drained);
            move || {
                for id in 1..=FILES / 2 {
                    std::thread::sleep(Duration::from_millis(20));
                    while drained[id as usize].load(Ordering::Relaxed) == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    bypass(s.word(id));
                    bypassed[id as usize].store(true, Ordering::Release);
                }
            }
        }));
        others.into_iter().for_each(|o| o.join().expect("no invariant was broken"));
        over.store(true, Ordering::SeqCst);
        s.ctl.ctl.demand.fetch_add(1, Ordering::SeqCst);
        futex_wake(&s.ctl.ctl.demand, u32::MAX >> 1);
        copiers.into_iter().for_each(|c| c.join().expect("no invariant was broken"));
    });
    for id in 1..=FILES {
        let w = Word(s.word(id).load(Ordering::Acquire));
        assert_eq!(w.state() == State::Bypass, id <= FILES / 2, "{id}: {w:?}");
        assert_ne!(w.state(), State::Requested, "{id} was left behind");
        assert!(drained[id as usize].load(Ordering::Relaxed) > 0);
    }
    println!("resident {}, refused or bypassed {}", ends[0].load(Ordering::Relaxed), ends[1].load(Ordering::Relaxed));
    assert!(ends.iter().take(2).all(|e| e.load(Ordering::Relaxed) > 0), "both ends were seen");
}

#[test]
fn raise_and_drain_lose_nothing() {
    // Each raiser raises each id of its own once; all must come out, whichever thread drains them.
    const IDS_PER_RAISER: u32 = 20_000;
    let wide = Shared::new(2_000);
    let n = wide.segment.index.len() as u32;
    let seen: Vec<AtomicU64> = (0..n).map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    scope(|t| {
        let drainers: Vec<_> = (0..2)
            .map(|_| {
                t.spawn(|| {
                    loop {
                        let last = over.load(Ordering::SeqCst);
                        let mut any = false;
                        wide.segment.state.drain(|id| {
                            seen[id as usize].fetch_add(1, Ordering::SeqCst);
                            any = true;
                        });
                        if last && !any {
                            return;
                        }
                    }
                })
            })
            .collect();
        let raisers: Vec<_> = (0..3u32)
            .map(|r| {
                let (wide, seen) = (&wide, &seen);
                t.spawn(move || {
                    for i in 0..IDS_PER_RAISER {
                        let id = (i * 3 + r) % (n / 3 * 3);
                        // No other thread raises this id: once it is raised, it must come up.
                        let before = seen[id as usize].load(Ordering::SeqCst);
                        wide.segment.state.raise(id);
                        if i % 64 == 0 {
                            let start = Instant::now();
                            while seen[id as usize].load(Ordering::SeqCst) == before {
                                assert!(start.elapsed() < Duration::from_secs(20), "{id} was lost");
                                std::thread::yield_now();
                            }
                        }
                    }
                })
            })
            .collect();
        raisers.into_iter().for_each(|r| r.join().expect("nothing was lost"));
        over.store(true, Ordering::SeqCst);
        drainers.into_iter().for_each(|d| d.join().expect("drained"));
    });
    assert!(seen[..(n / 3 * 3) as usize].iter().all(|c| c.load(Ordering::SeqCst) > 0));
    wide.segment.state.raise(u32::MAX);
    wide.segment.state.drain(|id| panic!("{id} is no entry"));
}

#[test]
fn a_demand_whose_client_died_before_the_bit_is_repeated() {
    let s = Shared::new(1);
    let f = s.found(1);
    // Killed between the word and the bit.
    f.entry.master.word.store(Word::new(State::Requested).0, Ordering::Release);
    assert_eq!(raise(&s.ctl, &f).state(), State::Requested);
    let mut ids = Vec::new();
    s.segment.state.drain(|id| ids.push(id));
    assert_eq!(ids, [1]);
    // Killed between the bit and its summary: the next one sets both.
    raise(&s.ctl, &f);
    s.segment.state.drain(|id| ids.push(id));
    assert_eq!(ids, [1, 1]);
}

/// A reader in line: each look at its clock is 10 ms later, and copiers take other demands until
/// `moves_ms`. Its own copy is there at `comes_ms`.
struct InLine<'a> {
    now_ms: AtomicU64,
    moves_ms: u64,
    comes_ms: u64,
    taken: &'a AtomicU32,
    word: &'a AtomicU32,
}

impl Watch for InLine<'_> {
    fn now_us(&self) -> u64 {
        let now = self.now_ms.fetch_add(10, Ordering::Relaxed);
        if now < self.moves_ms {
            self.taken.fetch_add(1, Ordering::Relaxed);
        }
        if now >= self.comes_ms {
            self.word.store(Word::new(State::Resident).0, Ordering::Release);
        }
        now * 1000
    }
    fn agent(&self) -> Life {
        Life::Alive
    }
}

/// Of 256 readers those far back in line gave up after `pickup`, and read from the PFS what copiers
/// read as well.
#[test]
fn a_demand_in_line_is_waited_for_while_copiers_take_those_before_it() {
    let s = Shared::new(1);
    let (f, c) = (s.found(1), s.ctl.ctl);
    c.pickup_ms.store(30, Ordering::Relaxed);
    c.stall_ms.store(400, Ordering::Relaxed);
    c.max_wait_ms.store(60_000, Ordering::Relaxed);
    let waited = |moves_ms: u64, comes_ms: u64| {
        s.word(1).store(Word::new(State::Absent).0, Ordering::Release);
        raise(&s.ctl, &f);
        let watch = InLine { now_ms: AtomicU64::new(0), moves_ms, comes_ms, taken: &c.taken, word: s.word(1) };
        (wait(&s.ctl, &f, &watch), watch.now_ms.load(Ordering::Relaxed))
    };
    let (end, _) = waited(u64::MAX, 200);
    assert!(matches!(end, Outcome::Resident(_)), "its turn came: {end:?}");
    let (end, ms) = waited(100, u64::MAX);
    assert!(end == Outcome::Deadline && (110..200).contains(&ms), "the line stands: {end:?} at {ms} ms");
    let (end, ms) = waited(u64::MAX, u64::MAX);
    assert!(end == Outcome::Deadline && (400..500).contains(&ms), "no longer than `stall`: {end:?} at {ms} ms");
}

#[test]
fn the_clocks_end_a_wait() {
    let s = Shared::new(1);
    let (f, c) = (s.found(1), s.ctl.ctl);
    let waited = |clock: &Clock| {
        let start = Instant::now();
        (wait(&s.ctl, &f, clock), start.elapsed().as_millis())
    };
    // No agent picks it up.
    c.pickup_ms.store(30, Ordering::Relaxed);
    c.stall_ms.store(80, Ordering::Relaxed);
    c.max_wait_ms.store(1500, Ordering::Relaxed);
    raise(&s.ctl, &f);
    let (end, ms) = waited(&Clock::new());
    assert!(end == Outcome::Deadline && (30..1200).contains(&ms), "{end:?} after {ms} ms");
    assert_eq!(c.dead.load(Ordering::Relaxed), 0, "a living agent is not called dead");
    // Picked up, no progress.
    s.word(1).store(Word::new(State::Fetching).0, Ordering::Release);
    let (end, ms) = waited(&Clock::new());
    assert!(end == Outcome::Deadline && (80..1200).contains(&ms), "{end:?} after {ms} ms");
    // Inside a PFS call: up to max_wait, as on the PFS itself.
    let i = &c.inflight[5];
    i.file.store(monarch_abi::demand::file_key(0, 1), Ordering::Release);
    i.in_pfs.store(1, Ordering::Relaxed);
    let (end, ms) = waited(&Clock::new());
    assert!(end == Outcome::Deadline && (1500..6000).contains(&ms), "{end:?} after {ms} ms");
    // A dead agent is noticed, and no reader waits for it again.
    let clock = Clock::new();
    clock.1.store(false, Ordering::Relaxed);
    let (end, ms) = waited(&clock);
    assert!(end == Outcome::Deadline && ms < 1200, "{end:?} after {ms} ms");
    assert!(!monarch_abi::demand::agent_up(c));
}

#[test]
fn a_reader_waits_while_there_is_progress() {
    let s = Shared::new(1);
    let (f, c) = (s.found(1), s.ctl.ctl);
    c.stall_ms.store(400, Ordering::Relaxed);
    s.word(1).store(Word::new(State::Fetching).0, Ordering::Release);
    c.inflight[0].file.store(monarch_abi::demand::file_key(0, 1), Ordering::Release);
    scope(|t| {
        t.spawn(|| {
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(80));
                c.inflight[0].progress.fetch_add(1, Ordering::Relaxed);
            }
            let word = s.word(1);
            word.store(Word(word.load(Ordering::Acquire)).resident(2).0, Ordering::Release);
            futex_wake(word, 1);
        });
        let end = wait(&s.ctl, &f, &Clock::new());
        assert!(matches!(end, Outcome::Resident(w) if w.tier() == 2), "{end:?}");
    });
}

/// Any process of the user can write there.
#[test]
fn overwritten_clocks_hold_up_no_reader_for_more_than_an_hour() {
    /// Half an hour passes with each read of the clock.
    struct Leaps(AtomicU64);
    impl Watch for Leaps {
        fn now_us(&self) -> u64 {
            self.0.fetch_add(1_800_000_000, Ordering::Relaxed)
        }
        fn agent(&self) -> Life {
            Life::Alive
        }
    }
    let s = Shared::new(1);
    let (f, c) = (s.found(1), s.ctl.ctl);
    for clock in [&c.pickup_ms, &c.stall_ms, &c.max_wait_ms, &c.complete_ms] {
        clock.store(u32::MAX, Ordering::Relaxed);
    }
    c.inflight[0].file.store(monarch_abi::demand::file_key(0, 1), Ordering::Release);
    // Neither picked up; nor with any progress; nor out of the PFS.
    for (state, in_pfs) in [(State::Requested, 0), (State::Fetching, 0), (State::Fetching, 1)] {
        for pulse in [0, u64::MAX, u64::MAX / 1000 + 1, 1 << 40] {
            s.word(1).store(Word::new(state).0, Ordering::Release);
            c.inflight[0].in_pfs.store(in_pfs, Ordering::Relaxed);
            c.pulse_ms.store(pulse, Ordering::Relaxed);
            let leaps = Leaps(AtomicU64::new(1));
            assert_eq!(wait(&s.ctl, &f, &leaps), Outcome::Deadline);
            let hours = leaps.0.load(Ordering::Relaxed) / 3_600_000_000;
            assert!(hours <= 2, "{hours} hours in {state:?}, {in_pfs}, pulse {pulse}");
        }
    }
}
