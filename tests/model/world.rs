//! Stand-ins for the surroundings of the product's files: the least of everything.

use crate::chunks::{Large, LargeFile};
use crate::word::{State, Word};
use loom::sync::{Condvar, Mutex};
use std::cell::Cell;
use std::sync::atomic::AtomicU64 as Plain;
use sync::{AtomicU32, AtomicU64, Ordering};

pub mod sync {
    pub(crate) use crate::lock;
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

pub mod mem {
    #[allow(clippy::missing_safety_doc, reason = "as in the product")]
    pub unsafe trait Pod {}
}

pub mod control {
    use super::Plain;
    use super::sync::{AtomicU32, AtomicU64};

    pub const RING: usize = 2;
    pub const MAX_CLOCK_MS: u32 = 3_600_000;

    pub struct Inflight {
        pub file: AtomicU64,
        pub progress: AtomicU32,
        pub in_pfs: AtomicU32,
    }

    /// Of the window of streamed files.
    #[derive(Debug)]
    pub struct Stream {
        pub number: AtomicU64,
        pub slot_bytes: AtomicU64,
        pub slots: AtomicU64,
        pub tags: [AtomicU64; super::SLOTS],
    }

    pub struct Control {
        pub stream: Stream,
        pub incarnation: AtomicU32,
        pub dead: AtomicU32,
        pub pulse_ms: AtomicU64,
        pub pickup_ms: AtomicU32,
        pub stall_ms: AtomicU32,
        pub max_wait_ms: AtomicU32,
        pub complete_ms: AtomicU32,
        pub rate: AtomicU64,
        pub demand: AtomicU32,
        pub sleepers: AtomicU32,
        pub ring_head: AtomicU64,
        pub taken: AtomicU32,
        pub ring: [AtomicU64; RING],
        pub inflight: [Inflight; 0],
    }

    pub struct Root {
        pub dev: Plain,
    }
    pub struct SegmentRef {
        pub root: Plain,
    }
    pub struct Text(pub &'static str);
    pub struct Tier {
        pub path: Text,
    }

    pub struct ControlMap<'a> {
        pub ctl: &'a Control,
        pub roots: [Root; 1],
        pub segments: [SegmentRef; 1],
        pub tiers: [Tier; 1],
    }

    impl ControlMap<'_> {
        pub const fn roots(&self) -> &[Root] {
            &self.roots
        }
        pub const fn segments(&self) -> &[SegmentRef] {
            &self.segments
        }
        pub const fn tiers(&self) -> &[Tier] {
            &self.tiers
        }
        pub const fn str(&self, text: &Text) -> &[u8] {
            text.0.as_bytes()
        }
    }

    pub enum Counter {
        ChunkMisses,
        ChunkMissBytes,
        ChunkReads,
        ChunkBytes,
        WaitMicros,
    }
}

pub mod segment {
    use super::sync::{AtomicU32, AtomicU64, Ordering};
    use crate::bitmap::Bitmap;
    use crate::chunks::{Large, LargeFile};
    use crate::word::Word;

    pub struct Record {
        pub size: u64,
    }
    impl Record {
        pub const fn is_file(&self) -> bool {
            true
        }
    }
    pub struct Slot {
        pub word: AtomicU32,
        pub id: u32,
    }
    #[derive(Clone, Copy)]
    pub struct Entry<'a> {
        pub record: &'a Record,
        pub master: &'a Slot,
    }
    impl Entry<'_> {
        pub fn word(&self) -> Word {
            Word(self.master.word.load(Ordering::Acquire))
        }
    }
    pub struct StateMap {
        pub head: Large,
        pub words: Vec<AtomicU64>,
        pub marks: [AtomicU64; 2],
    }
    impl StateMap {
        pub fn large(&self, _id: u32) -> Option<LargeFile<'_>> {
            LargeFile::new(0, &self.head, 1, &self.words)
        }
        pub fn large_at(&self, number: u32) -> Option<LargeFile<'_>> {
            self.large(number)
        }
        pub fn large_with_ino(&self, _ino: u64) -> Option<LargeFile<'_>> {
            self.large(0)
        }
        fn demands(&self) -> Bitmap<'_> {
            Bitmap { bits: &self.marks[..1], summary: &self.marks[1..] }
        }
        pub fn raise(&self, id: u32) {
            self.demands().raise(id);
        }
        pub fn drain(&self, found: impl FnMut(u32)) {
            self.demands().drain(found);
        }
    }
    pub struct Segment {
        pub state: StateMap,
        pub record: Record,
        pub slot: Slot,
    }
    impl Segment {
        pub const fn entry(&self) -> Entry<'_> {
            Entry { record: &self.record, master: &self.slot }
        }
        pub const fn large_entry(&self, _file: &LargeFile<'_>) -> Option<Entry<'_>> {
            Some(self.entry())
        }
    }
}

