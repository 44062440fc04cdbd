//! An agent as lines and tables for people.

use crate::nodes::unshared;
use crate::outputs::lines::age;
use crate::say::{count, counted};
use bytesize::ByteSize;
use comfy_table::{Cell, CellAlignment, Table, presets};
use monarch_core::agent::protocol::{NamesStatus, OutputStatus, RootStatus, Savings, Status, TierStatus};
use monarch_core::shown::ShowPath;
use std::fmt::Write;
use std::time::Duration;

/// Most epochs shown of each root; the JSON has all of them.
const MAX_EPOCHS_SHOWN: usize = 3;

/// Returns what `monarch status` prints of an agent.
pub(super) fn text(s: &Status) -> String {
    let up = humantime::format_duration(Duration::from_secs(s.uptime_s as u64));
    let mut out =
        format!("agent {} ({}), {}, up {up}, policy {}\n", s.pid, s.version, counted(s.jobs, "job"), s.policy);
    // Writing to a string does not fail.
    let _ = writeln!(out, "  engine   {}: {}", s.engine, s.engine_why);
    let _ = writeln!(out, "  runtime  {}", s.runtime_dir.shown());
    if let Some(url) = &s.metrics.url {
        let _ = writeln!(out, "  metrics  {url}");
    }
    if let Some(file) = &s.metrics.textfile {
        let _ = writeln!(out, "  metrics  {}", file.shown());
    }
    if let Some(trouble) = &s.metrics.trouble {
        let _ = writeln!(out, "  notice   no metrics: {trouble}");
    }
    if let Some(trouble) = s.prefetch.trouble() {
        let _ = writeln!(out, "  notice   {trouble}");
    }
    if let Some(why) = &s.alone_because {
        let _ = writeln!(out, "  notice   {}", unshared(why));
    }
    if let Some(names) = &s.names {
        let _ = writeln!(out, "  names    {}", beyond_index(names));
    }
    // Of a new agent on a block with counters of an earlier one, the two do not belong together.
    if s.incarnation == 1 {
        let savings = Savings::of(&s.counters, &s.agent, &s.pfs_opens);
        if savings.opens > 0 {
            let _ = writeln!(out, "  so far   {savings}");
        }
    }
    let _ = write!(out, "\n{}", roots(&s.roots));
    for root in &s.roots {
        about(&mut out, root, s.engine == "auto");
    }
    let _ = write!(out, "\n{}", tiers(&s.tiers));
    if !s.outputs.is_empty() {
        let _ = write!(out, "\n{}", outputs(&s.outputs));
    }
    out
}

/// Returns what is held of directories beyond the index, and of what use that was.
fn beyond_index(n: &NamesStatus) -> String {
    let off = if n.closed { "; left to the PFS since the job has moved or changed a directory there" } else { "" };
    format!(
        "beyond the index {} ({}) held for all nodes, {} ({}) of other nodes; {} of {} answered{off}",
        counted(n.held, "directory"),
        ByteSize(n.held_bytes),
        count(n.cached),
        ByteSize(n.cached_bytes),
        count(n.answered),
        counted(n.asked, "question"),
    )
}

/// Starts a table without lines; all columns but those at the left have numbers.
fn table(heading: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(heading.iter().map(|name| Cell::new(*name)));
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if at == 0 { 2 } else { 0 }, 2));
        if at >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The lines of a table, without spaces at their ends.
fn lines(table: &Table) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn roots(all: &[RootStatus]) -> String {
    let mut table = table(&["ROOT", "STATE", "FILES", "SIZE", "INDEX"], 2);
    for r in all {
        // A failure is a sentence: it stands below.
        let state = r.state.split(':').next().unwrap_or_default();
        table.add_row([
            r.path.shown().to_string(),
            state.to_owned(),
            count(r.files),
            ByteSize(r.bytes).to_string(),
            ByteSize(r.index_bytes).to_string(),
        ]);
    }
    lines(&table)
}

/// Appends what does not fit into a table: how a root is served, its epochs and notices.
fn about(out: &mut String, r: &RootStatus, chooses_engine: bool) {
    let verified = if r.verify_on_open { ", copies verified at each open" } else { "" };
    let _ = if r.state.contains(':') {
        writeln!(out, "\n  {}: {}", r.path.shown(), r.state)
    } else {
        writeln!(out, "\n  {}: {}{verified}", r.path.shown(), r.consistency)
    };
    if chooses_engine && !r.engine.is_empty() {
        let _ = writeln!(out, "    engine {}", r.engine);
    }
    for epoch in r.epochs.iter().rev().take(MAX_EPOCHS_SHOWN).rev() {
        let _ = writeln!(out, "    {epoch}");
    }
    for notice in r.notices() {
        let _ = writeln!(out, "    notice {notice}");
    }
}

fn tiers(all: &[TierStatus]) -> String {
    let mut table = table(&["TIER", "PATH", "COPIES", "USED", "QUOTA", "FULL"], 2);
    for t in all {
        let percent = t.used.saturating_mul(100) / t.capacity.max(1);
        table.add_row([
            t.name.clone(),
            t.path.shown().to_string(),
            count(t.files),
            ByteSize(t.used).to_string(),
            ByteSize(t.capacity).to_string(),
            format!("{percent} %"),
        ]);
    }
    let mut out = lines(&table);
    for t in all {
        if t.resting {
            let _ = writeln!(out, "  {} rests: its disk is full, an error, or the job's memory is short", t.name);
        }
        if t.packed.files > 0 {
            let (bytes, stored) = (t.packed.bytes, t.packed.stored.max(1));
            let ratio = bytes as f64 / stored as f64;
            let _ = writeln!(
                out,
                "  {}: {} of them compressed: {} in {} ({ratio:.2} times smaller)",
                t.name,
                counted(t.packed.files, "copy"),
                ByteSize(bytes),
                ByteSize(stored)
            );
        }
    }
    out
}

