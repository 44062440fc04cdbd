//! Chunks that are read straight into the memory of their slots: right bytes, in no other slot, and
//! through a buffer where that memory is missing.

use crate::engines::{End, Make, Seen, data, engines, errno};
use monarch_storage::engine::{CopyError, MappedBytes, Marks, PfsSource, Sink, Source, Task, Work};
use monarch_storage::tier::{PartWriter, TierDir, WindowFile};
use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes of a slot.
const SLOT_BYTES: u64 = 64 << 10;
/// Bytes of a request: a chunk is read in several.
const READ_BYTES: u64 = 12 << 10;

/// A slot that counts the writes to it.
struct Watched {
    slot: PartWriter,
    writes: Cell<u32>,
}

impl Sink for Watched {
    fn write_at(&self, buf: &[u8], off: u64) -> io::Result<()> {
        self.writes.set(self.writes.get() + 1);
        self.slot.write_at(buf, off)
    }
    fn memory(&self, range: Range<u64>) -> Option<MappedBytes> {
        self.slot.memory(range)
    }
    fn forgo_memory(&self) {
        self.slot.forgo_memory();
    }
}

/// How a chunk is copied.
#[derive(Clone, Copy, Debug, Default)]
struct How {
    direct: bool,
    summed: bool,
}

/// A part of the file `f`, to be copied once.
struct Chunk<'a> {
    from: &'a dyn Source,
    range: Range<u64>,
    to: &'a Watched,
    how: How,
    seen: Seen,
    given: Cell<bool>,
    end: RefCell<Option<End>>,
}

struct ChunkTask<'a>(&'a Chunk<'a>);

impl Work for Chunk<'_> {
    fn next(&self) -> Option<Box<dyn Task + '_>> {
        (!self.given.replace(true)).then(|| Box::new(ChunkTask(self)) as Box<dyn Task>)
    }
}

impl Task for ChunkTask<'_> {
    fn source(&self) -> &dyn Source {
        self.0.from
    }
    fn rel(&self) -> &[u8] {
        b"f"
    }
    fn range(&self) -> Range<u64> {
        self.0.range.clone()
    }
    fn is_direct(&self) -> bool {
        self.0.how.direct
    }
    fn sink(&self) -> &dyn Sink {
        self.0.to
    }
    fn marks(&self) -> &dyn Marks {
        &self.0.seen
    }
    fn is_whole_file(&self) -> bool {
        false
    }
    fn is_summed(&self) -> bool {
        self.0.how.summed
    }
    fn done(&mut self, end: End) -> bool {
        if self.0.to.writes.get() == 0 && errno(&end) == Some(libc::EFAULT) {
            // As a chunk of the agent is tried again.
            return true;
        }
        assert!(self.0.end.replace(Some(end)).is_none(), "a copy ended twice");
        false
    }
}

/// A tier with a window of three slots, and a file on a disk.
struct Site {
    window: WindowFile,
    tier: TierDir,
    dir: tempfile::TempDir,
    pfs: tempfile::TempDir,
}

impl Site {
    fn new(all: &[u8]) -> Self {
        let tier_dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let tier = TierDir::open("t", tier_dir.path(), 64 << 20, 0).unwrap();
        tier.recover(|_| {}).unwrap();
        let window = WindowFile::begin(&tier.parts, 3, SLOT_BYTES).unwrap().unwrap();
        let pfs = tempfile::tempdir().unwrap();
        fs::write(pfs.path().join("f"), all).unwrap();
        Self { dir: tier_dir, pfs, tier, window }
    }

    /// Copies a part of the file into slot 1; also how many writes that took.
    fn copy(&self, make: Make, range: Range<u64>, how: How) -> (End, u32) {
        let to = Watched { slot: self.window.open(1, &range, true).unwrap(), writes: Cell::new(0) };
        let from = PfsSource::new(self.pfs.path()).unwrap();
        let (seen, given, end) = (Seen::default(), Cell::new(false), RefCell::default());
        let chunk = Chunk { from: &from, range, to: &to, how, seen, given, end };
        make(READ_BYTES, Arc::default(), Arc::default()).run(&chunk);
        assert!(!self.window.is_lent(1), "no call is under way");
        let end = chunk.end.into_inner().expect("every copy ends");
        (end, to.writes.get())
    }