pub mod resolve {
    use super::segment::{Entry, Segment};

    pub trait Segments<'a> {
        fn segment(&self, root: usize) -> Option<(usize, &'a Segment)>;
    }

    #[allow(dead_code, reason = "there is one root only")]
    #[derive(Clone, Copy)]
    pub struct Found<'a> {
        pub root: usize,
        pub number: usize,
        pub segment: &'a Segment,
        pub entry: Entry<'a>,
    }
}

pub mod ctx {
    use super::control::{ControlMap, Counter};
    use super::segment::Segment;

    #[derive(Clone, Copy)]
    pub struct Ctx {
        pub map: &'static ControlMap<'static>,
    }
    pub const fn is_on() -> bool {
        true
    }
    pub fn get() -> Option<Ctx> {
        Some(Ctx { map: &super::here().map })
    }
    pub const fn may_have_large() -> bool {
        true
    }
    pub const fn knows_large(_map: &ControlMap<'_>) -> bool {
        true
    }
    impl Ctx {
        pub fn count(&self, _what: Counter, _by: u64) {}
        pub fn count_all<const N: usize>(&self, _what: [(Counter, u64); N]) {}
        pub const fn is_root_device(&self, _dev: u64) -> bool {
            true
        }
    }
    impl super::resolve::Segments<'static> for Ctx {
        fn segment(&self, _root: usize) -> Option<(usize, &'static Segment)> {
            Some((0, &super::here().segment))
        }
    }
}

pub mod changes {
    pub fn bypass(ctx: &super::ctx::Ctx, f: &super::resolve::Found<'static>) {
        crate::demand::bypass(ctx.map, f);
    }
}

pub mod identity {
    pub const fn is_version_of_statx(_: &super::ctx::Ctx, _: &super::resolve::Found<'static>, _: &libc::statx) -> bool {
        true
    }
}

pub mod copy_open {
    use super::ctx::Ctx;
    use super::resolve::Found;
    use crate::COPY_PATH_MAX;
    use crate::demand::{Life, Watch};
    use crate::word::Word;
    use std::mem::MaybeUninit;

    /// A clock that stands still: no wait ends by timeout, so that a lost demand shows as a
    /// deadlock.
    pub struct Here;
    impl Watch for Here {
        fn now_us(&self) -> u64 {
            0
        }
        fn agent(&self) -> Life {
            Life::Alive
        }
    }

    pub fn copy_path(_: &Ctx, _: &Found<'static>, _: Word, out: &mut MaybeUninit<[u8; COPY_PATH_MAX]>) -> bool {
        let mut path = [0; COPY_PATH_MAX];
        path[..4].copy_from_slice(b"copy");
        out.write(path);
        true
    }
}

/// Descriptors that were moved to the PFS: there are none.
pub mod small {
    use super::ctx::Ctx;

