//! The index holds what the kernel reports, for every field of every entry.

use crate::common::{Indexed, as_path, built_within, bytes, cases, kernel, publish, shown};
use crate::trees::{World, plan};
use monarch_abi::PATH_MAX;
use monarch_abi::index::{DIR_INCOMPLETE, OWNER_KERNEL, Record};
use monarch_abi::segment::Segment;
use monarch_abi::word::State;
use monarch_storage::index::{ScanError, ScanOptions, ScanProgress, scan};
use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, Mode, StatxFlags, StatxTimestamp, Timespec, Timestamps};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;

fn path_of(s: &Segment<'_>, id: u32) -> Vec<u8> {
    let mut out = [0u8; PATH_MAX];
    let len = s.index.path(id, &mut out).unwrap_or_else(|| panic!("entry {id} has no path"));
    out[..len].to_vec()
}

fn below(root: &Path, rel: &[u8]) -> Vec<u8> {
    if rel.is_empty() { bytes(root).to_vec() } else { [bytes(root), b"/", rel].concat() }
}

/// All fields of all entries.
fn check_records(s: &Segment<'_>, root: &Path) {
    for id in 0..s.index.len() as u32 {
        let r = s.index.record(id).expect("record");
        let path = below(root, &path_of(s, id));
        let st = rustix::fs::statx(
            CWD,
            path.as_slice(),
            AtFlags::SYMLINK_NOFOLLOW,
            StatxFlags::BASIC_STATS | StatxFlags::BTIME,
        )
        .unwrap_or_else(|e| panic!("{}: {e}", shown(&path)));
        let ns = |t: StatxTimestamp| t.tv_sec * 1_000_000_000 + i64::from(t.tv_nsec);
        let held = (r.size, r.mtime_ns, r.ctime_ns, r.atime_ns, r.ino, u64::from(r.blocks));
        let said = (st.stx_size, ns(st.stx_mtime), ns(st.stx_ctime), ns(st.stx_atime), st.stx_ino, st.stx_blocks);
        assert_eq!(held, said, "{}", shown(&path));
        assert_eq!((r.mode, u32::from(r.nlink)), (st.stx_mode, st.stx_nlink), "{}", shown(&path));
        assert_eq!(s.index.owner(r), Some((st.stx_uid, st.stx_gid)), "{}", shown(&path));
        let born = (st.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| ns(st.stx_btime));
        assert_eq!(s.index.btime_ns(id), born, "{}", shown(&path));
        let target = r.is_link().then(|| rustix::fs::readlink(path.as_slice(), Vec::new()).expect("readlink"));
        assert_eq!(s.index.link_target(r), target.as_deref().map(std::ffi::CStr::to_bytes), "{}", shown(&path));
    }
}

/// Listings in the kernel's order, subtrees as ranges, ids in depth-first order.
fn check_shape(s: &Segment<'_>, root: &Path) {
    let paths: Vec<Vec<u8>> = (0..s.index.len() as u32).map(|id| path_of(s, id)).collect();
    for (id, path) in paths.iter().enumerate() {
        let id = id as u32;
        let e = s.by_id(id).unwrap_or_else(|| panic!("{} is not in the table", shown(path)));
        assert_eq!((e.id, e.slot.id), (id, id), "{}", shown(path));
        assert_eq!(s.index.name(e.record), Some(path.rsplit(|&c| c == b'/').next().expect("name")));
        let Some(d) = s.index.dir(e.record) else { continue };
        assert_eq!(d.id, id);
        let listed: Vec<_> = std::fs::read_dir(as_path(&below(root, path)))
            .expect("list")
            .map(|e| bytes(Path::new(&e.expect("entry").file_name())).to_vec())
            .collect();
        let held: Vec<_> = s.index.children(d, 0).map(|(_, r)| s.index.name(r).expect("name").to_vec()).collect();
        assert_eq!(held, listed, "{}", shown(path));
        // From any child on, the listing continues as before.
        for (n, (child, _)) in s.index.children(d, 0).enumerate() {
            assert_eq!(s.index.children(d, child).count(), held.len() - n);
            assert_eq!(s.index.dirs()[s.index.parent_of(child).expect("parent")].id, id);
        }
        let prefix = if path.is_empty() { Vec::new() } else { [path.as_slice(), b"/"].concat() };
        for (other, p) in paths.iter().enumerate() {
            let inside = other as u32 == id || (other != 0 && p.starts_with(&prefix));
            assert_eq!(inside, (d.id..d.end).contains(&(other as u32)), "{} and {}", shown(path), shown(p));
        }
    }
}

