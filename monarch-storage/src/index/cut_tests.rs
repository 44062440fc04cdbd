//! What is looked for in an index is the same whatever the parts are in which it is looked for, and
//! is what a plain walk finds.

use super::ages::Ages;
use super::build::{Built, build};
use super::environments::{environments_with, marker, prefix};
use super::links_out::links;
use super::read_dir::DirScan;
use super::released::Released;
use super::scan::Tree;
use super::software::{Software, Suffixes, is_library, is_software};
use crate::parts_of::Cut;
use crate::shm::IndexBytes;
use monarch_abi::index::{Index, Record};
use proptest::prelude::*;

const NAMES: [&str; 16] = [
    "1.jpg",
    "2.jpg",
    "README",
    "a.py",
    "b.py",
    "c.C",
    "libm.so.6",
    "x.so",
    "os.py",
    "pyvenv.cfg",
    "site-packages",
    ".git",
    "lib",
    "bin",
    "python3.11",
    "data",
];
const HOUR_NS: i64 = 3600 * 1_000_000_000;

/// An entry: which of the directories so far it is in, whether it is a directory, a link or a file,
/// and its name.
type Step = (prop::sample::Index, u8, prop::sample::Index);

fn built(steps: &[Step]) -> Built {
    let dir = Record { mode: 0o040_755, nlink: 2, ..Record::default() };
    let mut dirs = vec![DirScan::default()];
    for (n, (of, kind, name)) in steps.iter().enumerate() {
        let (at, name) = (of.index(dirs.len()), *name.get(&NAMES));
        let times = n as i64 * HOUR_NS / 3;
        let mut r = match kind {
            0 | 1 => Record { aux: dirs.len() as u32, ..dir },
            2 => Record { mode: 0o120_777, aux: dirs[at].links.len() as u32, ..Record::default() },
            _ => Record { mode: 0o100_644, nlink: 1, size: 4000 + 100 * n as u64, blocks: n as u32 % 3, ..dir },
        };
        if !matches!(kind, 0..=2) {
            (r.mode, r.mtime_ns, r.atime_ns, r.ino) = (0o100_644, times, times, n as u64 + 10);
        }
        let d = &mut dirs[at];
        if *kind == 2 {
            d.links.extend_from_slice(b"\x01\0\0\0x");
        }
        (r.name_lo, r.name_len) = (d.names.len() as u32, name.len() as u8);
        d.names.extend_from_slice(name.as_bytes());
        d.entries.push(r);
        d.btimes.push(i64::MIN);
        if matches!(kind, 0 | 1) {
            dirs.push(DirScan::default());
        }
    }
    let tree = Tree {
        root: dir,
        root_btime: i64::MIN,
        dirs,
        owners: vec![0],
        root_id: 1,
        root_dev: 1,
        began_ns: 1,
        incomplete: false,
        cut: false,
    };
    build(tree, 1, [3; 16])
}

/// The positions of the directories above an entry, the innermost first.
fn above(index: &Index<'_>, id: u32) -> impl Iterator<Item = usize> {
    let id_at = |at: usize| index.dirs()[at].id;
    std::iter::successors(index.parent_of(id), move |&at| index.parent_of(id_at(at)))
}

/// Whether a file is software: by a directory above, or by the names of the files beside it.
fn is_of_software(index: &Index<'_>, id: u32) -> bool {
    let dir = |at: usize| &index.dirs()[at];
    above(index, id).any(|at| is_software(index, dir(at)))
        || above(index, id).next().is_some_and(|at| Suffixes::default().has_code(index, dir(at)))
}

/// Which directories belong to environments.
fn plain_environments(index: &Index<'_>) -> Vec<bool> {
    let is_marked = |at: usize| marker(index, &index.dirs()[at]).is_some();
    let is_below = |at: usize| above(index, index.dirs()[at].id).any(is_marked);
    let mut found: Vec<bool> = (0..index.dirs().len()).map(|at| is_marked(at) || is_below(at)).collect();
    for (at, dir) in index.dirs().iter().enumerate() {
        if marker(index, dir) == Some(b"os.py") && !is_below(at) {
            prefix(index, dir).for_each(|at| found[at] = true);
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_found_in_parts_is_what_a_plain_walk_finds(
        steps in prop::collection::vec((any::<prop::sample::Index>(), 0..9u8, any::<prop::sample::Index>()), 0..120),
        parts in 1..12u32,
    ) {
        let built = built(&steps);
        let index = IndexBytes(&built.index).open().expect("index");
        let (cut, ids) = (Cut::into(parts), 0..index.len() as u32);
        prop_assert!(index.is_sound());

        let software = Software::with(&index, cut);
        let files: Vec<u32> = ids.clone().filter(|&id| index.record(id).is_some_and(Record::is_file)).collect();
        let (mut number, mut bytes, mut libraries) = (0, 0, 0);
        for &id in &files {
            let is = is_of_software(&index, id);
            prop_assert_eq!(software.holds(id), is, "file {}", id);
            let r = index.record(id).expect("a record");
            if is {
                (number, bytes) = (number + 1, bytes + r.size);
                libraries += u64::from(is_library(index.name(r).expect("a name")));
            }
        }
        prop_assert_eq!((software.files, software.bytes, software.libraries), (number, bytes, libraries));

        prop_assert_eq!(environments_with(&index, cut), plain_environments(&index));
        let plain: Vec<u32> = ids.filter(|&id| index.record(id).is_some_and(Record::is_link)).collect();
        prop_assert_eq!(links(&index, cut).collect::<Vec<u32>>(), plain);
        prop_assert_eq!(Released::with(&index, cut), Released::with(&index, Cut::into(1)));
        let now = 1000 * HOUR_NS;
        for hours in [1u64, 960, 980, 1000, 1250] {
            let limit = std::time::Duration::from_hours(hours);
            prop_assert_eq!(Ages::with(&index, cut).near(limit, now), Ages::with(&index, Cut::into(1)).near(limit, now));
        }
    }
}