fn outputs(all: &[OutputStatus]) -> String {
    let mut table = table(&["OUTPUT ROOT", "TIER", "PENDING", "SIZE", "OLDEST", "OPEN", "RATE", "PUBLISHED"], 2);
    for s in all {
        table.add_row([
            s.path.shown().to_string(),
            s.tier.clone(),
            count(s.pending),
            ByteSize(s.pending_bytes).to_string(),
            s.oldest_ms.map_or_else(|| "-".to_owned(), age),
            count(s.open),
            if s.rate > 0 { format!("{}/s", ByteSize(s.rate)) } else { "-".to_owned() },
            ByteSize(s.published_bytes).to_string(),
        ]);
    }
    let mut out = lines(&table);
    for s in all {
        for notice in s.held.iter().map(|held| format!("held: {held}")).chain(s.notes.iter().cloned()) {
            let _ = writeln!(out, "  {}: {notice}", s.path.shown());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_core::agent::protocol::Epoch;

    #[test]
    fn an_agent_is_lines_and_tables() {
        let first = Epoch { number: 1, opens: 2000, local: 2000, complete: true, ..Epoch::default() };
        let root = RootStatus {
            path: "/scratch/set".into(),
            state: "ready".into(),
            consistency: "immutable".into(),
            files: 2000,
            bytes: 200 << 20,
            index_bytes: 300 << 10,
            epochs: vec![first],
            ..RootStatus::default()
        };
        let failed = RootStatus { path: "/b".into(), state: "failed: no permission".into(), ..RootStatus::default() };
        let tier = TierStatus {
            name: "nvme".into(),
            path: "/local/monarch-1000".into(),
            files: 1,
            used: 512 << 20,
            capacity: 8 << 30,
            resting: true,
            ..TierStatus::default()
        };
        let status = Status {
            version: "1.2.3".into(),
            pid: 77,
            uptime_s: 61.5,
            jobs: 1,
            engine: "uring".into(),
            engine_why: "as set".into(),
            runtime_dir: "/dev/shm/monarch-1000/k".into(),
            policy: "first_epoch".into(),
            roots: vec![root, failed],
            tiers: vec![tier],
            ..Status::default()
        };
        let want = format!(
            "agent 77 (1.2.3), 1 job, up 1m 1s, policy first_epoch
  engine   uring: as set
  runtime  /dev/shm/monarch-1000/k

  ROOT          STATE   FILES       SIZE      INDEX
  /scratch/set  ready   2,000  200.0 MiB  300.0 KiB
  /b            failed      0        0 B        0 B

  /scratch/set: immutable
    {first}

  /b: failed: no permission

  TIER  PATH                 COPIES       USED    QUOTA  FULL
  nvme  /local/monarch-1000       1  512.0 MiB  8.0 GiB   6 %
  nvme rests: its disk is full, an error, or the job's memory is short
"
        );
        assert_eq!(text(&status), want, "{}", text(&status));
    }

    #[test]
    fn what_is_beyond_the_index_has_a_line_and_a_node_that_cannot_share_says_why() {
        let names = NamesStatus { held: 1, held_bytes: 3 << 20, asked: 1200, answered: 1100, ..NamesStatus::default() };
        let alone_because = Some("the secret is open to others".to_owned());
        let shown = text(&Status { names: Some(names), alone_because, ..Status::default() });
        for line in [
            "  notice   this node shares nothing with the others of its job: the secret is open to others\n",
            "  names    beyond the index 1 directory (3.0 MiB) held for all nodes, 0 (0 B) of other nodes; 1,100 of 1,200 questions answered\n",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
        let closed = NamesStatus { closed: true, ..names };
        let shown = text(&Status { names: Some(closed), ..Status::default() });
        assert!(shown.contains("answered; left to the PFS since the job"), "{shown}");
    }

    #[test]
    fn output_roots_have_a_table_below_the_tiers() {
        let output = OutputStatus {
            path: "/scratch/run".into(),
            tier: "nvme".into(),
            pending: 1200,
            pending_bytes: 3 << 30,
            oldest_ms: Some(61_000),
            open: 2,
            rate: 100 << 20,
            published_bytes: 1 << 30,
            held: Some("a.pt: Disk quota exceeded".into()),
            notes: vec!["b.pt: kept as b.pt.partial-7".into()],
            ..OutputStatus::default()
        };
        let shown = text(&Status { outputs: vec![output], ..Status::default() });
        let want = "
  OUTPUT ROOT   TIER  PENDING     SIZE  OLDEST  OPEN         RATE  PUBLISHED
  /scratch/run  nvme    1,200  3.0 GiB   1m 1s     2  100.0 MiB/s    1.0 GiB
  /scratch/run: held: a.pt: Disk quota exceeded
  /scratch/run: b.pt: kept as b.pt.partial-7
";
        assert!(shown.ends_with(want), "{shown}");
    }
}
