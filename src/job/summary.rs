//! What a run saved: at most twelve lines for people, one JSON object for scripts.

use bytesize::ByteSize;
use monarch_core::agent::place;
use monarch_core::agent::protocol::Status;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Differences between two looks at the agent.
#[derive(Debug)]
pub(crate) struct Saved {
    counters: BTreeMap<String, u64>,
    agent: BTreeMap<String, u64>,
    seconds: f64,
    restarts: u32,
    shared: bool,
}

fn minus(a: &BTreeMap<String, u64>, b: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    a.iter().map(|(k, v)| (k.clone(), v.saturating_sub(b.get(k).copied().unwrap_or(0)))).collect()
}

impl Saved {
    pub(crate) fn between(before: &Status, after: &Status, took: Duration) -> Self {
        let restarts = after.incarnation.saturating_sub(before.incarnation);
        // A new agent starts its own figures at zero; the counters of the job's processes live on.
        let agent = if restarts == 0 { minus(&after.agent, &before.agent) } else { after.agent.clone() };
        Self {
            counters: minus(&after.counters, &before.counters),
            agent,
            seconds: took.as_secs_f64(),
            restarts,
            shared: after.jobs > 1,
        }
    }

    fn get(&self, name: &str) -> u64 {
        self.counters.get(name).or_else(|| self.agent.get(name)).copied().unwrap_or(0)
    }

    /// Opens that found a copy, and opens that went to the PFS.
    fn opens(&self) -> (u64, u64) {
        let local = self.get("hits") + self.get("waited");
        let reasons = ["absent", "refused", "changed", "deadline", "vanished", "large"];
        (local, reasons.iter().map(|r| self.counters.get(*r).copied().unwrap_or(0)).sum())
    }

    pub(crate) fn json(&self, after: &Status) -> Value {
        let (local, pfs) = self.opens();
        json!({
            "seconds": self.seconds,
            "opens_local": local,
            "opens_pfs": pfs,
            "opens_chunked": self.get("chunked"),
            "counters": self.counters,
            "agent": self.agent,
            "agent_restarts": self.restarts,
            "shared_with_other_jobs": self.shared,
            "status": after,
        })
    }

    /// Why opens went to the PFS.
    fn reasons(&self) -> String {
        let part = |name: &str, text: &str| match self.counters.get(name) {
            Some(&n) if n > 0 => format!(" {n} {text},"),
            _ => String::new(),
        };
        let why = [
            part("absent", "before there was an index"),
            part("large", "large and not complete"),
            part("refused", "without room or paused"),
            part("changed", "changed since the scan, or not readable"),
            part("deadline", "took too long"),
            part("vanished", "copy dropped"),
        ];
        why.concat().trim_end_matches(',').to_owned()
    }

    pub(crate) fn text(&self, after: &Status) -> String {
        let ((local, pfs), chunked) = (self.opens(), self.get("chunked"));
        let (mut out, all) = (String::new(), local + pfs + chunked);
        // Rounded down: 100 % is all of them.
        let share = (1000 * local).checked_div(all).unwrap_or(0) as f64 / 10.0;
        let _ = writeln!(out, "monarch: {local} of {all} opens below the roots were local ({share:.1} %)");
        let _ = writeln!(
            out,
            "monarch: {} read from copies, {} copied from the PFS; {} stats and {} listings answered from memory",
            ByteSize(self.get("hit_bytes")),
            ByteSize(self.get("bytes_copied")),
            self.get("stats"),
            self.get("lists")
        );
        if pfs > 0 {
            let _ = writeln!(out, "monarch: {pfs} opens went to the PFS:{}", self.reasons());
        }
        if chunked > 0 {
            let _ = writeln!(
                out,
                "monarch: {chunked} opens of large files were served in chunks: {} from what there was of copies, {} from the PFS",
                ByteSize(self.get("chunk_bytes")),
                ByteSize(self.get("chunk_miss_bytes"))
            );
        }
        let fresh = self.get("unsettled");
        if fresh > 0 {
            let _ = writeln!(
                out,
                "monarch: {fresh} files had just been changed and were left alone at first (dataset.settle)"
            );
        }
        for r in after.roots.iter().filter(|r| r.epochs.len() > 1) {
            let Some((first, last)) = r.epochs.first().zip(r.epochs.last()) else { continue };
            let _ = writeln!(out, "monarch: {first}");
            let _ = writeln!(out, "monarch: {last}");
        }
        for t in &after.tiers {
            let _ = writeln!(
                out,
                "monarch: tier {}: {} of {} used by {} copies{}",
                t.name,
                ByteSize(t.used),
                ByteSize(t.capacity),
                t.files,
                if t.resting { ", resting (its disk is full, an error, or the job's memory is short)" } else { "" }
            );
        }
        for r in &after.roots {
            for notice in r.notices() {
                let _ = writeln!(out, "monarch: root {}: {notice}", r.path.display());
            }
            if r.state != "ready" {
                let _ = writeln!(out, "monarch: root {}: {} ({} entries)", r.path.display(), r.state, r.entries);
            } else if r.opens == 0 && self.get("stats") == 0 {
                let _ = writeln!(
                    out,
                    "monarch: warning: no file below {} was opened; does the job use another path to it? (dataset.aliases)",
                    r.path.display()
                );
            }
        }
        if self.restarts > 0 {
            let log = after.runtime_dir.join(place::LOG);
            let _ = writeln!(
                out,
                "monarch: warning: the agent was started again {} time(s); see {}, removed 3 s after the last job",
                self.restarts,
                log.display()
            );
        }
        if self.shared {
            let _ = writeln!(out, "monarch: other jobs share this agent; the figures are those of all of them");
        }
        let lines: Vec<&str> = out.lines().take(12).collect();
        lines.join("\n") + "\n"
    }
}
