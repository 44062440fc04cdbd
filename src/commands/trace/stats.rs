//! `monarch trace stats`: the counts of a trace as text.

use bytesize::ByteSize;
use monarch_core::shown::ShowPath;
use monarch_core::trace::{Bin, EpochStats, ServedCounts, Stats, TraceHeader};
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// Columns of the longest bar.
const MAX_BAR_COLUMNS: u64 = 40;
/// Streams that are named.
const MAX_STREAMS_SHOWN: usize = 16;

pub(super) fn text(s: &Stats, header: &TraceHeader) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = about(&mut out, header)
        .and_then(|()| whole(&mut out, s))
        .and_then(|()| s.epochs.iter().try_for_each(|e| epoch(&mut out, e)))
        .and_then(|()| rest(&mut out, s));
    out
}

fn about(out: &mut String, h: &TraceHeader) -> std::fmt::Result {
    let created = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(h.created_ms));
    let latest = Duration::from_secs(253_402_300_799);
    if let Some(created) = created.filter(|_| Duration::from_millis(h.created_ms) < latest) {
        writeln!(out, "begun      {} on {}", humantime::format_rfc3339_seconds(created), h.host)?;
    }
    if !h.policy.is_empty() {
        writeln!(out, "policy     {}, room {}", h.policy, ByteSize(h.capacity))?;
    }
    h.roots.iter().try_for_each(|root| writeln!(out, "root       {}", root.shown()))
}

fn whole(out: &mut String, s: &Stats) -> std::fmt::Result {
    writeln!(out, "files      {} with {}", s.files, ByteSize(s.bytes))?;
    let lost = if s.lost > 0 { format!(", {} more were not recorded", s.lost) } else { String::new() };
    writeln!(out, "accesses   {} in {:.1} s{lost}", s.accesses, s.duration_s)?;
    writeln!(out, "served     {}", served(&s.served))?;
    writeln!(out, "epochs")?;
    writeln!(out, "{:>8} {:>12} {:>12} {:>12} {:>12}  served", "number", "start s", "duration s", "accesses", "bytes")
}

fn epoch(out: &mut String, e: &EpochStats) -> std::fmt::Result {
    let bytes = ByteSize(e.bytes).to_string();
    let (start, duration) = (e.start_s, e.duration_s);
    writeln!(
        out,
        "{:>8} {start:>12.1} {duration:>12.1} {:>12} {bytes:>12}  {}",
        e.number,
        e.accesses,
        served(&e.served)
    )
}

fn rest(out: &mut String, s: &Stats) -> std::fmt::Result {
    writeln!(out, "sizes of files, up to")?;
    bars(out, &s.sizes, |b| ByteSize(b).to_string())?;
    writeln!(out, "distinct files between two accesses to a file, up to")?;
    bars(out, &s.reuse, |b| b.to_string())?;
    writeln!(out, "hits of a least-recently-used cache with room for")?;
    for l in &s.lru {
        writeln!(out, "{:>11} % {:>12} files {:>8.1} %", l.percent, l.files, 100.0 * l.hit_ratio)?;
    }
    let named: Vec<String> =
        s.streams.iter().take(MAX_STREAMS_SHOWN).map(|t| format!("{}: {}", t.stream, t.accesses)).collect();
    let more = if s.streams.len() > MAX_STREAMS_SHOWN { ", ..." } else { "" };
    writeln!(out, "streams    {} ({}{more})", s.streams.len(), named.join(", "))
}

fn served(s: &ServedCounts) -> String {
    let all = (s.tier + s.waited + s.pfs).max(1) as f64;
    let share = |n: u64| 100.0 * n as f64 / all;
    format!("tier {:.1} %, waited {:.1} %, pfs {:.1} %", share(s.tier), share(s.waited), share(s.pfs))
}

fn bars(out: &mut String, bins: &[Bin], name: impl Fn(u64) -> String) -> std::fmt::Result {
    let most = bins.iter().map(|b| b.count).max().unwrap_or(1).max(1);
    for b in bins {
        let len = usize::try_from((u128::from(b.count) * u128::from(MAX_BAR_COLUMNS)).div_ceil(u128::from(most)))
            .unwrap_or(0);
        writeln!(out, "{:>13} {:>12} {}", name(b.up_to), b.count, "#".repeat(len))?;
    }
    Ok(())
}
