//! Which file uses which: no circles inside a crate.
//!
//! Every source file is parsed; each path that begins with `crate`, `super` or `self`, in a `use`
//! or elsewhere, is an arrow to the file that defines the module it leads to. Tests inside the
//! files are left out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "layering/graph.rs"]
mod graph;
#[path = "layering/links.rs"]
mod links;
#[path = "layering/places.rs"]
mod places;
#[path = "layering/prose.rs"]
mod prose;

use graph::Crate;
use std::fmt::Write;
use std::path::Path;

/// The crates: directory and name in paths.
const CRATES: [&str; 6] = ["monarch-abi", "monarch-shim", "monarch-core", "policies", "slowfs", "."];

/// Circles that are still there, by the files that make them: the list may only get shorter.
const KNOWN: &[(&str, &[&str])] = &[
    ("monarch-core", &["agent/metrics_service.rs", "agent/server.rs"]),
    (
        "monarch-core",
        &[
            "agent/protocol.rs",
            "cluster/node.rs",
            "cluster/node/checksum_table.rs",
            "cluster/node/corruption_reports.rs",
            "cluster/node/inflight_fetches.rs",
            "cluster/node/local_copy.rs",
            "cluster/node/remote.rs",
            "cluster/node/wait_graph.rs",
            "tiering.rs",
            "tiering/access/access_tracker.rs",
            "tiering/access/directory_costs.rs",
            "tiering/access/epoch_stats.rs",
            "tiering/access/event_merge.rs",
            "tiering/access/hint_inbox.rs",
            "tiering/access/prefetch_order.rs",
            "tiering/access/trace_files.rs",
            "tiering/compression/compressor.rs",
            "tiering/copy/accounting.rs",
            "tiering/copy/chunk_copy_task.rs",
            "tiering/copy/chunked_fetches.rs",
            "tiering/copy/fetch_starter.rs",
            "tiering/copy/file_copies.rs",
            "tiering/copy/file_copy_context.rs",
            "tiering/copy/file_copy_task.rs",
            "tiering/copy/streaming.rs",
            "tiering/core/source_facts.rs",
            "tiering/placement/fair_share.rs",
            "tiering/placement/placer.rs",
            "tiering/placement/reclaim.rs",
            "tiering/queue/refetch.rs",
            "tiering/queue/work_queue.rs",
            "tiering/residency/scrubber.rs",
            "tiering/schedule/dispatcher.rs",
            "tiering/schedule/promoter.rs",
            "tiering/schedule/workers.rs",
            "tiering/status/prefetch_status.rs",
            "tiering/status/residency_report.rs",
        ],
    ),
    ("monarch-core", &["agent/roots.rs", "agent/roots/spellings.rs", "agent/roots/written.rs"]),
    (
        "monarch-core",
        &["tier/copy.rs", "tier/dir.rs", "tier/evict.rs", "tier/log_quota.rs", "tier/pack.rs", "tier/recover.rs"],
    ),
    ("policies", &["sim/ahead.rs", "sim/node.rs"]),
    ("slowfs", &["server/node.rs", "server/paths.rs", "server/pins.rs"]),
];

fn house() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn files_of_a_crate_do_not_use_each_other_in_a_circle() {
    let mut wrong = String::new();
    for name in CRATES {
        let of_crate = Crate::read(&house().join(name).join("src"));
        for circle in of_crate.circles() {
            let known =
                KNOWN.iter().any(|(of, files)| *of == name && circle.files.iter().all(|f| files.contains(&f.as_str())));
            if !known {
                writeln!(wrong, "{name}: {circle}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "files that use each other in a circle:\n{wrong}");
}

#[test]
fn circles_that_have_gone_are_not_listed() {
    for (name, files) in KNOWN {
        let circles = Crate::read(&house().join(name).join("src")).circles();
        for file in *files {
            let there = circles.iter().any(|c| c.files.iter().any(|f| f == file));
            assert!(there, "{name}/src/{file} is in no circle any more: take it off the list");
        }
    }
}
