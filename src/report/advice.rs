//! Advice from the figures of a run: a function for each.

use super::summary::Report;
use crate::say::count;
use bytesize::ByteSize;
use monarch_core::agent::protocol::Epoch;
use monarch_core::shown::ShowPath;
use std::fmt;

/// Runs shorter than this get no advice about time and use.
const SHORT_RUN_SECONDS: f64 = 5.0;
/// Creates that waited less than this for space get no advice, in milliseconds.
const MIN_OUTPUT_WAIT_MS: u64 = 1000;
/// Readers that spent less than this share of an epoch at the PFS, all together, get no advice
/// about the order of their reads.
const MIN_PFS_SHARE: f64 = 0.1;
/// Prefetch that was narrowed for less than this gets no advice, in milliseconds.
const MIN_MEMORY_PRESSURE_MS: u64 = 5000;

/// Returns the advice for a run, the most important first.
pub(super) fn of(r: &Report) -> Vec<String> {
    let all = [
        not_used(r),
        no_index(r),
        restarts(r),
        errors(r),
        room(r),
        order(r),
        memory_pressure(r),
        outputs(r),
        one_epoch(r),
        late(r),
        changed(r),
        unknown(r),
        other_mount(r),
        compute(r),
    ];
    all.into_iter().flatten().collect()
}

fn share(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// Returns the last complete epoch of the root with most opens; if none is complete, its last
/// epoch.
fn last_epoch(r: &Report) -> Option<&Epoch> {
    let most = r.status.roots.iter().max_by_key(|root| root.opens)?;
    most.epochs.iter().rfind(|e| e.complete).or_else(|| most.epochs.last())
}

fn not_used(r: &Report) -> Option<String> {
    let unused = r.status.roots.iter().filter(|root| r.is_unused(root)).map(|root| root.path.shown().to_string());
    let unused: Vec<String> = unused.collect();
    (r.seconds > SHORT_RUN_SECONDS && r.get("other_mount") == 0 && !unused.is_empty()).then(|| {
        format!(
            "no file below {} was opened: is that another path to the data? Name the one that the job uses in dataset.aliases; `monarch \
             explain PATH` says what becomes of a path",
            unused.join(", ")
        )
    })
}

fn no_index(r: &Report) -> Option<String> {
    let n = r.get("absent");
    (share(n, r.opens()) >= 1.0).then(|| {
        format!(
            "{} opens came before the roots had been scanned: `monarch index build` saves the index once, and jobs that name it in \
             index.file start with it",
            count(n)
        )
    })
}

fn restarts(r: &Report) -> Option<String> {
    (r.agent_restarts > 0).then(|| {
        format!(
            "the agent was started again {} time(s): was it killed for memory? Its log says what it did last",
            r.agent_restarts
        )
    })
}

fn errors(r: &Report) -> Option<String> {
    let (pfs, tier) = (r.agent("source_errors"), r.agent("tier_errors"));
    let what = match (pfs, tier) {
        (0, 0) => return None,
        (n, 0) => format!("{} reads of the PFS failed", count(n)),
        (0, n) => format!("{} writes to the tiers failed", count(n)),
        (n, m) => format!("{} reads of the PFS and {} writes to the tiers failed", count(n), count(m)),
    };
    Some(format!("{what}; the files were tried again, or are read from the PFS. The agent's log names some of them"))
}

fn memory_pressure(r: &Report) -> Option<String> {
    let ms = r.agent("memory_pressure_ms");
    (ms >= MIN_MEMORY_PRESSURE_MS).then(|| {
        format!(
            "prefetching was held back for {} s, as the job waited for memory: request more of it, or keep copies on a disk \
             (prefetch.max_memory_pressure)",
            ms / 1000
        )
    })
}

/// Returns what would let the job write without waiting, of the output root where it waited most.
fn outputs(r: &Report) -> Option<String> {
    let s = r.status.outputs.iter().max_by_key(|s| (s.waited_ms, s.no_space))?;
    (s.waited_ms >= MIN_OUTPUT_WAIT_MS || s.no_space > 0).then(|| {
        format!(
            "files created below {} waited {:.1} s for space in tier {}, and {} were written to the PFS itself: a larger \
             outputs[].max_pending, or a larger capacity of the tier, would hold a whole checkpoint",
            s.path.shown(),
            s.waited_ms as f64 / 1e3,
            s.tier,
            count(s.no_space)
        )
    })
}

/// More space in the tiers that would keep bytes from the PFS.
pub(super) struct More {
    /// On each node.
    bytes: u64,
    /// The tier that is meant.
    tier: String,
    /// Bytes of an epoch that the PFS sent to the job, and bytes opened in it; `None` where they
    /// are not known.
    sent: Option<(u64, u64)>,
}

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} more in {}", ByteSize(self.bytes), self.tier)?;
        match self.sent.map(|(sent, read)| (100 * u128::from(sent)).checked_div(u128::from(read)).unwrap_or(0).min(100))
        {
            Some(share @ 1..) => write!(f, " would save {share} % per epoch"),
            _ => f.write_str(" would hold all of the data set"),
        }
    }
}

