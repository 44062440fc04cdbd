//! The lookup table and the size of an index, on trees that exist in memory only; scans within the
//! limit of calls.

use super::build::{Built, build};
use super::read_dir::DirScan;
use super::scan::Tree;
use super::{ScanError, ScanOptions, ScanProgress, scan_within};
use monarch_abi::guard::Guards;
use monarch_abi::hash::path_hash;
use monarch_abi::index::{Dir, Index, IndexHeader, Record};
use monarch_abi::segment::Segment;
use monarch_abi::state::{Bucket, MAX_PROBES, NO_ID, SLOTS, home_bucket, layout_of};

/// `dirs` directories with `files` files each; the length of all names.
fn tree(dirs: usize, files: usize) -> (Tree, usize) {
    let dir = Record { mode: 0o040_755, nlink: 2, ..Record::default() };
    let file = Record { mode: 0o100_644, nlink: 1, size: 100_000, ..Record::default() };
    let mut names = 0;
    let mut list = |n: usize, of: Record, name: &dyn Fn(usize) -> String| {
        let mut d = DirScan::default();
        for i in 0..n {
            let text = name(i);
            let aux = if of.is_dir() { i as u32 + 1 } else { 0 };
            d.entries.push(Record {
                name_lo: d.names.len() as u32,
                name_len: text.len() as u8,
                aux,
                ino: i as u64,
                ..of
            });
            d.names.extend_from_slice(text.as_bytes());
            d.btimes.push(1);
        }
        names += d.names.len();
        d
    };
    let mut all = vec![list(dirs, dir, &|i| format!("n{i:08}"))];
    all.extend((0..dirs).map(|d| list(files, file, &|i| format!("n{:08}_{i}.JPEG", d * files + i))));
    let tree = Tree {
        root: dir,
        root_btime: 1,
        dirs: all,
        owners: vec![0],
        root_id: 1,
        root_dev: 1,
        began_ns: 1,
        incomplete: false,
        cut: false,
    };
    (tree, names)
}

/// The index of a tree of small files with these names.
pub(super) fn index_of(files: &[&str]) -> Built {
    let dir = tempfile::tempdir().expect("a directory");
    for file in files {
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
        std::fs::write(path, "123").expect("write");
    }
    index_at(dir.path())
}

/// The index of a directory, as scanned now.
pub(super) fn index_at(dir: &std::path::Path) -> Built {
    let options = ScanOptions { threads: 1, max_memory: 1 << 30 };
    build(
        scan_within(dir, options, &crate::engine::Limits::default(), &ScanProgress::default()).expect("a scan"),
        1,
        [1; 16],
    )
}

/// The paths of all directories of an index, by position.
pub(super) fn paths_of_dirs(index: &Index<'_>) -> Vec<String> {
    let path = |dir: &Dir| String::from_utf8_lossy(index.path_of(dir.id).expect("a path").get()).into_owned();
    index.dirs().iter().map(path).collect()
}

/// Maps a built index without files.
fn segment(built: &Built) -> Segment<'static> {
    let h: IndexHeader = built.header();
    let dir = tempfile::tempdir().expect("temp dir");
    let made = crate::shm::create_segment(
        &std::sync::Arc::new(crate::held_dir::HeldDir::at(dir.path()).expect("directory")),
        &built.index,
        &built.buckets,
        h.uuid,
        crate::shm::Chunking { threshold: 16 << 20, size: 4 << 20 },
        crate::shm::Checks::default(),
    )
    .expect("segment");
    made.0
}

/// Buckets that a lookup of each path visits: the longest and the mean.
fn probe_lengths(built: &Built) -> (usize, f64) {
    let n = (built.buckets.len() / 64) as u64;
    let (mut longest, mut total, mut paths) = (0, 0, 0);
    for (at, slot) in built.buckets.chunks_exact(16).enumerate() {
        let word = |r: std::ops::Range<usize>| slot[r].iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b));
        if word(12..16) == u64::from(NO_ID) {
            continue;
        }
        let home = home_bucket(word(0..8) >> 20, n);
        let visited = ((at / SLOTS) as u64 + n - home) % n + 1;
        longest = longest.max(visited as usize);
        total += visited;
        paths += 1;
    }
    (longest, total as f64 / f64::from(paths))
}

#[test]
fn a_hundred_thousand_paths_are_found_and_others_are_not() {
    for seed in [0, 1, u64::MAX] {
        let (tree, _) = tree(100, 1000);
        let built = build(tree, seed, [3; 16]);
        let s = segment(&built);
        assert_eq!(s.index.len(), 100_101);
        let mut path = [0u8; monarch_abi::PATH_MAX];
        for id in 0..s.index.len() as u32 {
            let len = s.index.path(id, &mut path).expect("path");
            let e = s.lookup(&path[..len]).expect("found");
            assert_eq!((e.id, e.slot.fp), (id, path_hash(s.index.header.seed, &path[..len]).fp));
            // The same with one more or one other byte is somewhere else.
            path[len] = b'x';
            assert!(s.lookup(&path[..=len]).is_none());
            if len > 0 {
                path[len - 1] ^= 0x80;
                assert!(s.lookup(&path[..len]).is_none());
            }
        }
        assert_eq!(s.state.all().count(), s.index.len());
        let (longest, mean) = probe_lengths(&built);
        println!("seed {seed}: a lookup visits {mean:.3} buckets in the mean, {longest} at most");
        assert!(longest <= 16.min(MAX_PROBES) && mean < 1.4, "mean {mean}, longest {longest}");
        assert_eq!(built.buckets.len() as u64, built.header().buckets * size_of::<Bucket>() as u64);
    }
}

