//! Mappings of large files whose copy is not complete: whether they wait for it.
//!
//! A mapping of the PFS's file needs no wait where the agent follows it through the page cache:
//! then the copy and the faults share each byte. Elsewhere, and where much of the copy was read
//! past the page cache already, the time of the two ways decides, not a timeout:
//!
//! * `fill = remaining / rate` is the time until the copy is complete;
//! * `fault = touched * size / fault rate` is the time that the faults would take;
//! * a mapping waits if `fill <= 1.25 * fault`, or if the copy is a moment away;
//! * it looks again every 250 ms, from the first bytes on, and stops below half the rate that it
//!   decided on, without progress for 500 ms, or after `wait.map`; a library, for which other copies
//!   may share the rate, stops once its rest would take longer than the faults, or without progress
//!   for an eighth of their time, 2 s at most;
//! * where nodes share copies, a mapping of weights or of a library waits at any rate: all nodes
//!   load them at once, and the PFS is to send them once. Other files are waited for up to 2 s at
//!   their rate, which is judged from the first bytes on: these may come late, as nodes get them in
//!   turns. While a copier waits for another node there is progress.

use crate::chunks::LargeFile;
use crate::control::{ControlMap, MAX_CLOCK_MS};
use crate::demand::{Life, Outcome, Watch, agent_up, is_silent, raise, want_chunks};
use crate::resolve::Found;
use crate::sys::futex_wait;
use crate::word::State;
use core::sync::atomic::Ordering;

/// A copy that is expected within this time is waited for in any case, microseconds.
const MOMENT_US: u64 = 250_000;
/// How often a mapping that waits looks at the rate, microseconds.
const LOOK_INTERVAL_US: u64 = 250_000;
/// Time without progress after which a mapping no longer waits, microseconds.
const STALL_US: u64 = 500_000;
/// The same two where nodes share copies.
const PEER_MOMENT_US: u64 = 2_000_000;
const PEER_STALL_US: u64 = 2_000_000;
/// Part of the time of a library's faults, as a divisor, that a mapping waits without progress.
const STALL_PART: u64 = 8;
/// Longest sleep between two looks at the copy, nanoseconds.
const SLEEP_NS: i64 = 20_000_000;
/// The kernel's window of readahead, unless it was changed.
const READ_AHEAD_BYTES: u64 = 128 << 10;
/// Assumed where the agent has not measured it: page faults of 128 KiB at 1 ms each, bytes a
/// second.
const DEFAULT_FAULT_RATE: u64 = 128 << 20;
/// See [`library_faults`]: the part, as a divisor, and the bytes of a fault.
const LIBRARY_PART: u64 = 6;
const LIBRARY_FAULT_BYTES: u64 = 43 << 10;
/// Part of a copy, as a divisor, up to which a mapping of the PFS's file reads hardly a byte twice.
const FEW: u32 = 16;

/// Suffixes of files that hold the weights of a model.
const WEIGHTS: [&[u8]; 6] = [b".safetensors", b".bin", b".pt", b".pth", b".gguf", b".ckpt"];

/// Whether a file holds the weights of a model, by its name.
#[must_use]
pub fn is_weights(name: &[u8]) -> bool {
    WEIGHTS.iter().any(|suffix| name.ends_with(suffix))
}

/// The part of a file that a mapping will probably read, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched(pub u64);

impl Touched {
    /// All of it.
    pub const ALL: Self = Self(1000);
    /// What is assumed of files of which nothing is known.
    pub const SOME: Self = Self(200);

    /// A fair part for each of so many processes.
    #[must_use]
    pub const fn shared(ranks: u64) -> Self {
        Self(if ranks > 1 { 1000 / ranks } else { 1000 })
    }
}

/// What decides whether a mapping waits. Sizes in bytes, rates in bytes a second.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Size of the file.
    pub size: u64,
    /// Bytes of the copy that are missing.
    pub remaining: u64,
    /// Rate of the copy.
    pub rate: u64,
    /// Rate of page faults; 0 when it is not known.
    pub fault_rate: u64,
    /// What the mapping will read.
    pub touched: Touched,
    /// Rate below which the copy is no longer waited for.
    pub slowest: u64,
    /// Time for the rest of the copy, at its rate of now, above which it is no longer waited for,
    /// in microseconds.
    pub most_left_us: u64,
    /// The longest wait, in microseconds.
    pub most_us: u64,
    /// Whether nodes share copies of the file.
    pub is_shared: bool,
    /// Whether all nodes read the file, and share its copies: weights and libraries.
    pub from_peers: bool,
}

impl Facts {
    /// Microseconds until the copy is complete.
    #[must_use]
    pub fn fill_us(&self) -> u64 {
        time_us(self.remaining, self.rate)
    }