/// Returns how much more space would keep reads from the PFS, if some would.
pub(super) fn next(r: &Report) -> Option<More> {
    let data: u64 = r.status.roots.iter().map(|root| root.bytes).fold(0, u64::saturating_add);
    // Nodes that share need room for a copy of each file among them. (Assumes equal nodes.)
    let nodes = r.status.nodes.max(1) as u64;
    let capacity = nodes * r.status.tiers.iter().map(|t| t.capacity).sum::<u64>();
    // (Large files without space are read in chunks from the PFS.)
    if r.get("no_room") + r.get("chunk_miss_bytes") == 0 || data <= capacity || capacity == 0 {
        return None;
    }
    // Reads of large files past Monarch are not counted by epoch. What the first epoch copied would
    // be copied with more space, too.
    let sent = last_epoch(r).filter(|e| e.chunked == 0 && nodes == 1).map(|e| (e.pfs_bytes, e.bytes));
    // The last tier is the largest in general.
    let tier = r.status.tiers.last().map_or_else(String::new, |t| t.name.clone());
    Some(More { bytes: (data - capacity).div_ceil(nodes), tier, sent })
}

/// More capacity, where that would have saved reads of the PFS.
fn room(r: &Report) -> Option<String> {
    let more = next(r)?;
    let nodes = r.status.nodes.max(1) as u64;
    let data: u64 = r.status.roots.iter().map(|root| root.bytes).fold(0, u64::saturating_add);
    let capacity = nodes * r.status.tiers.iter().map(|t| t.capacity).sum::<u64>();
    // Reads of large files past Monarch are not counted by epoch.
    let saves = last_epoch(r).filter(|e| e.chunked == 0).map_or_else(String::new, |e| {
        format!(": {} opens and {} less from the PFS in each epoch", count(e.pfs), ByteSize(e.pfs_bytes))
    });
    let squeezed = if r.status.tiers.iter().any(|t| t.packed.files > 0) {
        ""
    } else {
        ". Data that compresses takes less of it with tiers[].compression: auto"
    };
    let (of, on_each) = if nodes > 1 { (format!(" of {nodes} nodes"), " on each") } else { (String::new(), "") };
    Some(format!(
        "the tiers{of} hold {:.0} % of the data set; {} more{on_each} would hold all of it{saves}{squeezed}",
        share(capacity, data).floor(),
        ByteSize(more.bytes)
    ))
}

