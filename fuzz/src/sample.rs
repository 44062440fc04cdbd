//! A small segment and a control block, made by the builder that agents use, and memory in which
//! targets damage them.

use monarch_abi::control::{
    CONTROL_LEN, Control, MAX_INFLIGHT, MAX_ROOTS, MAX_SEGMENTS, MAX_SPELLINGS, MAX_TIERS, SEGMENT_LIVE,
};
use monarch_abi::mem::Map;
use monarch_core::config::{AbsentNames, AbsentRule};
use monarch_core::held_dir::HeldDir;
use monarch_core::index::{Built, build, sample_tree};
use monarch_core::shm::{self, Checks, Chunking, ControlParams};
use std::alloc::Layout;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Size of the chunks of the sample's large files.
pub(crate) const CHUNKING: Chunking = Chunking { threshold: 16 << 20, size: 1 << 20 };
const NAMES: AbsentNames =
    AbsentNames { rule: AbsentRule::Checked, every: Duration::from_secs(5), min_age: Duration::ZERO };
/// Every check that a segment can have, so that all arrays exist.
pub(crate) const CHECKS: Checks = Checks {
    revalidate: Some(Duration::from_secs(5)),
    verify: true,
    loaded: false,
    other_ctimes: false,
    absent: NAMES,
    on_demand: true,
};

/// Bytes of the files that processes map.
pub(crate) struct Sample {
    pub(crate) built: Built,
    pub(crate) index: Vec<u8>,
    pub(crate) state: Vec<u8>,
    pub(crate) control: Vec<u8>,
}

/// An empty directory in memory, where the machine has one.
pub(crate) fn scratch() -> tempfile::TempDir {
    let memory = PathBuf::from("/dev/shm");
    let place = if memory.is_dir() { memory } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("monarch-fuzz-").tempdir_in(place).expect("a scratch directory")
}

/// A directory by its descriptor, as the agent uses it.
pub(crate) fn held(dir: &tempfile::TempDir) -> Arc<HeldDir> {
    Arc::new(HeldDir::at(dir.path()).expect("a directory"))
}

/// A built index with its seed and name.
pub(crate) fn built() -> Built {
    build(sample_tree(), 7, [3; 16])
}

/// The sample, made once for each process.
pub(crate) fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let dir = scratch();
        let built = built();
        let (uuid, state_uuid) = (built.header().uuid, [4; 16]);
        shm::create_segment(&held(&dir), &built.index, &built.buckets, state_uuid, CHUNKING, CHECKS)
            .expect("a segment");
        let (index, state) = shm::segment_names(uuid, state_uuid);
        let read = |name: String| std::fs::read(dir.path().join(name)).expect("what was just written");
        let control = control(&dir, uuid, state_uuid);
        Sample { built, index: read(index), state: read(state), control }
    })
}

fn control(dir: &tempfile::TempDir, uuid: [u8; 16], state_uuid: [u8; 16]) -> Vec<u8> {
    let path = held(dir);
    let map = shm::create_control(&path, ControlParams { mnt_ns: 1, slash: (1, 2), user_ns: 3, pid_ns: 4 })
        .expect("a control block");
    let c: &Control = map.ctl;
    let text = |to, text: &[u8]| shm::put_str(&path, &map, to, text).expect("room for strings");
    for (number, root) in [b"/pfs/data".as_slice(), b"/pfs/more"].into_iter().enumerate() {
        text(&c.roots[number].path, root);
        c.roots[number].dev.store(5, Relaxed);
    }
    let spellings = [
        (b"/pfs/data".as_slice(), b"".as_slice(), 0),
        (b"/pfs/more", b"", 1),
        (b"/alias", b"val", 0),
        (b"/pfs/data/train/inner", b"", 1),
    ];
    for (number, (path, sub, root)) in spellings.into_iter().enumerate() {
        text(&c.spellings[number].path, path);
        text(&c.spellings[number].sub, sub);
        c.spellings[number].root.store(root, Relaxed);
    }
    text(&c.tiers[0].path, b"/ram/monarch-0");
    text(&c.tiers[1].path, b"/nvme/monarch-0");
    for (number, root) in [0, 1].into_iter().enumerate() {
        c.segments[number].root.store(root, Relaxed);
        c.segments[number].status.store(SEGMENT_LIVE, Relaxed);
        shm::put_uuid(&c.segments[number].uuid, uuid);
        shm::put_uuid(&c.segments[number].state_uuid, state_uuid);
    }
    assert!(map.bypass_range(1, 3, 5));
    for (len, n, most) in [
        (&c.roots_len, 2, MAX_ROOTS),
        (&c.spellings_len, 4, MAX_SPELLINGS),
        (&c.tiers_len, 2, MAX_TIERS),
        (&c.segments_len, 2, MAX_SEGMENTS),
    ] {
        assert!(n as usize <= most);
        len.store(n, Relaxed);
    }
    for clock in [&c.pickup_ms, &c.stall_ms, &c.max_wait_ms, &c.complete_ms] {
        clock.store(1, Relaxed);
    }
    c.incarnation.store(1, Relaxed);
    assert!(c.inflight.len() == MAX_INFLIGHT);
    let bytes = std::fs::read(dir.path().join("control")).expect("what was just written");
    assert_eq!(bytes.len(), CONTROL_LEN);
    bytes
}

/// Memory of exactly this length at the start of a page, like a mapping: AddressSanitizer finds
/// reads after its end.
pub(crate) struct Memory {
    base: *mut u8,
    len: usize,
}

impl Memory {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        assert!(!bytes.is_empty());
        // SAFETY: the length is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(Self::layout(bytes.len())) };
        assert!(!base.is_null());
        let mut new = Self { base, len: bytes.len() };
        new.bytes().copy_from_slice(bytes);
        new
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, 4096).expect("a length that fits")
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this length, and borrowed alone: maps borrow it, too.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }

    pub(crate) fn map(&self) -> Map<'_> {
        // SAFETY: it stays allocated for as long as it is borrowed, and only atomics in it are
        // written meanwhile.
        unsafe { Map::new(self.base, self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout.
        unsafe { std::alloc::dealloc(self.base, Self::layout(self.len)) };
    }
}