    /// Whether the copy is a moment away, and may be waited for.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.fill_us() <= self.moment_us().min(self.most_us)
    }

    const fn moment_us(&self) -> u64 {
        if self.is_shared { PEER_MOMENT_US } else { MOMENT_US }
    }

    /// How long a mapping waits without progress. (Where the faults take many seconds, a busy node
    /// that sends the first bytes a little later is no reason to take them.)
    fn patience_us(&self) -> u64 {
        let shortest = if self.is_shared { PEER_STALL_US } else { STALL_US };
        let part = if self.most_left_us == u64::MAX { 0 } else { self.most_left_us / STALL_PART };
        part.clamp(shortest, PEER_STALL_US)
    }

    /// Whether a mapping waits for the copy.
    #[must_use]
    pub fn waits(&self) -> bool {
        if self.from_peers {
            return self.most_us > 0;
        }
        let fill = self.fill_us();
        if fill > self.most_us {
            return false;
        }
        let rate = if self.fault_rate == 0 { DEFAULT_FAULT_RATE } else { self.fault_rate };
        let read = (u128::from(self.size) * u128::from(self.touched.0) / 1000).min(u128::from(u64::MAX));
        let fault = time_us(u64::try_from(read).unwrap_or(u64::MAX), rate);
        self.is_near() || fill <= fault.saturating_add(fault / 4)
    }
}

/// The rate of page faults where a call takes `latency_us` and one stream of calls has
/// `stream_rate` bytes a second: the kernel reads [`READ_AHEAD_BYTES`] at a time, and one faulting
/// thread waits for each.
#[must_use]
pub fn fault_rate(latency_us: u64, stream_rate: u64) -> u64 {
    let us = latency_us.saturating_add(time_us(READ_AHEAD_BYTES, stream_rate)).max(1);
    READ_AHEAD_BYTES.saturating_mul(1_000_000) / us
}

/// Number of page faults that the use of a library of `size` bytes takes: it reads a sixth of it,
/// 43 KiB at a time (measured at the import of PyTorch).
#[must_use]
pub fn library_faults(size: u64) -> u64 {
    (size / LIBRARY_PART).div_ceil(LIBRARY_FAULT_BYTES).max(1)
}

fn time_us(bytes: u64, rate: u64) -> u64 {
    let us = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
    u64::try_from(us).unwrap_or(u64::MAX)
}

/// Bytes of a copy that are missing.
#[must_use]
pub fn remaining(file: &LargeFile<'_>, size: u64) -> u64 {
    u64::from(file.chunks().saturating_sub(file.count())).saturating_mul(file.chunk).min(size)
}

/// Whether so little of a copy is there that hardly a byte is read twice when the file of the PFS
/// is mapped.
#[must_use]
pub fn has_hardly_begun(file: &LargeFile<'_>) -> bool {
    file.count() <= file.chunks() / FEW
}

/// Whether the agent follows readers of a root through the page cache.
#[must_use]
pub fn is_followed(ctl: &ControlMap<'_>, root: usize) -> bool {
    u32::try_from(root)
        .ok()
        .and_then(|root| 1u32.checked_shl(root))
        .is_some_and(|bit| ctl.ctl.unpaged_roots.load(Ordering::Relaxed) & bit == 0)
}

/// Whether nodes share the copies of a root.
#[must_use]
pub fn is_shared(ctl: &ControlMap<'_>, root: usize) -> bool {
    let bit = u32::try_from(root).ok().and_then(|root| 1u32.checked_shl(root));
    bit.is_some_and(|bit| ctl.ctl.shared_roots.load(Ordering::Relaxed) & bit != 0)
}

/// What is known about a mapping of a file.
#[must_use]
pub fn facts(ctl: &ControlMap<'_>, f: &Found<'_>, file: &LargeFile<'_>, touched: Touched) -> Facts {
    let size = f.entry.record.size;
    let most_ms = ctl.ctl.map_ms.load(Ordering::Relaxed).min(MAX_CLOCK_MS);
    let rate = ctl.ctl.rate.load(Ordering::Relaxed);
    let is_shared = is_shared(ctl, f.root);
    Facts {
        size,
        remaining: remaining(file, size),
        rate,
        slowest: rate / 2,
        most_left_us: u64::MAX,
        fault_rate: ctl.ctl.fault_rate.load(Ordering::Relaxed),
        touched,
        most_us: u64::from(most_ms) * 1000,
        is_shared,
        from_peers: is_shared && f.segment.index.name(f.entry.record).is_some_and(is_weights),
    }
}

/// The rate of a copy, as a mapping that waits sees it.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: u64,
    left: u64,
}

