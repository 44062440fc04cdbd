//! Damaged shared memory leads to misses, never to a panic or a reference outside the mapping.

use crate::common::{BySegment, Indexed, Spelled, built, cases, control, held};
use monarch_abi::PATH_MAX;
use monarch_abi::control::{CONTROL_LEN, Control, ControlMap};
use monarch_abi::hash::Stamp;
use monarch_abi::index::{Index, IndexHeader, Record};
use monarch_abi::mem::Map;
use monarch_abi::resolve::{resolve, resolve_parent};
use monarch_abi::segment::Segment;
use monarch_abi::state::StateMap;
use proptest::prelude::*;
use std::mem::offset_of;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// A private, page-aligned copy of a file, leaked as real mappings are.
fn mapped(bytes: &[u8]) -> Map<'static> {
    #[derive(Clone)]
    #[repr(C, align(4096))]
    struct Page([u8; 4096]);
    let pages: &'static mut [Page] = Vec::leak(vec![Page([0; 4096]); bytes.len().div_ceil(4096)]);
    for (page, part) in pages.iter_mut().zip(bytes.chunks(4096)) {
        page.0[..part.len()].copy_from_slice(part);
    }
    // SAFETY: leaked, page-aligned, at least this long, written by no other code.
    unsafe { Map::new(pages.as_mut_ptr().cast(), bytes.len()) }
}

struct Files {
    _tree: Indexed,
    index: Vec<u8>,
    state: Vec<u8>,
}

/// The two files of a segment with most kinds of entries.
fn files() -> &'static Files {
    static FILES: OnceLock<Files> = OnceLock::new();
    FILES.get_or_init(|| {
        let tree = Indexed::new(|root| {
            std::fs::create_dir_all(root.join("a/b/c")).expect("mkdir");
            for name in ["a/f", "a/b/f", "a/b/c/f", "a/b/c/g", "h"] {
                std::fs::write(root.join(name), name).expect("write");
            }
            std::fs::hard_link(root.join("h"), root.join("a/h")).expect("hard link");
            for (to, name) in [("a/b", "l"), ("../h", "a/up"), ("loop", "loop"), ("/nowhere", "out")] {
                std::os::unix::fs::symlink(to, root.join(name)).expect("link");
            }
        });
        let made = built(&tree.root);
        let state_uuid = [9; 16];
        monarch_storage::shm::create_segment(
            &held(tree.dir.path()),
            &made.index,
            &made.buckets,
            state_uuid,
            monarch_storage::shm::Chunking { threshold: 16 << 20, size: 4 << 20 },
            monarch_storage::shm::Checks {
                revalidate: Some(std::time::Duration::from_secs(5)),
                verify: true,
                ..Default::default()
            },
        )
        .expect("segment");
        let (_, state) = monarch_storage::shm::segment_names(made.header().uuid, state_uuid);
        let state = std::fs::read(tree.dir.path().join(state)).expect("read");
        Files { index: made.index, state, _tree: tree }
    })
}

/// Asserts that a slice lies inside a mapping.
fn inside(whole: &[u8], part: &[u8]) {
    let (w, p) = (whole.as_ptr_range(), part.as_ptr_range());
    assert!(part.is_empty() || (w.start <= p.start && p.end <= w.end), "a reference outside the mapping");
}

/// Calls every function that reads an index, for all ids up to a bound and some that cannot be.
fn use_index(index: &Index<'_>, whole: &[u8]) {
    let n = index.len().min(200) as u32;
    for id in (0..n).chain([n, u32::MAX - 1, u32::MAX]) {
        let mut out = [0u8; PATH_MAX];
        let _ = (index.path(id, &mut out), index.parent_of(id), index.btime_ns(id));
        let Some(r) = index.record(id) else { continue };
        inside(whole, index.name(r).unwrap_or(&[]));
        inside(whole, index.link_target(r).unwrap_or(&[]));
        let _ = (index.owner(r), r.d_type(), r.identity());
        if let Some(d) = index.dir(r) {
            let _ = (index.children(d, 0).take(300).count(), index.children(d, u32::MAX).count());
        }
    }
    let _ = index.dirs().len();
}