#[test]
fn an_entry_takes_96_bytes_and_its_name() {
    for (dirs, files) in [(50, 1000), (1, 50_000), (25_000, 1)] {
        let (tree, names) = tree(dirs, files);
        let built = build(tree, 1, [3; 16]);
        let h = built.header();
        let state = layout_of(h.entries.into(), h.buckets, 0, 0, Guards::default(), h.dirs.into(), false).len;
        let per_entry = ((h.len + state) as usize - names) as f64 / f64::from(h.entries);
        println!("{dirs} directories of {files} files: {per_entry:.2} bytes and the name");
        // A directory takes 20 bytes more than a file.
        let per_file = per_entry - 20.0 * f64::from(h.dirs) / f64::from(h.entries);
        assert!(per_file <= 96.0 && (dirs > files || per_entry <= 96.0), "{per_entry} bytes");
    }
}

/// Some file systems list a name twice while a directory changes. No seed tells the two apart: the
/// scan of such a root never ended.
#[test]
fn a_name_that_is_listed_twice_is_found_once() {
    let (mut twice, _) = tree(2, 3);
    let linked = Record { nlink: 2, ino: 77, ..twice.dirs[1].entries[0] };
    twice.dirs[1].entries = vec![linked, twice.dirs[1].entries[1], linked];
    let s = segment(&build(twice, 5, [3; 16]));
    assert_eq!((s.index.len(), s.state.all().count()), (9, 8));
    let path = |id: u32| String::from_utf8_lossy(s.index.path_of(id).expect("a path").get()).into_owned();
    assert_eq!(path(2), path(4));
    let found = s.lookup(path(4).as_bytes()).expect("the first");
    assert_eq!((found.id, found.word().state()), (2, monarch_abi::word::State::Absent));
    assert_eq!(s.by_id(3).map(|e| e.id), Some(3));
    let root = s.index.dirs()[1];
    assert_eq!(s.index.children(&root, 0).map(|(id, _)| id).collect::<Vec<_>>(), [2, 3, 4], "as it was listed");
}

/// Lookups are compared with a plain list of paths, listings with a plain tree.
#[test]
fn an_index_holds_what_its_tree_held() {
    use proptest::prelude::*;
    // Of each entry in turn: the directory that it is in, and whether it is a file, a directory, a
    // link, or a further name of a file.
    let steps = proptest::collection::vec((any::<proptest::sample::Index>(), 0..5u8, any::<bool>()), 0..60);
    proptest!(ProptestConfig::with_cases(64), |(steps in steps, seed in any::<u64>(), has_btime in any::<bool>())| {
        let (mut made, _) = tree(0, 0);
        let mut paths = vec![String::new()];
        let mut wanted: Vec<(String, u8, String)> = Vec::new();
        for (n, (at, kind, is_far)) in steps.iter().enumerate() {
            let dir = at.index(made.dirs.len());
            let name = format!("e{n}{}", if *is_far { "x".repeat(100) } else { String::new() });
            let path = format!("{}{name}", paths[dir]);
            let mut r = match kind {
                0 => Record { mode: 0o040_755, aux: made.dirs.len() as u32, ..Record::default() },
                1 => Record { mode: 0o120_777, aux: made.dirs[dir].links.len() as u32, ..Record::default() },
                2 => Record { mode: 0o100_644, nlink: 2, ino: 5, size: 1, ..Record::default() },
                _ => Record { mode: 0o100_644, nlink: 1, ino: 1000 + n as u64, size: 1, ..Record::default() },
            };
            let target = format!("to/{path}");
            let d = &mut made.dirs[dir];
            if *kind == 1 {
                d.links.extend_from_slice(&(target.len() as u32).to_le_bytes());
                d.links.extend_from_slice(target.as_bytes());
            }
            (r.name_lo, r.name_len) = (d.names.len() as u32, name.len() as u8);
            d.names.extend_from_slice(name.as_bytes());
            d.entries.push(r);
            d.btimes.push(if has_btime { n as i64 } else { i64::MIN });
            if *kind == 0 {
                made.dirs.push(DirScan::default());
                paths.push(format!("{path}/"));
            }
            wanted.push((path, *kind, target));
        }
        if !has_btime {
            made.root_btime = i64::MIN;
        }
        let built = build(made, seed, [3; 16]);
        let s = segment(&built);
        prop_assert!(s.index.is_sound());
        prop_assert_eq!(s.index.len(), wanted.len() + 1);
        let mut master = None;
        for (n, (path, kind, target)) in wanted.iter().enumerate() {
            let e = s.lookup(path.as_bytes()).expect("found");
            let found = s.index.path_of(e.id).expect("a path");
            prop_assert_eq!(found.get(), path.as_bytes());
            prop_assert_eq!(s.index.link_target(e.record), (*kind == 1).then_some(target.as_bytes()));
            prop_assert_eq!(s.index.btime_ns(e.id), has_btime.then_some(n as i64));
            if *kind == 2 {
                prop_assert_eq!(*master.get_or_insert(e.master.id), e.master.id, "one word for all names");
                prop_assert!(e.master.id <= e.id);
            } else {
                prop_assert_eq!(e.master.id, e.id);
            }
        }
        let files = wanted.iter().filter(|w| w.1 >= 2).count() as u64;
        prop_assert_eq!((built.header().files, built.header().bytes), (files, files));
    });
}