/// Says what an announced order would have saved, where only a part of the data fits: readers then
/// wait for the PFS, whether or not it has bandwidth to spare.
fn order(r: &Report) -> Option<String> {
    let knows = r.status.policy == "clairvoyant" && r.agent("hints") > 0;
    let e = last_epoch(r).filter(|_| !knows && r.status.roots.iter().any(|root| root.epochs.len() > 1))?;
    // A file that is read from the PFS takes its reader about as long as a copy took the agent.
    let copy_s = r.agent("pfs_copy_us") as f64 / 1e6 / r.agent("pfs_copies").max(1) as f64;
    let no_room = e.why.no_room.min(e.pfs);
    let at_pfs_s = no_room as f64 * copy_s;
    if e.seconds < SHORT_RUN_SECONDS || e.wait_s + at_pfs_s < MIN_PFS_SHARE * e.seconds {
        return None;
    }
    let at_pfs =
        (at_pfs_s >= 0.5).then(|| format!("about {at_pfs_s:.0} s with {} files that have no copy", count(no_room)));
    let waiting = (e.wait_s >= 0.5).then(|| format!("{:.0} s waiting for copies", e.wait_s));
    let spent = at_pfs.into_iter().chain(waiting).collect::<Vec<_>>().join(" and ");
    let remedy = match (r.agent("hints") > 0, r.status.policy == "clairvoyant") {
        (true, _) => {
            "the order is announced, and placement.policy=clairvoyant would have files copied before they are opened"
        }
        (false, true) => "an announced order (docs/HINTS.md) would have files copied before they are opened",
        (false, false) => {
            "an announced order (docs/HINTS.md) with placement.policy=clairvoyant would have files copied before they are opened"
        }
    };
    Some(format!(
        "of an epoch of {:.0} s readers spent {spent}, all together: {remedy}. It saves up to that time, where the PFS can send {} in the rest \
         of the epoch, and no bytes",
        e.seconds,
        ByteSize(e.pfs_bytes.saturating_add(e.bytes_copied))
    ))
}

fn one_epoch(r: &Report) -> Option<String> {
    let epochs = r.status.roots.iter().map(|root| root.epochs.len()).max()?;
    let copied = r.agent("bytes_copied");
    (epochs == 1 && copied > 0 && r.seconds > SHORT_RUN_SECONDS && r.get("hit_bytes") <= copied).then(|| {
        "the data were read once: copies pay from the second time on. For jobs that follow on this node keep them with `persist: node`, or \
         fetch them beforehand with `monarch stage`"
            .to_owned()
    })
}

fn late(r: &Report) -> Option<String> {
    let n = r.get("deadline");
    (share(n, r.opens()) >= 0.1).then(|| {
        format!(
            "{} opens gave up waiting for a copy: the PFS or the tier was slow, or the agent was not there (wait.pickup, wait.stall)",
            count(n)
        )
    })
}

fn changed(r: &Report) -> Option<String> {
    let n = r.get("changed");
    (share(n, r.opens()) >= 0.1).then(|| {
        format!(
            "{} opens were of files that had changed since the scan, or are not readable for the agent: {} takes note of \
             changes, dataset.consistency: close-to-open does so by itself",
            count(n),
            another_scan(r)
        )
    })
}

/// What scans the data again.
fn another_scan(r: &Report) -> &'static str {
    // Nodes that share use the index of their job to its end.
    if r.status.nodes > 1 { "the next job" } else { "`monarch refresh`" }
}

fn other_mount(r: &Report) -> Option<String> {
    let n = r.get("other_mount");
    (share(n, r.opens() + n) >= 0.1).then(|| {
        format!(
            "{} opens came from processes with a mount of their own at the data's path (a container, a mount namespace), and went there: \
             start `monarch run` inside of it, or mount the same file system at the same path, and the tiers too",
            count(n)
        )
    })
}

fn unknown(r: &Report) -> Option<String> {
    let n = r.get("unknown");
    (share(n, r.opens()) >= 1.0).then(|| {
        format!(
            "{} opens were of paths that are not in the index: made after the scan? {} scans again",
            count(n),
            another_scan(r)
        )
    })
}