    pub const fn may_be(_: i32) -> bool {
        false
    }
    pub const unsafe fn pread(_: &Ctx, _: i32, _: *mut u8, _: usize, _: i64) -> Option<isize> {
        None
    }
    pub const unsafe fn read(_: &Ctx, _: i32, _: *mut u8, _: usize) -> Option<isize> {
        None
    }
    pub const unsafe fn readv(
        _: &Ctx,
        _: i32,
        _: *const libc::iovec,
        _: usize,
        _: usize,
        _: Option<i64>,
    ) -> Option<isize> {
        None
    }
}

/// Mappings of copies: there are none.
pub mod own_maps {
    use super::ctx::Ctx;
    use crate::large::Known;
    use crate::word::Word;

    pub const MAX_BYTES: usize = 1;

    #[derive(Clone, Copy)]
    pub struct CopyFile;
    impl CopyFile {
        pub const fn of(_: &Ctx, _: &Known, _: Word, _: u64) -> Self {
            Self
        }
    }
    pub const unsafe fn read(_: CopyFile, _: bool, _: *mut u8, _: usize, _: u64) -> bool {
        false
    }
    pub const fn has_read(_: CopyFile, _: i32, _: i32) {}
}

pub mod user {
    pub unsafe fn slice<'a, T>(p: *const T, n: usize) -> Option<&'a [T]> {
        // SAFETY: the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(p, n) })
    }
}

pub mod errno {
    pub const fn set_errno(_e: i32) {}
}

pub mod sys {
    use super::sync::{AtomicU32, Ordering};
    use super::{COPY, TIER_FILES, here, is_part};
    use std::ffi::CStr;

    pub struct Fd(pub i32);

    pub const fn makedev(_: u32, _: u32) -> u64 {
        0
    }
    pub const fn seek(_fd: i32, _by: i64) -> Option<u64> {
        None
    }
    pub const fn fcntl(_fd: i32, _what: i32, _arg: i32) -> Option<i32> {
        Some(0)
    }
    pub fn statx_fd_now(fd: i32) -> Option<libc::statx> {
        statx_fd(fd)
    }
    pub fn statx_fd(_fd: i32) -> Option<libc::statx> {
        // SAFETY: plain data.
        let mut st: libc::statx = unsafe { std::mem::zeroed() };
        st.stx_mode = libc::S_IFREG as u16;
        Some(st)
    }

    /// The number of the file that has this name now.
    pub fn open(path: &CStr, _flags: i32) -> Option<i32> {
        let name = path.to_str().unwrap();
        let wanted = match name.strip_prefix("t/part/") {
            Some(number) => is_part(u64::from_str_radix(number, 16).unwrap() as usize),
            None => COPY,
        };
        (0..TIER_FILES).find(|&n| here().files[n].name.load(Ordering::Acquire) == wanted).map(|n| n as i32)
    }

    /// # Safety
    /// As the product's.
    pub unsafe fn pread(fd: i32, buf: *mut u8, n: usize, off: u64) -> isize {
        for at in 0..n {
            let from = off as usize + at;
            let byte = match fd {
                pfs if pfs == here().fd => here().pfs.load(Ordering::Relaxed),
                _ => here().files[fd as usize].bytes[from].load(Ordering::Relaxed),
            };
            // SAFETY: within the caller's buffer.
            unsafe { *buf.add(at) = byte as u8 };
        }
        n as isize
    }

    /// The kernel compares and goes to sleep in one step; a wake comes before or after that.
    pub fn futex_wait(word: &AtomicU32, expected: u32, _timeout: Option<[i64; 2]>) {
        let bed = here().bed(word);
        let guard = bed.0.lock().unwrap();
        if word.fetch_add(0, Ordering::SeqCst) == expected {
            drop(bed.1.wait(guard).unwrap());
        }
    }

    pub fn futex_wake(word: &AtomicU32, _n: u32) {
        let bed = here().bed(word);
        let guard = bed.0.lock().unwrap();
        bed.1.notify_all();
        drop(guard);
    }
}