#[test]
fn a_link_whose_target_has_no_place_is_left_to_the_kernel() {
    let (mut made, _) = tree(1, 2);
    made.dirs[1].entries[0] = Record { mode: 0o120_777, aux: 99, ..made.dirs[1].entries[0] };
    let mut built = build(made, 5, [3; 16]);
    assert!(segment(&built).index.is_sound());
    let aux = built.header().records_off as usize + 2 * 64 + std::mem::offset_of!(Record, aux);
    built.index[aux..aux + 4].copy_from_slice(&monarch_abi::index::LINK_OF_KERNEL.to_le_bytes());
    let s = segment(&built);
    assert_eq!(s.index.link_target(s.index.record(2).expect("the link")), None);
    assert!(s.index.is_sound(), "there may be links whose target is not held");
    built.index[aux..aux + 4].copy_from_slice(&7_777_777u32.to_le_bytes());
    assert!(!segment(&built).index.is_sound(), "but none that lies elsewhere");
}

#[test]
fn an_empty_root_has_an_index() {
    let (tree, _) = tree(0, 0);
    let s = segment(&build(tree, 1, [3; 16]));
    assert_eq!(s.lookup(b"").map(|e| e.id), Some(0));
    assert!(s.lookup(b"x").is_none() && s.files().next().is_none());
    assert_eq!(s.listed_dir(&s.by_id(0).expect("root")).map(|d| (d.id, d.end)), Some((0, 1)));
}

#[test]
fn bytes_that_are_not_aligned_are_no_index() {
    let (tree, _) = tree(2, 3);
    let built = build(tree, 1, [3; 16]);
    let mut moved = vec![0u8; built.index.len() + 64];
    let at = (0..64).find(|n| (moved.as_ptr().addr() + n) % 8 == 1).expect("an odd place");
    moved[at..at + built.index.len()].copy_from_slice(&built.index);
    assert!(crate::shm::IndexBytes(&moved[at..at + built.index.len()]).open().is_none());
}

#[test]
fn a_scan_keeps_within_the_limit_of_calls() {
    let dir = tempfile::tempdir().expect("temp dir");
    for n in 0..55 {
        std::fs::write(dir.path().join(format!("f{n}")), "x").expect("write");
    }
    for n in 0..5 {
        std::os::unix::fs::symlink("f0", dir.path().join(format!("l{n}"))).expect("link");
    }
    let options = ScanOptions { threads: 4, max_memory: u64::MAX };
    let limits = crate::engine::Limits::new(None, Some(100));
    let start = std::time::Instant::now();
    let tree = scan_within(dir.path(), options, &limits, &ScanProgress::default()).expect("scan");
    let took = start.elapsed().as_secs_f64();
    assert!(!tree.incomplete);
    // The root is opened and looked at, then opened and listed as a directory (3 calls), 60 names
    // and 5 targets are asked for: 70 calls, of which 10 are the burst.
    assert!((0.58..3.0).contains(&took), "70 calls at 100/s took {took} s");
}

#[test]
fn a_scan_that_waits_for_the_limits_can_be_cancelled() {
    let dir = tempfile::tempdir().expect("temp dir");
    (0..200).for_each(|n| std::fs::write(dir.path().join(n.to_string()), "x").expect("write"));
    let options = ScanOptions { threads: 4, max_memory: u64::MAX };
    let (limits, progress) = (crate::engine::Limits::new(None, Some(2)), ScanProgress::default());
    std::thread::scope(|s| {
        let scan = s.spawn(|| scan_within(dir.path(), options, &limits, &progress));
        std::thread::sleep(std::time::Duration::from_millis(100));
        progress.cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        let start = std::time::Instant::now();
        assert!(matches!(scan.join().expect("scan"), Err(ScanError::Cancelled)));
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", start.elapsed());
    });
}

#[test]
fn an_index_says_whether_its_scan_came_to_everything() {
    let dir = tempfile::tempdir().expect("temp dir");
    (0..50).for_each(|n| std::fs::write(dir.path().join(n.to_string()), "x").expect("write"));
    let flags = |max_memory| {
        let options = ScanOptions { threads: 2, max_memory };
        let tree = super::scan(dir.path(), options, &ScanProgress::default()).expect("scan");
        build(tree, 1, [1; 16]).header().flags
    };
    assert_eq!((flags(u64::MAX), flags(1000)), (0, 1 | monarch_abi::index::INDEX_CUT));
}