fn compute(r: &Report) -> Option<String> {
    let calm =
        r.opens() > 0 && share(r.opens_pfs + r.opens_chunked, r.opens()) < 1.0 && r.waited_s() < 0.01 * r.seconds;
    // (Another advice says what more space would save.)
    (calm && next(r).is_none() && r.seconds > SHORT_RUN_SECONDS).then(|| {
        format!(
            "nothing to gain in time: {} of {} opens got copies, and readers waited {:.1} s of {:.0} s. What takes time is what the job does with the data",
            count(r.opens_local),
            count(r.opens()),
            r.waited_s(),
            r.seconds
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_core::agent::protocol::{RootStatus, Status, TierStatus, Why};
    use std::time::Duration;

    fn report(counters: &[(&str, u64)], epochs: Vec<Epoch>) -> Report {
        let root = RootStatus {
            path: "/data".into(),
            state: "ready".into(),
            opens: 10,
            bytes: 1000 << 30,
            epochs,
            ..RootStatus::default()
        };
        let tier = TierStatus { capacity: 410 << 30, ..TierStatus::default() };
        let after = Status {
            roots: vec![root],
            tiers: vec![tier],
            counters: counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
            ..Status::default()
        };
        let r = Report::between(&Status::default(), after, Duration::from_secs(600), &[]);
        Report { advice: of(&r), ..r }
    }

    #[test]
    fn prefetch_that_memory_pressure_held_back_is_told_with_its_time() {
        let of = |ms| {
            let agent = [("memory_pressure_ms".to_owned(), ms)].into();
            let after = Status { agent, ..Status::default() };
            of(&Report::between(&Status::default(), after, Duration::from_secs(600), &[]))
        };
        let said = |ms| of(ms).into_iter().find(|line| line.contains("waited for memory"));
        assert!(said(34_900).is_some_and(|line| line.starts_with("prefetching was held back for 34 s, as")));
        assert_eq!(said(4999), None);
    }

    #[test]
    fn a_tier_that_is_too_small_is_told_with_what_more_would_save() {
        let full = Epoch { complete: true, opens: 1000, pfs: 590, pfs_bytes: 590 << 30, ..Epoch::default() };
        let more = Epoch { complete: false, pfs: 7, ..full };
        let said = report(&[("hits", 410), ("no_room", 590)], vec![full, more]).advice;
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0]
                .starts_with("the tiers hold 41 % of the data set; 590.0 GiB more would hold all of it: 590 opens and"),
            "{said:?}"
        );
    }

    #[test]
    fn a_part_that_does_not_fit_is_told_with_what_an_announced_order_would_save() {
        let why = Why { no_room: 500, ..Why::default() };
        let e = Epoch {
            complete: true,
            seconds: 60.0,
            opens: 1000,
            pfs: 500,
            pfs_bytes: 5 << 30,
            wait_s: 2.0,
            why,
            ..Epoch::default()
        };
        let of = |epochs: Vec<Epoch>, policy: &str, hints: u64| {
            let root =
                RootStatus { path: "/data".into(), state: "ready".into(), opens: 10, epochs, ..RootStatus::default() };
            let agent = [("pfs_copies", 100), ("pfs_copy_us", 4_000_000), ("hints", hints)];
            let agent = agent.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
            let after = Status { roots: vec![root], policy: policy.to_owned(), agent, ..Status::default() };
            of(&Report::between(&Status::default(), after, Duration::from_secs(600), &[]))
        };
        let said = |epochs, policy, hints| {
            of(epochs, policy, hints).into_iter().find(|line| line.starts_with("of an epoch of"))
        };
        let line = said(vec![e, e], "first_epoch", 0).unwrap();
        assert!(
            line.starts_with(
                "of an epoch of 60 s readers spent about 20 s with 500 files that have no copy and 2 s waiting for \
                 copies, all together: an announced order (docs/HINTS.md) with placement.policy=clairvoyant would"
            ),
            "{line}"
        );
        assert!(line.contains("the PFS can send 5.0 GiB in"), "{line}");
        // What the job does already is not advised again.
        assert!(
            said(vec![e, e], "clairvoyant", 0)
                .is_some_and(|line| line.contains("an announced order (docs/HINTS.md) would"))
        );
        assert!(
            said(vec![e, e], "first_epoch", 3)
                .is_some_and(|line| line.contains("the order is announced, and placement"))
        );
        assert_eq!(said(vec![e, e], "clairvoyant", 3), None);
        // Nor what would save little, or was not seen to repeat.
        assert_eq!(said(vec![e], "first_epoch", 0), None);
        let few = Epoch { why: Why { no_room: 50, ..why }, ..e };
        assert_eq!(said(vec![few, few], "first_epoch", 0), None);
        let waits = Epoch { why: Why::default(), wait_s: 30.0, ..e };
        assert!(
            said(vec![waits, waits], "static", 0)
                .is_some_and(|line| line.contains("readers spent 30 s waiting for copies, all"))
        );
    }

    /// The advice named bytes of one epoch, and the headline a share of another.
    #[test]
    fn the_headline_and_the_advice_name_the_same_space_and_epoch() {
        let full = Epoch {
            complete: true,
            opens: 1000,
            pfs: 590,
            bytes: 1000 << 30,
            pfs_bytes: 590 << 30,
            ..Epoch::default()
        };
        let r = report(&[("hits", 410), ("no_room", 590)], vec![full, full]);
        assert_eq!(next(&r).unwrap().to_string(), "590.0 GiB more in  would save 59 % per epoch");
        assert!(
            r.advice[0].contains("590.0 GiB more would hold all of it: 590 opens and 590.0 GiB less"),
            "{:?}",
            r.advice
        );
        assert!(!r.advice.iter().any(|line| line.starts_with("nothing to gain")));
        // Large files without space are no opens without space.
        let r = report(&[("chunked", 4), ("chunk_miss_bytes", 5)], vec![Epoch { chunked: 4, ..Epoch::default() }]);
        assert!(r.advice[0].contains("590.0 GiB more would hold all of it. Data"), "{:?}", r.advice);
        // Not where reads of chunks are not known by epoch.
        let chunked = Epoch { chunked: 1, ..full };
        let r = report(&[("hits", 410), ("no_room", 590)], vec![chunked, chunked]);
        assert!(next(&r).unwrap().to_string().ends_with("would hold all of the data set"));
    }

    /// Nodes that had left were not counted, and `refresh` is refused where nodes share.
    #[test]
    fn what_nodes_that_share_are_told() {
        let tier = TierStatus { capacity: 410 << 30, ..TierStatus::default() };
        let root = RootStatus { bytes: 1000 << 30, state: "ready".into(), opens: 9, ..RootStatus::default() };
        let counters = [("hits", 100), ("no_room", 10), ("unknown", 9)];
        let counters = counters.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
        let after = Status { roots: vec![root], tiers: vec![tier], nodes: 1, counters, ..Status::default() };
        let before = Status { nodes: 2, ..Status::default() };
        let said = of(&Report::between(&before, after, Duration::from_secs(600), &[])).join("\n");
        assert!(said.contains("the tiers of 2 nodes hold 82 % of the data set; 90.0 GiB more on each"), "{said}");
        assert!(said.contains("the next job scans again") && !said.contains("refresh"), "{said}");
    }

    #[test]
    fn a_run_that_was_served_well_is_told_that_nothing_is_to_be_gained() {
        let e = Epoch { complete: true, opens: 1000, local: 1000, ..Epoch::default() };
        let counters = [("hits", 2000), ("hit_bytes", 5)];
        let said = report(&counters, vec![e, e]).advice;
        assert!(
            said.len() == 1
                && said[0].starts_with(
                    "nothing to gain in time: 2,000 of 2,000 opens got copies, and readers waited 0.0 s of 600 s"
                ),
            "{said:?}"
        );
        // Not where they waited.
        assert!(report(&[counters[0], ("wait_us", 60_000_000)], vec![e, e]).advice.is_empty());
    }

    #[test]
    fn what_went_wrong_is_told_with_its_remedy() {
        let counters =
            [("hits", 100), ("absent", 50), ("deadline", 1), ("changed", 2), ("unknown", 9), ("other_mount", 3)];
        let said = report(&counters, Vec::new()).advice.join("\n");
        for remedy in [
            "index build",
            "wait.pickup",
            "close-to-open",
            "monarch refresh",
            "3 opens came from processes with a mount of their own",
        ] {
            assert!(said.contains(remedy), "{remedy}: {said}");
        }
        let unused = RootStatus { path: "/unused".into(), state: "ready".into(), ..RootStatus::default() };
        let after = Status { roots: vec![unused], incarnation: 2, ..Status::default() };
        let said = of(&Report::between(&Status::default(), after, Duration::from_secs(60), &[])).join("\n");
        assert!(
            said.contains("no file below /unused was opened") && said.contains("started again 2 time(s)"),
            "{said}"
        );
    }
}