fn use_segment(s: &Segment<'static>) {
    for path in ["", "a", "a/b/c/f", "h", "a/h", "l", "x", "a/b/c/d/e"] {
        if let Some(e) = s.lookup(path.as_bytes()) {
            let _ = (e.word(), s.copy_name(&e), s.listed_dir(&e));
        }
    }
    for id in (0..40).chain([u32::MAX]) {
        let _ = (s.by_id(id).map(|e| e.id), s.state.slot(id).map(|s| s.id));
        s.state.raise(id);
    }
    let _ = s.files().map(|e| u64::from(e.id)).sum::<u64>();
    let mut seen = 0u64;
    s.state.drain(|id| seen += u64::from(id));
    for stamp in [0, 1, u64::MAX >> 4, 0x0123_4567_89ab_cdef] {
        let _ = s.by_stamp(Stamp(stamp), 1).map(|e| e.id);
    }
    for fp in [0, 1, (1 << 44) - 1] {
        let _ = s.state.probe(fp).count();
    }
}

/// Resolves paths of every kind in a segment.
fn use_paths(s: &Segment<'static>) {
    static CONTROL: OnceLock<(tempfile::TempDir, ControlMap<'static>)> = OnceLock::new();
    let (_, ctl) = CONTROL.get_or_init(|| {
        let dir = tempfile::tempdir().expect("temp dir");
        let spelled = Spelled { path: "/r".into(), sub: "", root: 0 };
        let ctl = control(dir.path(), &["/r".into()], &[spelled]);
        (dir, ctl)
    });
    let segs = BySegment(vec![*s]);
    for path in ["/r", "/r/a/b/c/f", "/r/a/./b/../b//c/g", "/r/l/c/f", "/r/a/up", "/r/loop", "/r/out/x", "/r/l/../h/"] {
        for follow in [false, true] {
            let _ = resolve(ctl, &segs, path.as_bytes(), follow).map(|f| f.entry.id);
        }
        let _ = resolve_parent(ctl, &segs, path.as_bytes()).map(|p| p.dir.entry.id);
    }
}

fn use_files(index: &[u8], state: &[u8]) {
    let (index_map, state_map) = (mapped(index), mapped(state));
    let Some(index) = Index::open(index_map) else { return };
    use_index(&index, index_map.array::<u8>(0, index_map.len()).expect("all of it"));
    let Some(state) = StateMap::open(state_map, &index) else { return };
    let s = Segment { index, state };
    use_segment(&s);
    use_paths(&s);
}

/// Values that break arithmetic, beside arbitrary ones.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(64),
        Just(u64::MAX),
        Just(u64::from(u32::MAX)),
        Just(u64::from(u32::MAX) << 32),
        Just(i64::MAX as u64),
        0..20_000u64,
        any::<u64>(),
    ]
}

