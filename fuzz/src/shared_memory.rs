//! The control block, index and state as the shim reads them, after any byte was changed.
//!
//! An input is a list of changes to a small segment that the real builder made, and a few paths.
//! The target then corrects magic numbers, versions and lengths, so that the changes reach as much
//! code as possible.

use super::input::{Input, patch};
use super::sample::{Memory, sample};
use super::walk;
use monarch_abi::LAYOUT;
use monarch_abi::accesses::{Hinted, Opened, Served, Tails};
use monarch_abi::control::{CONTROL_MAGIC, Control, ControlMap, Counter, MAX_ROOTS, Start};
use monarch_abi::demand::{agent_up, is_silent};
use monarch_abi::index::{INDEX_MAGIC, Index, IndexHeader};
use monarch_abi::resolve::{self, Found, Segments, resolve, resolve_parent};
use monarch_abi::segment::Segment;
use monarch_abi::state::{STATE_MAGIC, StateHeader, StateMap};
use std::cell::RefCell;
use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;

const PATHS: [&str; 44] = [
    "/",
    "/pfs",
    "/pfs/data",
    "/pfs/data/",
    "/pfs/data/.",
    "/pfs/data/..",
    "/pfs/dat",
    "/pfs/data2",
    "//pfs/data/README",
    "/pfs/./data/README",
    "/pfs/x/../data/README",
    "/pfs//more/val/0.JPEG",
    "/alias",
    "/alias/0.JPEG",
    "/alias/../README",
    "/alias/same/",
    "/pfs/data/README",
    "/pfs/data/README/",
    "/pfs/data/README/x",
    "/pfs/data/latest",
    "/pfs/data/latest/",
    "/pfs/data/latest/a.JPEG",
    "/pfs/data/latest/../n02/shard-0.tar",
    "/pfs/data/loop",
    "/pfs/data/loop/x",
    "/pfs/data/up",
    "/pfs/data/up/..",
    "/pfs/data/absolute",
    "/pfs/data/by-alias",
    "/pfs/data/secret",
    "/pfs/data/secret/x",
    "/pfs/data/train/again",
    "/pfs/data/train/again/shard-1.tar",
    "/pfs/data/train/again/link-to-file",
    "/pfs/data/train/n02/shard-2.tar",
    "/pfs/data/train/n02/deep/deeper/deepest/y",
    "/pfs/data/train/n02/deep/deeper/deepest/chain",
    "/pfs/data/train/n02/deep/deeper/../../../n01//c.JPEG",
    "/pfs/data/train/inner/val/1.JPEG",
    "/pfs/data/val/1.JPEG",
    "/pfs/data/val/nothing",
    "/pfs/more",
    "/pfs/more/train/n01/b.JPEG",
    "/pfs/more/absolute/../x",
];

thread_local! {
    /// Memory for the control block, which is large and therefore reused.
    static CONTROL: RefCell<Memory> = RefCell::new(Memory::of(&sample().control));
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

struct Roots<'a> {
    ctl: &'a ControlMap<'a>,
    segment: &'a Segment<'a>,
}

impl<'a> Segments<'a> for Roots<'a> {
    fn segment(&self, root: usize) -> Option<(usize, &'a Segment<'a>)> {
        let bypassed = self.ctl.roots().get(root)?.bypassed.load(Relaxed);
        let number = (0..self.ctl.segments().len()).find(|n| {
            self.ctl.segments().get(*n).is_some_and(|s| s.root.load(Relaxed) as usize == root && root < MAX_ROOTS)
        })?;
        (bypassed == 0).then_some((number, self.segment))
    }
}

/// Damages the sample as `bytes` say, and uses it like the shim and the agent.
pub(crate) fn shared_memory(bytes: &[u8]) {
    let sample = sample();
    let mut input = Input(bytes);
    let (flags, changes) = (input.u8(), input.u8() % 32);
    let cut = |bytes: &'static [u8], input: &mut Input<'_>, bit: u8| {
        let keep = if flags & bit == 0 { bytes.len() } else { usize::from(input.u16()) % bytes.len() + 1 };
        Memory::of(&bytes[..keep])
    };
    let (mut index, mut state) = (cut(&sample.index, &mut input, 1), cut(&sample.state, &mut input, 2));
    CONTROL.with_borrow_mut(|control| {
        control.bytes().copy_from_slice(&sample.control);
        for _ in 0..changes {
            match input.u8() % 8 {
                0..3 => patch(&mut input, index.bytes()),
                3..6 => patch(&mut input, state.bytes()),
                _ => patch(&mut input, control.bytes()),
            }
        }
        let index_len = index.bytes().len() as u64;
        put(index.bytes(), offset_of!(IndexHeader, magic), &INDEX_MAGIC.to_le_bytes());
        put(index.bytes(), offset_of!(IndexHeader, layout), &LAYOUT.to_le_bytes());
        put(index.bytes(), offset_of!(IndexHeader, len), &index_len.to_le_bytes());
        put(control.bytes(), offset_of!(Control, magic), &CONTROL_MAGIC.to_le_bytes());
        put(control.bytes(), offset_of!(Control, layout), &LAYOUT.to_le_bytes());
        put(control.bytes(), offset_of!(Control, len), &(sample.control.len() as u64).to_le_bytes());
        let ctl = ControlMap::open(control.map()).expect("a control block with the right beginning");
        segment(&ctl, &index, &mut state, input, flags & 3 == 0 && changes == 0);
        // Last, because it changes entries.
        control_block(&ctl, input);
    });
}