/// Names of one inode have one word; a copy's stamp leads back to its file.
fn check_names(s: &Segment<'_>) {
    let entries: Vec<_> = (0..s.index.len() as u32).filter_map(|id| s.by_id(id)).collect();
    let files: Vec<_> = entries.iter().filter(|e| e.record.is_file()).collect();
    for a in &files {
        for b in &files {
            let (same_inode, same_word) = (a.record.ino == b.record.ino, std::ptr::eq(a.master, b.master));
            assert_eq!(same_inode, same_word);
            assert_eq!(same_inode, s.copy_name(a) == s.copy_name(b));
        }
        let name = s.copy_name(a);
        let master = s.index.record(a.master.id).expect("master");
        let hash = monarch_abi::hash::PathHash { fp: a.master.fp, check: master.check };
        let found = s.by_stamp(name.stamp(hash), a.record.size).expect("the stamp leads to the file");
        assert_eq!(found.record.ino, a.record.ino);
        let (sec, ns) = name.stamp(hash).to_time();
        assert_eq!(monarch_abi::hash::Stamp::from_time(sec, ns as u32), Some(name.stamp(hash)));
        assert!(s.by_stamp(name.stamp(hash), a.record.size + 1).is_none());
        assert_eq!(a.word().state(), State::Absent);
    }
    let mut once: Vec<u64> = s.files().map(|e| e.record.ino).collect();
    let listed = once.len();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), listed, "every inode once");
    let mut all: Vec<u64> = files.iter().map(|e| e.record.ino).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(once, all);
}