    /// The bytes of a slot.
    fn slot(&self, number: u64) -> Vec<u8> {
        let mut bytes = vec![0; SLOT_BYTES as usize];
        let file = File::from(self.tier.parts.read(self.window.number()).unwrap());
        let got = file.read_at(&mut bytes, number * SLOT_BYTES).unwrap();
        bytes.truncate(got);
        bytes
    }
}

#[test]
fn chunks_of_all_sizes_are_read_into_their_slot_and_into_no_other() {
    let all = data(5 * SLOT_BYTES as usize + 1234);
    for (make, direct) in engines().into_iter().flat_map(|make| [(make, false), (make, true)]) {
        let site = Site::new(&all);
        // The last one ends in a page; those of another data set are smaller than a slot.
        for (chunk, at) in [(SLOT_BYTES, 0), (SLOT_BYTES, 3), (SLOT_BYTES, 5), (20 << 10, 0), (20 << 10, 9)] {
            let range = at * chunk..((at + 1) * chunk).min(all.len() as u64);
            let (end, writes) = site.copy(make, range.clone(), How { direct, summed: false });
            let copied = end.expect("copied");
            assert_eq!((copied.bytes, copied.checksum, writes), (range.end - range.start, None, 0));
            let bytes = &all[range.start as usize..range.end as usize];
            assert!(site.slot(1)[..bytes.len()] == *bytes, "chunk {at}, direct {direct}: other bytes");
            assert!([0, 2].map(|other| site.slot(other)) == [const { [0; SLOT_BYTES as usize] }; 2]);
        }
    }
}

#[test]
fn a_chunk_whose_checksum_is_asked_for_is_seen_by_the_engine() {
    let all = data(SLOT_BYTES as usize);
    for make in engines() {
        let site = Site::new(&all);
        let (end, writes) = site.copy(make, 0..SLOT_BYTES, How { summed: true, direct: false });
        assert_eq!(end.expect("copied").checksum, Some(xxhash_rust::xxh3::xxh3_64(&all)));
        assert!(writes > 0 && site.slot(1) == all);
    }
}

/// A file that is mapped keeps its memory.
#[test]
fn the_memory_of_a_window_goes_with_it() {
    let site = Site::new(&data(SLOT_BYTES as usize));
    let (end, _) = site.copy(engines()[0], 0..SLOT_BYTES, How::default());
    assert!(end.is_ok() && site.tier.space.ledger.usage().reserved >= 3 * SLOT_BYTES);
    let Site { dir, tier, window, .. } = site;
    drop(window);
    assert_eq!(tier.space.ledger.usage().reserved, 0);
    drop(dir);
}

#[test]
fn a_file_that_became_shorter_has_changed_and_frees_its_slot() {
    for make in engines() {
        for left in [0, 5000, READ_BYTES, SLOT_BYTES - 1] {
            let site = Site::new(&data(left as usize));
            let (end, _) = site.copy(make, 0..SLOT_BYTES, How::default());
            assert!(matches!(end, Err(CopyError::Changed)), "{left} bytes left: {end:?}");
        }
    }
}

/// As when a tmpfs is full: the kernel has no memory to read into, and only a write says so.
#[test]
fn where_the_memory_is_missing_bytes_go_through_a_buffer() {
    let all = data(SLOT_BYTES as usize);
    for make in engines() {
        let site = Site::new(&all);
        let name = format!("{:016x}", site.window.number());
        let mut files = fs::read_dir(site.dir.path()).unwrap().map(|d| d.unwrap().path().join("part").join(&name));
        let file = files.find(|path| path.exists()).unwrap();
        // One page of the slot, and no more, is there.
        File::options().write(true).open(file).unwrap().set_len(SLOT_BYTES + 4096).unwrap();
        let (end, writes) = site.copy(make, 0..SLOT_BYTES, How::default());
        assert!(end.is_ok() && writes > 0, "{end:?}, {writes} writes");
        assert!(site.slot(1) == all, "other bytes");
    }
}

#[test]
fn a_source_that_fails_is_the_sources_error() {
    for make in engines() {
        let site = Site::new(&[]);
        fs::remove_file(site.pfs.path().join("f")).unwrap();
        let (end, _) = site.copy(make, 0..SLOT_BYTES, How::default());
        assert!(matches!(end, Err(CopyError::Source(_))) && errno(&end) == Some(libc::ENOENT), "{end:?}");
    }
}