/// Looks up everything in a segment, if there is one. `whole`: nothing was changed.
fn segment(ctl: &ControlMap<'_>, index: &Memory, state: &mut Memory, input: Input<'_>, whole: bool) {
    let Some(index) = Index::open(index.map()) else { return };
    let len = state.bytes().len() as u64;
    put(state.bytes(), offset_of!(StateHeader, magic), &STATE_MAGIC.to_le_bytes());
    put(state.bytes(), offset_of!(StateHeader, layout), &LAYOUT.to_le_bytes());
    put(state.bytes(), offset_of!(StateHeader, len), &len.to_le_bytes());
    put(state.bytes(), offset_of!(StateHeader, index_uuid), &index.header.uuid);
    put(state.bytes(), offset_of!(StateHeader, entries), &(index.len() as u64).to_le_bytes());
    let state = StateMap::open(state.map(), &index);
    let Some(state) = state else { return walk::index(&index) };
    let found = lookups(ctl, &Segment { index, state }, input);
    // The queries are meaningful: most of the paths are those of the sample.
    assert!(!whole || found > 2 * PATHS.len(), "{found} entries found");
}

/// Reads everything of a control block that needs no segment.
fn control_block(ctl: &ControlMap<'_>, mut input: Input<'_>) {
    let strings = ctl.roots().iter().map(|r| &r.path).chain(ctl.tiers().iter().map(|t| &t.path));
    strings.chain(ctl.spellings().iter().flat_map(|s| [&s.path, &s.sub])).for_each(|s| drop(ctl.str(s).to_vec()));
    for s in ctl.segments() {
        let _ = (monarch_core::shm::get_uuid(&s.uuid), s.status.load(Relaxed));
    }
    for path in PATHS {
        if let Start::Root(m) = ctl.match_root(path.as_bytes()) {
            assert!(m.rest.len() <= path.len() && m.rest.first().is_none_or(|c| *c == b'/'));
        }
    }
    let (segment, id) = (input.u8(), input.u32());
    let _ = (ctl.in_bypassed_range(segment.into(), id), ctl.bypass_range(segment.into(), id, id.saturating_add(3)));
    let _ = (ctl.total(Counter::Hits), agent_up(ctl.ctl), is_silent(ctl.ctl, u64::from(id)));
    ctl.count(segment.into(), id as usize, Counter::HitBytes, u64::from(id));
    let early = &ctl.ctl.early;
    let _ = early.leave(segment.into(), b"train/n03/new", id & 1 != 0);
    for root in 0..3 {
        let _ = early.each(root, |path, _| drop(path.to_vec()));
    }
    let mut tails = Tails::new(&ctl.ctl.accesses);
    for process in 0..3 {
        let served = Served::Tier;
        ctl.ctl.accesses.note(process, Opened { segment: segment.into(), id, served, ms: u64::from(id) });
        ctl.ctl.accesses.note_hint(process, Hinted { tag: id, ms: u64::from(id) });
    }
    // The agent has read a part when another process changes the rings.
    let mut noted = 0;
    for now in [u64::from(id), u64::from(id) + 200] {
        noted += tails.take(&ctl.ctl.accesses, now, |_, _| {});
    }
    assert!(noted < 1 << 62);
}

/// Makes the lookups of the shim; returns the number of entries found.
fn lookups(ctl: &ControlMap<'_>, segment: &Segment<'_>, mut input: Input<'_>) -> usize {
    let roots = Roots { ctl, segment };
    let mut asked: Vec<Vec<u8>> = PATHS.iter().map(|p| p.as_bytes().to_vec()).collect();
    while !input.is_empty() && asked.len() < PATHS.len() + 4 {
        asked.push([b"/pfs/data/", input.part()].concat());
    }
    let mut found: Vec<Found<'_>> = Vec::new();
    for path in &asked {
        for follow in [false, true] {
            found.extend(resolve(ctl, &roots, path, follow).ok());
        }
        if let Ok(parent) = resolve_parent(ctl, &roots, path) {
            found.push(parent.dir);
            found.extend(parent.entry);
            found.extend(resolve::child(&parent.dir, b"a.JPEG"));
        }
        let _ = resolve::split_last(path);
    }
    walk::segment(segment);
    for f in &found {
        assert!((f.entry.id as usize) < segment.index.len());
        walk::demands(ctl, f);
    }
    walk::segment(segment);
    found.len()
}