/// Reads everything once, so that a scan does not change the access times that it reports.
fn settle(root: &Path) {
    std::thread::sleep(std::time::Duration::from_millis(12));
    let mut todo = vec![root.to_owned()];
    while let Some(d) = todo.pop() {
        for e in std::fs::read_dir(&d).expect("list").flatten() {
            match e.file_type().expect("type") {
                t if t.is_dir() => todo.push(e.path()),
                t if t.is_symlink() => drop(std::fs::read_link(e.path())),
                _ => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn the_index_is_the_tree(plan in plan(40)) {
        let w = World::new(&plan);
        for (n, root) in w.roots.iter().enumerate() {
            let s = &w.segs.0[n];
            check_shape(s, root);
            check_names(s);
            prop_assert_eq!(s.index.header.root_ino, kernel(bytes(root), false).expect("root").st_ino);
            let up = kernel(bytes(root.parent().expect("parent")), false).expect("parent").st_ino;
            prop_assert_eq!(s.index.header.parent_ino, up);
            prop_assert_eq!(s.index.header.flags & 1, 0);
        }
    }
}

#[test]
fn every_field_is_what_the_kernel_says() {
    let tree = Indexed::new(|root| {
        let at = |name: &str| root.join(name);
        std::fs::create_dir_all(at("d/e/f")).expect("mkdir");
        for (name, len) in [("empty", 0), ("one", 1), ("d/page", 4096), ("d/e/big", 300_000)] {
            std::fs::write(at(name), vec![1; len]).expect("write");
        }
        std::fs::File::create(at("sparse")).and_then(|f| f.set_len(1 << 33)).expect("sparse");
        std::fs::write(root.join(as_path(b"\xff\xfe\n")), b"odd").expect("write");
        std::fs::write(at(&"n".repeat(255)), b"long").expect("write");
        std::fs::hard_link(at("one"), at("d/one_too")).expect("link");
        symlink("d/page", at("link")).expect("link");
        symlink("x".repeat(4000), at("long link")).expect("link");
        rustix::fs::mknodat(CWD, at("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("fifo");
        for (n, mode) in [0o0, 0o400, 0o4755, 0o2711, 0o1777, 0o666].into_iter().enumerate() {
            let path = at(&format!("mode{n}"));
            std::fs::write(&path, b"m").expect("write");
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode)).expect("chmod");
        }
        // Before 1970, the last second of 32 bits, far in the future, odd nanoseconds.
        for (n, (tv_sec, tv_nsec)) in
            [(-1, 1), (-1_000_000, 999_999_999), (i64::from(u32::MAX) + 2, 7), (0, 0)].into_iter().enumerate()
        {
            let path = at(&format!("time{n}"));
            std::fs::write(&path, b"t").expect("write");
            let t = Timespec { tv_sec, tv_nsec };
            let times = Timestamps { last_access: t, last_modification: t };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).expect("utime");
        }
        if rustix::process::geteuid().is_root() {
            for (n, owner) in [(1, 2), (65_534, 65_534), (4_000_000_000, 4_100_000_000)].into_iter().enumerate() {
                let path = at(&format!("owner{n}"));
                std::fs::write(&path, b"o").expect("write");
                std::os::unix::fs::chown(&path, Some(owner.0), Some(owner.1)).expect("chown");
            }
        }
        settle(root);
    });
    check_records(&tree.segment, &tree.root);
    check_shape(&tree.segment, &tree.root);
    check_names(&tree.segment);
    let h = tree.segment.index.header;
    assert_eq!(h.root_dev, std::fs::metadata(&tree.root).expect("stat").dev());
    assert_eq!(h.root_id, monarch_storage::index::root_id(&tree.root));
}

#[test]
fn a_parallel_scan_gives_the_same_index_every_time() {
    let tree = Indexed::new(|root| {
        for d in 0..30 {
            let dir = root.join(format!("d{}/e{d}", d % 7));
            std::fs::create_dir_all(&dir).expect("mkdir");
            (0..20).for_each(|n| std::fs::write(dir.join(format!("f{n}")), [0; 3]).expect("write"));
        }
        settle(root);
    });
    let records = |threads| {
        let s = publish(tree.dir.path(), &built_within(&tree.root, threads, u64::MAX, 3));
        (0..s.index.len() as u32)
            .map(|id| (path_of(&s, id), s.index.record(id).expect("record").ino))
            .collect::<Vec<_>>()
    };
    let one = records(1);
    assert_eq!(one.len(), 1 + 7 + 30 + 600);
    assert!((0..5).all(|_| records(16) == one));
}

#[test]
fn snapshots_are_left_to_the_kernel() {
    let tree = Indexed::new(|root| {
        std::fs::create_dir_all(root.join("d/.snapshot/old")).expect("mkdir");
        std::fs::write(root.join("d/f"), b"f").expect("write");
    });
    let s = &tree.segment;
    let e = s.lookup(b"d/.snapshot").expect("the directory itself");
    assert_eq!(s.index.dir(e.record).map(|d| d.flags), Some(DIR_INCOMPLETE));
    assert!(s.listed_dir(&e).is_none());
    assert!(s.lookup(b"d/.snapshot/old").is_none());
    assert!(s.listed_dir(&s.lookup(b"d").expect("its parent")).is_some());
    assert_eq!(s.index.header.flags & 1, 1);
}

#[test]
fn devices_and_other_file_systems_are_left_to_the_kernel() {
    let dev = |p: &str| std::fs::metadata(p).map(|m| m.dev()).ok();
    if dev("/dev/shm").is_none() || dev("/dev") == dev("/dev/shm") {
        println!("skipped: /dev/shm is no file system of its own here");
        return;
    }
    let dir = tempfile::tempdir().expect("temp dir");
    let s = publish(dir.path(), &built_within(Path::new("/dev"), 1, u64::MAX, 1));
    let null = s.lookup(b"null").expect("/dev/null");
    assert_eq!(null.record.owner, OWNER_KERNEL);
    assert_eq!(s.index.owner(null.record), None);
    let shm = s.lookup(b"shm").expect("/dev/shm");
    assert!(s.listed_dir(&shm).is_none());
    assert_eq!(s.index.owner(shm.record), None);
    let d = s.index.dir(shm.record).expect("a directory");
    assert_eq!(d.end, d.id + 1, "not descended");
}

/// Bytes of an entry beside its name.
const ENTRY_BYTES: u64 = 64 + 23 + 8;

#[test]
fn entries_beyond_the_memory_limit_are_left_to_the_kernel() {
    let tree = Indexed::new(|root| {
        for d in 0..10 {
            std::fs::create_dir(root.join(format!("d{d}"))).expect("mkdir");
            (0..50).for_each(|n| std::fs::write(root.join(format!("d{d}/file{n:04}")), [0; 9]).expect("write"));
        }
        std::fs::create_dir(root.join("flat")).expect("mkdir");
        (0..500).for_each(|n| std::fs::write(root.join(format!("flat/file{n:04}")), [0; 9]).expect("write"));
    });
    for limit in [0, 1, 500, 5_000, 20_000, 60_000, 200_000] {
        let built = built_within(&tree.root, 1, limit, 7);
        let s = publish(tree.dir.path(), &built);
        let held: u64 = (1..s.index.len() as u32)
            .map(|id| ENTRY_BYTES + s.index.name(s.index.record(id).expect("record")).expect("name").len() as u64)
            .sum();
        assert!(held <= limit, "{held} bytes of entries within {limit}");
        let all = s.index.len() == 1 + 11 + 1000;
        assert_eq!(all, limit == 200_000);
        assert_eq!(s.index.header.flags & 1 == 0, all, "limit {limit}: says whether it is complete");
        // A listing in the index is whole, and every entry in it is right.
        for d in s.index.dirs() {
            let path = path_of(&s, d.id);
            let there = std::fs::read_dir(as_path(&below(&tree.root, &path))).expect("list").count();
            let held = s.index.children(d, 0).count();
            if d.flags & DIR_INCOMPLETE == 0 {
                assert_eq!(held, there, "{} within {limit}", shown(&path));
            }
        }
        for id in 0..s.index.len() as u32 {
            let st = kernel(&below(&tree.root, &path_of(&s, id)), false).expect("there");
            assert_eq!(s.index.record(id).map(|r: &Record| r.ino), Some(st.st_ino));
        }
    }
}

#[test]
fn a_cancelled_scan_says_so() {
    let tree = Indexed::new(|_| {});
    let progress = ScanProgress::default();
    progress.cancel.store(true, Ordering::Relaxed);
    let end = scan(&tree.root, ScanOptions { threads: 2, max_memory: u64::MAX }, &progress);
    assert!(matches!(end, Err(ScanError::Cancelled)));
    let gone = scan(&tree.root.join("no"), ScanOptions { threads: 2, max_memory: 1 }, &ScanProgress::default());
    assert!(matches!(gone, Err(ScanError::Root { .. })));
}