pub mod engine {
    #[allow(dead_code, reason = "the account of a file implements it for the engine")]
    pub trait Marks {
        fn in_pfs(&self, inside: bool);
        fn progress(&self);
        fn waited_for(&self) -> bool;
    }
    pub trait SourceFile: Send + Sync {}
    /// Files that are there, and no more.
    #[derive(Default)]
    pub struct MemSource {}
    pub trait Source {
        fn open(&self, rel: &[u8]) -> Result<Box<dyn SourceFile>, ()>;
    }
    impl MemSource {
        pub fn put(&self, _: &[u8], _: &[u8]) {}
    }
    impl SourceFile for MemSource {}
    impl Source for MemSource {
        fn open(&self, _: &[u8]) -> Result<Box<dyn SourceFile>, ()> {
            Ok(Box::new(Self {}))
        }
    }
}

pub mod outcome {
    pub struct ClaimedFile {
        pub entry: super::segment::Entry<'static>,
        pub claim: crate::word::Word,
    }
    impl ClaimedFile {
        pub fn open_source(&self) -> Option<std::sync::Arc<dyn super::engine::SourceFile>> {
            None
        }
    }
}

pub mod tier {
    /// The model takes no checksums.
    pub struct Sum;
    impl Sum {
        pub fn of_pieces(_: &[u64], _: u64) -> Self {
            Self
        }
    }
    pub struct PartCopy {
        pub number: u64,
        pub size: u64,
    }
    /// The window's file is that with the number [`super::WINDOW`].
    #[derive(Debug)]
    pub struct WindowFile;
    impl WindowFile {
        pub const fn number(&self) -> u64 {
            super::WINDOW as u64
        }
        pub const fn slot_bytes(&self) -> u64 {
            1
        }
        /// The model's engine has no calls under way.
        pub const fn is_lent(&self, _slot: u32) -> bool {
            false
        }
        pub const fn punch(&self, _slot: u32) -> std::io::Result<()> {
            Ok(())
        }
    }
}

/// Files in the tier, each with room for the chunks of the file. The last one is the window of
/// streamed files.
pub const TIER_FILES: usize = 3;
pub const WINDOW: usize = 2;
/// Slots of the window.
pub const SLOTS: usize = 2;
/// [`ClaimedFile::name`]: it has none.
pub const NO_NAME: u32 = 0;
/// It is the complete copy.
pub const COPY: u32 = 1;
/// It is the partial copy with this number.
pub const fn is_part(number: usize) -> u32 {
    number as u32 + 10
}

/// A byte that is being written or was dropped.
pub const HOLE: u32 = 0;
/// The contents of the file.
pub const RIGHT: u32 = 7;
/// The contents that the job has written into it.
pub const NEW: u32 = 8;
/// The contents of another file.
pub const OTHER: u32 = 9;

/// A file in the tier.
pub struct ClaimedFile {
    pub name: AtomicU32,
    pub bytes: Vec<AtomicU32>,
}

/// Everything that is shared.
pub struct World {
    pub map: control::ControlMap<'static>,
    pub segment: segment::Segment,
    pub files: [ClaimedFile; TIER_FILES],
    /// The application's descriptor of the PFS. Each test has its own, as the reader remembers
    /// something about it.
    pub fd: i32,
    /// A byte of the file on the PFS.
    pub pfs: AtomicU32,
    /// The sleepers on the word, on the tick, on the demand word.
    beds: [(Mutex<()>, Condvar); 3],
}

thread_local! {
    /// All threads of a model run on one thread of the system.
    static HERE: Cell<Option<&'static World>> = const { Cell::new(None) };
}

/// The world of this run.
pub fn here() -> &'static World {
    HERE.get().expect("a world")
}