impl Look {
    /// Looks again if it is time; whether the copy is too slow.
    fn is_too_slow(&mut self, decided: &Facts, left: u64, now: u64) -> bool {
        let since = now.saturating_sub(self.at);
        // (Where nodes share copies, bytes come in pieces, and the first of them when it is this
        // node's turn. That none come at all is a stall.)
        let nothing_came = decided.is_shared && left == self.left;
        if since < LOOK_INTERVAL_US || decided.from_peers || nothing_came {
            return false;
        }
        // (The first bytes may have come just now, after an open and a call of the PFS.)
        let is_first = left < self.left && self.left == decided.remaining;
        // (What is left to verify and publish after the last chunk has no rate.)
        let rate = time_us(self.left.saturating_sub(left), since);
        let left_us = time_us(left, rate);
        // (Nothing at all came yet: a stall, if it lasts.)
        let is_late = rate < decided.slowest || (rate > 0 && left_us > decided.most_left_us);
        *self = Self { at: now, left };
        !is_first && left > 0 && is_late && left_us > decided.moment_us()
    }
}

/// Waits for the copy of a file that is to be mapped, after [`Facts::waits`].
pub fn wait(ctl: &ControlMap<'_>, f: &Found<'_>, file: &LargeFile<'_>, decided: &Facts, watch: &impl Watch) -> Outcome {
    let start = watch.now_us();
    let mut look = Look { at: start, left: decided.remaining };
    let mut progress = (start, decided.remaining);
    let mut checked = start;
    want_chunks(ctl, f, file, 0, file.chunks());
    loop {
        let tick = file.head.tick.load(Ordering::Acquire);
        let word = f.entry.word();
        match word.state() {
            State::Resident => return Outcome::Resident(word),
            State::Requested | State::Fetching | State::Partial => {}
            // (A copy that another node did not send is begun again.)
            State::Absent if decided.from_peers => {
                let _ = raise(ctl, f);
            }
            _ => return Outcome::Refused(word),
        }
        let (now, left) = (watch.now_us(), remaining(file, decided.size));
        let waits_for_peer = decided.is_shared && file.head.in_pfs.load(Ordering::Relaxed) != 0;
        if left != progress.1 || waits_for_peer {
            progress = (now, left);
        }
        let stalled = now.saturating_sub(progress.0) >= decided.patience_us();
        let over = now.saturating_sub(start) >= decided.most_us;
        let slow = file.is_streamed() || look.is_too_slow(decided, left, now);
        if stalled || over || slow || !agent_up(ctl.ctl) || is_silent(ctl.ctl, now) {
            return Outcome::Deadline;
        }
        if now.saturating_sub(checked) >= LOOK_INTERVAL_US {
            checked = now;
            if watch.agent() != Life::Alive {
                return Outcome::Deadline;
            }
        }
        futex_wait(&file.head.tick, tick, Some([0, SLEEP_NS]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,342 MB at 500 MB/s, of which one reader gets 290 by faults.
    const WEIGHTS: Facts = Facts {
        size: 1_342_000_000,
        remaining: 1_342_000_000,
        rate: 500_000_000,
        slowest: 250_000_000,
        most_left_us: u64::MAX,
        fault_rate: 290_000_000,
        touched: Touched::ALL,
        most_us: 30_000_000,
        is_shared: false,
        from_peers: false,
    };

    #[test]
    fn the_time_of_the_copy_and_of_the_faults_decides() {
        assert!(WEIGHTS.waits(), "2.7 s against 4.6 s");
        assert!(!Facts { touched: Touched::SOME, ..WEIGHTS }.waits(), "2.7 s against 0.9 s");
        assert!(!Facts { touched: Touched::shared(8), ..WEIGHTS }.waits());
        assert!(Facts { touched: Touched::SOME, remaining: 500_000_000, ..WEIGHTS }.waits(), "1.0 s against 0.9 s");
        assert!(!Facts { rate: 50_000_000, ..WEIGHTS }.waits(), "27 s against 4.6 s");
        assert_eq!(Touched::shared(0), Touched::ALL);
    }

    #[test]
    fn weights_that_nodes_share_are_waited_for_at_any_rate() {
        let slow = Facts { rate: 0, from_peers: true, ..WEIGHTS };
        assert!(slow.waits() && Facts { touched: Touched(1), ..slow }.waits());
        assert!(!Facts { most_us: 0, ..slow }.waits(), "`wait.map: 0s`");
    }

    /// On a busy node the first bytes came 249 ms after they were asked for, and the library was
    /// mapped from the PFS, where its faults took 8 s.
    #[test]
    fn the_rate_of_a_library_is_judged_from_its_first_bytes_on() {
        let library = Facts { slowest: 0, most_left_us: 8_000_000, ..WEIGHTS };
        let mut look = Look { at: 0, left: library.remaining };
        assert!(!look.is_too_slow(&library, library.remaining, 250_000), "nothing came yet");
        assert!(!look.is_too_slow(&library, library.remaining - 4_000_000, 500_000), "the first bytes");
        assert!(look.is_too_slow(&library, library.remaining - 24_000_000, 750_000), "16 s are left at 80 MB/s");
        let mut look = Look { at: 0, left: library.remaining };
        assert!(!look.is_too_slow(&library, library.remaining - 4_000_000, 250_000), "the first bytes");
        assert!(!look.is_too_slow(&library, library.remaining - 84_000_000, 500_000), "4 s are left at 320 MB/s");
    }

    #[test]
    fn patience_with_a_library_grows_with_the_time_of_its_faults() {
        assert_eq!(WEIGHTS.patience_us(), 500_000);
        let library = Facts { most_left_us: 8_000_000, ..WEIGHTS };
        assert_eq!(library.patience_us(), 1_000_000);
        assert_eq!(Facts { most_left_us: 100_000, ..library }.patience_us(), 500_000);
        assert_eq!(Facts { most_left_us: 100_000_000, ..library }.patience_us(), 2_000_000);
        assert_eq!(Facts { is_shared: true, ..library }.patience_us(), 2_000_000);
    }

    /// The first bytes come when it is this node's turn to get them. A mapping that judged the rate
    /// before read all of the file from the PFS, as its other nodes did.
    #[test]
    fn the_rate_of_a_copy_that_nodes_share_is_judged_from_its_first_bytes_on() {
        let shared = Facts { is_shared: true, remaining: 100_000_000, slowest: 250_000_000, ..WEIGHTS };
        let mut look = Look { at: 0, left: shared.remaining };
        assert!(!look.is_too_slow(&shared, shared.remaining, 1_900_000), "nothing came yet");
        assert!(!look.is_too_slow(&shared, 96_000_000, 2_000_000), "the first bytes");
        assert!(!look.is_too_slow(&shared, 96_000_000, 2_300_000), "nothing came since");
        assert!(!look.is_too_slow(&shared, 76_000_000, 2_400_000), "1.5 s are left at 50 MB/s");
        assert!(look.is_too_slow(&shared, 75_000_000, 2_700_000), "22 s are left at 3 MB/s");
        let mut look = Look { at: 0, left: shared.remaining };
        let alone = Facts { is_shared: false, ..shared };
        assert!(!look.is_too_slow(&alone, shared.remaining, 100_000), "it is not time to look");
        assert!(look.is_too_slow(&alone, shared.remaining, 300_000));
        let mut look = Look { at: 0, left: shared.remaining };
        assert!(!look.is_too_slow(&Facts { from_peers: true, ..alone }, shared.remaining, 300_000), "at any rate");
    }

    #[test]
    fn a_copy_that_nodes_share_may_be_two_seconds_away() {
        let part = Facts { touched: Touched(1), remaining: 900_000_000, ..WEIGHTS };
        assert!(!part.waits() && Facts { is_shared: true, ..part }.waits());
        assert!(!Facts { is_shared: true, remaining: 1_100_000_000, ..part }.waits());
    }

    #[test]
    fn page_faults_wait_for_the_latency_and_the_bytes() {
        assert_eq!(fault_rate(1000, 500_000_000) / 1_000_000, 103);
        assert_eq!(fault_rate(0, 1 << 30) >> 20, 1024);
        assert!(fault_rate(u64::MAX, 0) == 0 && fault_rate(0, u64::MAX) > 0);
    }

    #[test]
    fn weights_are_told_by_their_names() {
        assert!(is_weights(b"model-00001-of-00004.safetensors") && is_weights(b"pytorch_model.bin"));
        assert!(!is_weights(b"train.parquet") && !is_weights(b"bin") && !is_weights(b""));
    }

    #[test]
    fn a_copy_that_is_a_moment_away_is_waited_for() {
        let part = Facts { touched: Touched(1), ..WEIGHTS };
        assert!(Facts { remaining: 100_000_000, ..part }.waits());
        assert!(!Facts { remaining: 200_000_000, ..part }.waits());
    }

    #[test]
    fn no_mapping_waits_longer_than_it_may() {
        assert!(!Facts { most_us: 2_000_000, ..WEIGHTS }.waits());
        assert!(!Facts { most_us: 0, ..WEIGHTS }.waits(), "no agent has said how long");
        let nothing = Facts { rate: 0, fault_rate: 0, size: u64::MAX, remaining: u64::MAX, ..WEIGHTS };
        assert!(!nothing.waits());
    }
}