fn put(bytes: &mut [u8], at: usize, v: u64) {
    if let Some(to) = bytes.get_mut(at..at + 8) {
        to.copy_from_slice(&v.to_le_bytes());
    }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn damaged_headers(words in prop::collection::vec((0..32usize, value()), 1..4), state_words in prop::collection::vec((1..9usize, value()), 0..3)) {
        let (mut index, mut state) = (files().index.clone(), files().state.clone());
        // Magic, layout and length are checked first: leave them, so that the rest is read.
        for (n, v) in words {
            if n * 8 >= 16 && n * 8 != offset_of!(IndexHeader, len) {
                put(&mut index, n * 8, v);
            }
        }
        state_words.iter().for_each(|&(n, v)| put(&mut state, n * 8, v));
        use_files(&index, &state);
    }

    #[test]
    fn damaged_contents(spots in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..30), state_spots in prop::collection::vec((any::<prop::sample::Index>(), value()), 0..10)) {
        let (mut index, mut state) = (files().index.clone(), files().state.clone());
        for (at, v) in spots {
            // Records, directories, names: behind the header; aligned, so that whole fields change.
            let at = 256 + at.index(index.len() - 264) / 8 * 8;
            put(&mut index, at, v);
        }
        for (at, v) in state_spots {
            let at = 4096 + at.index(state.len() - 4104) / 8 * 8;
            put(&mut state, at, v);
        }
        use_files(&index, &state);
    }

    #[test]
    fn garbage(mut index in prop::collection::vec(any::<u8>(), 0..1500), mut state in prop::collection::vec(any::<u8>(), 0..6000), honest in any::<bool>()) {
        if honest && index.len() > 256 {
            index[..16].copy_from_slice(&files().index[..16]);
            let len = index.len() as u64;
            put(&mut index, offset_of!(IndexHeader, len), len);
        }
        if honest && state.len() > 80 {
            state[..32].copy_from_slice(&files().state[..32]);
        }
        use_files(&index, &state);
        if let Some(index) = Index::open(mapped(&files().index)) {
            prop_assert!(StateMap::open(mapped(&state), &index).is_none());
        }
    }

    #[test]
    fn cut_short(index_len in any::<prop::sample::Index>(), state_len in any::<prop::sample::Index>()) {
        let f = files();
        prop_assert!(Index::open(mapped(&f.index[..index_len.index(f.index.len())])).is_none());
        let index = Index::open(mapped(&f.index)).expect("whole");
        prop_assert!(StateMap::open(mapped(&f.state[..state_len.index(f.state.len())]), &index).is_none());
    }

    #[test]
    fn damaged_control_blocks(spots in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..40), lens in prop::collection::vec(any::<u32>(), 7)) {
        let mut bytes = vec![0u8; CONTROL_LEN];
        for (at, v) in spots {
            put(&mut bytes, at.index(CONTROL_LEN - 8) / 8 * 8, v);
        }
        bytes[..8].copy_from_slice(&monarch_abi::control::CONTROL_MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&monarch_abi::LAYOUT.to_le_bytes());
        put(&mut bytes, offset_of!(Control, len), CONTROL_LEN as u64);
        let ctl = ControlMap::open(mapped(&bytes)).expect("magic, layout and length are right");
        let c = ctl.ctl;
        let counts = [&c.roots_len, &c.spellings_len, &c.tiers_len, &c.segments_len, &c.ranges_len, &c.strings_len];
        for small in [true, false] {
            counts.iter().zip(&lens).for_each(|(to, n)| to.store(if small { n % 17 } else { *n }, Ordering::Relaxed));
            for s in ctl.spellings().iter().map(|s| &s.path).chain(ctl.roots().iter().map(|r| &r.path)) {
                let _ = ctl.str(s).len();
            }
            let _ = (ctl.tiers().len(), ctl.segments().len(), ctl.in_bypassed_range(3, 4), ctl.match_root(b"/a/b"));
            let _ = ctl.bypass_range(lens[6], 1, 2);
            let segs = BySegment(Vec::new());
            let _ = resolve(&ctl, &segs, b"/a//b/../c", true).map(|f| f.entry.id);
        }
    }
}

#[test]
fn a_circle_of_parents_ends() {
    // A directory that is its own parent, with an empty name: a path that never grows and never
    // ends.
    let mut bytes = files().index.clone();
    let h: IndexHeader = zerocopy::FromBytes::read_from_prefix(&bytes).map(|(h, _)| h).expect("header");
    let at = |id: u64| (h.records_off + id * 64) as usize + offset_of!(Record, name_len);
    (0..u64::from(h.entries)).for_each(|id| bytes[at(id)] = 0);
    for n in 0..u64::from(h.dirs) {
        let at = (h.dirs_off + n * 16) as usize;
        bytes[at..at + 4].copy_from_slice(&1u32.to_le_bytes());
        bytes[at + 4..at + 8].copy_from_slice(&u32::MAX.to_le_bytes());
    }
    let index = Index::open(mapped(&bytes)).expect("the header is right");
    let mut out = [0u8; PATH_MAX];
    for id in 0..h.entries {
        let _ = index.path(id, &mut out);
    }
}

#[test]
fn a_state_of_another_index_is_refused() {
    let index = Index::open(mapped(&files().index)).expect("index");
    assert!(StateMap::open(mapped(&files().state), &index).is_some());
    let mut other = files().state.clone();
    other[20] ^= 1;
    assert!(StateMap::open(mapped(&other), &index).is_none());
    let mut later = files().index.clone();
    later[8] += 1;
    assert!(Index::open(mapped(&later)).is_none(), "another layout");
}

#[test]
fn an_index_is_read_only_once_it_has_its_name() {
    use std::os::unix::fs::PermissionsExt;
    let tree = Indexed::new(|root| std::fs::write(root.join("f"), "x").expect("write"));
    let mut modes: Vec<(String, u32)> = std::fs::read_dir(tree.dir.path())
        .expect("list")
        .map(|e| e.expect("entry"))
        .filter_map(|e| {
            Some((e.path().extension()?.to_str()?.to_owned(), e.metadata().ok()?.permissions().mode() & 0o7777))
        })
        .collect();
    modes.sort();
    assert_eq!(modes, [("idx".to_owned(), 0o400), ("st".to_owned(), 0o600)]);
}