impl World {
    /// A large file of `chunks` chunks, open under the number `fd`, none of them present, and an
    /// agent that is up or not.
    fn new(fd: i32, chunks: u32, agent: bool) -> Self {
        let zero = || AtomicU32::new(0);
        let plenty = || AtomicU32::new(1000);
        let wide = || AtomicU64::new(0);
        let ctl = control::Control {
            stream: control::Stream {
                number: wide(),
                slot_bytes: wide(),
                slots: wide(),
                tags: std::array::from_fn(|_| wide()),
            },
            incarnation: AtomicU32::new(1),
            dead: AtomicU32::new(u32::from(!agent)),
            pulse_ms: AtomicU64::new(0),
            pickup_ms: plenty(),
            stall_ms: plenty(),
            max_wait_ms: plenty(),
            complete_ms: plenty(),
            rate: AtomicU64::new(1),
            demand: zero(),
            // Every bell wakes: the model does not count sleepers.
            sleepers: AtomicU32::new(1),
            ring_head: AtomicU64::new(0),
            taken: zero(),
            ring: [AtomicU64::new(0), AtomicU64::new(0)],
            inflight: [],
        };
        let map = control::ControlMap {
            ctl: Box::leak(Box::new(ctl)),
            roots: [control::Root { dev: Plain::new(0) }],
            segments: [control::SegmentRef { root: Plain::new(0) }],
            tiers: [control::Tier { path: control::Text("t") }],
        };
        let head = Large {
            ino: 1,
            id: 0,
            slot: 0,
            bits: 0,
            chunks,
            ahead: zero(),
            part: AtomicU64::new(0),
            tick: zero(),
            drops: zero(),
            in_pfs: zero(),
            mode: zero(),
            rest: zero(),
            reading: zero(),
        };
        let state = segment::StateMap {
            head,
            words: (0..crate::chunks::bitmap_words_of(2)).map(|_| AtomicU64::new(0)).collect(),
            marks: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        let slot = segment::Slot { word: AtomicU32::new(Word::new(State::Absent).0), id: 0 };
        let file = |name, bytes| ClaimedFile {
            name: AtomicU32::new(name),
            bytes: (0..bytes).map(|_| AtomicU32::new(HOLE)).collect(),
        };
        let part = || file(NO_NAME, chunks);
        Self {
            map,
            segment: segment::Segment { state, record: segment::Record { size: u64::from(chunks) }, slot },
            files: [part(), part(), file(is_part(WINDOW), SLOTS as u32)],
            fd,
            pfs: AtomicU32::new(RIGHT),
            beds: std::array::from_fn(|_| (Mutex::new(()), Condvar::new())),
        }
    }

    /// Runs a model in every order with up to `switches` switches where no thread waits.
    pub fn all_orders(switches: usize, chunks: u32, agent: bool, run: impl Fn(&'static Self) + Send + Sync + 'static) {
        static TESTS: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(100);
        let fd = TESTS.fetch_add(1, Ordering::Relaxed);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(switches);
        builder.max_branches = 20_000;
        builder.check(move || {
            let world: &'static Self = Box::leak(Box::new(Self::new(fd, chunks, agent)));
            HERE.set(Some(world));
            crate::large::remember(fd, 1 << 32);
            run(world);
        });
    }

    fn bed(&self, word: &AtomicU32) -> &(Mutex<()>, Condvar) {
        let all = [&self.segment.slot.word, &self.segment.state.head.tick, &self.map.ctl.demand];
        &self.beds[all.iter().position(|&w| std::ptr::eq(w, word)).unwrap()]
    }

    pub fn large(&'static self) -> LargeFile<'static> {
        self.segment.state.large(0).unwrap()
    }

    pub fn found(&'static self) -> resolve::Found<'static> {
        resolve::Found { root: 0, number: 0, segment: &self.segment, entry: self.segment.entry() }
    }

    /// Reads a chunk through the preload library: its byte, from wherever.
    pub fn read(&'static self, chunk: u64) -> u32 {
        let mut byte = [0xff];
        // SAFETY: one byte.
        let got = unsafe { crate::reader::pread(self.fd, byte.as_mut_ptr(), 1, chunk as i64) };
        match got {
            Some(1) => u32::from(byte[0]),
            // The kernel is asked.
            None => self.pfs.load(Ordering::Relaxed),
            other => panic!("{other:?}"),
        }
    }
}
