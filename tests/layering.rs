//! No file uses another in a circle, inside any crate.
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
#[path = "layering/types.rs"]
mod types;

use graph::Crate;
use std::fmt::Write;
use std::path::Path;

/// The crates: directory and name in paths.
const CRATES: [&str; 13] = [
    "monarch-abi",
    "monarch-guest",
    "monarch-shim",
    "monarch-audit",
    "monarch-config",
    "monarch-storage",
    "monarch-cluster",
    "monarch-outputs",
    "monarch-rawcalls",
    "monarch-core",
    "policies",
    "slowfs",
    ".",
];

/// The rooms of the tiering engine, highest first: each uses only those below it.
const TIERING_ROOMS: [&str; 11] = [
    "schedule",
    "status",
    "copy",
    "placement",
    "compression",
    "access",
    "residency",
    "queue",
    "throttle",
    "policy",
    "core",
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
            writeln!(wrong, "{name}: {circle}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "files that use each other in a circle:\n{wrong}");
}

/// Place of a file of the tiering engine among its rooms; `None` for `tiering.rs`, above all rooms.
fn tiering_room(file: &str) -> Option<usize> {
    let name = file.strip_prefix("tiering/")?.split(['/', '.']).next()?;
    let place = TIERING_ROOMS.iter().position(|room| *room == name);
    assert!(place.is_some(), "{file} is in no room of the table");
    place
}

/// Arrows from a room of the tiering engine to a higher one, or to `tiering.rs` itself.
fn upward<'a>(arrows: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let is_up = |&(from, to): &(&str, &str)| {
        let Some(from) = tiering_room(from) else { return false };
        to == "tiering.rs" || tiering_room(to).is_some_and(|to| to < from)
    };
    arrows.filter(is_up).map(|(from, to)| format!("{from} -> {to}")).collect()
}

#[test]
fn rooms_of_the_tiering_engine_use_only_those_below_them() {
    let core = Crate::read(&house().join("monarch-core/src"));
    let inside = core.arrows().filter(|(from, to)| [from, to].iter().all(|f| f.starts_with("tiering/"))).count();
    assert!(inside > 100, "only {inside} arrows are found");
    let wrong = upward(core.arrows());
    assert!(wrong.is_empty(), "rooms that use higher ones:\n{}", wrong.join("\n"));
}

#[test]
fn arrows_to_higher_rooms_are_found() {
    let down = [("tiering/copy/publisher.rs", "tiering/core/claim.rs"), ("tiering.rs", "tiering/copy.rs")];
    assert_eq!(upward(down.into_iter()), [""; 0]);
    let up = [("tiering/queue/waker.rs", "tiering/copy.rs"), ("tiering/throttle.rs", "tiering.rs")];
    assert_eq!(upward(up.into_iter()).len(), 2);
}
