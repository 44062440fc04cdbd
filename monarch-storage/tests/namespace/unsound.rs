//! Indexes whose bounds are right but whose parts do not fit together, and numbers in shared memory
//! that no agent writes.

use crate::common::built_within;
use crate::common::held;
use monarch_abi::chunks::{Large, LargeFile};
use monarch_abi::control::ControlMap;
use monarch_abi::demand::is_silent;
use monarch_abi::index::{Dir, IndexHeader, Record};
use monarch_storage::index::{Built, build, load, sample_tree, save};
use monarch_storage::shm::{self, Checks, Chunking, IndexBytes};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const LARGE_BYTES: u64 = 16 << 20;

fn sample() -> Built {
    build(sample_tree(), 7, [3; 16])
}

/// Positions in the bytes of the sample's index: a field of a record, or of a directory.
struct Places(IndexHeader);

impl Places {
    fn record(&self, id: usize, field: usize) -> usize {
        self.0.records_off as usize + id * size_of::<Record>() + field
    }
    fn dir(&self, at: usize, field: usize) -> usize {
        self.0.dirs_off as usize + at * size_of::<Dir>() + field
    }
    /// Position of the first record that `wanted` accepts.
    fn first(&self, built: &Built, wanted: impl Fn(&Record) -> bool) -> usize {
        let index = IndexBytes(&built.index).open().expect("an index");
        index.records().iter().position(wanted).expect("the sample has one")
    }
}

/// The result of loading a saved index with four bytes changed.
fn loaded(at: usize, value: u32) -> Result<(), String> {
    let mut built = sample();
    built.index[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let dir = tempfile::tempdir().expect("temp dir");
    let path = dir.path().join("saved");
    save(&built, &path).expect("save");
    load(&path).map(drop).map_err(|e| e.to_string())
}

#[test]
fn a_saved_index_whose_parts_do_not_fit_together_is_refused() {
    let built = sample();
    let p = Places(built.header());
    let entries = p.0.entries;
    assert_eq!(loaded(p.dir(0, offset_of!(Dir, end)), entries), Ok(()), "the sample itself is sound");
    let (aux, name) = (offset_of!(Record, aux), offset_of!(Record, name_lo));
    let link = p.first(&built, Record::is_link);
    let file = p.first(&built, Record::is_file);
    let dir = p.first(&built, |r| r.is_dir() && r.aux == 2);
    for (what, at, value) in [
        ("the root ends early", p.dir(0, offset_of!(Dir, end)), entries - 1),
        // An agent that was asked to prefetch it walked through four billion entries.
        ("a directory ends behind the index", p.dir(2, offset_of!(Dir, end)), u32::MAX),
        ("a directory ends before it begins", p.dir(2, offset_of!(Dir, end)), 1),
        ("a directory ends behind its parent", p.dir(2, offset_of!(Dir, end)), entries),
        ("a directory is its own parent", p.dir(2, offset_of!(Dir, parent)), 2),
        ("a directory's parent comes behind it", p.dir(1, offset_of!(Dir, parent)), 3),
        ("a directory is that of another entry", p.dir(2, offset_of!(Dir, id)), 0),
        ("two entries are one directory", p.record(dir, aux), 1),
        ("a directory that there is not", p.record(dir, aux), u32::MAX),
        ("a name behind the names", p.record(file, name), u32::MAX),
        ("a target behind the targets", p.record(link, aux), u32::MAX - 1),
    ] {
        let why = loaded(at, value).expect_err(what);
        assert!(why.contains("its index does not make sense"), "{what}: {why}");
    }
    let at = built.index.windows(6).position(|w| w == b"README").expect("a name of the sample");
    for hurt in [*b"RE/D", *b"RE\0D"] {
        assert!(loaded(at, u32::from_le_bytes(hurt)).is_err(), "{}", hurt.escape_ascii());
    }
}

#[test]
fn every_index_that_is_built_is_sound_also_within_a_bound_of_memory() {
    let dir = tempfile::tempdir().expect("temp dir");
    let root = dir.path().canonicalize().expect("real path");
    for n in 0..40 {
        let below = root.join(format!("d{}/e{}/f{n}", n % 3, n % 7));
        std::fs::create_dir_all(&below).expect("mkdir");
        std::fs::write(below.join("file"), b"x").expect("write");
        std::os::unix::fs::symlink("../file", below.join("link")).expect("link");
    }
    let mut sizes = Vec::new();
    for most in [0, 500, 2000, 5000, 10_000, u64::MAX] {
        let built = built_within(&root, 2, most, 7);
        let index = IndexBytes(&built.index).open().expect("an index");
        assert!(index.is_sound(), "bound of {most} bytes");
        sizes.push(index.len());
    }
    assert!(sizes.first() < sizes.last() && sizes.last() > Some(&120), "{sizes:?}");
}

/// Sparse files can have any size: a sparse file took 512 MiB of shared memory, or kept its root
/// from being served at all.
#[test]
fn a_file_of_too_many_chunks_takes_no_memory_and_leaves_the_others_their_chunks() {
    let mut built = sample();
    let p = Places(built.header());
    let file = p.first(&built, |r| r.is_file() && r.size > LARGE_BYTES && r.nlink == 1);
    let at = p.record(file, offset_of!(Record, size));
    built.index[at..at + 8].copy_from_slice(&(1u64 << 51).to_le_bytes());
    let dir = tempfile::tempdir().expect("temp dir");
    let chunking = Chunking { threshold: LARGE_BYTES, size: 1 << 20 };
    let made =
        shm::create_segment(&held(dir.path()), &built.index, &built.buckets, [4; 16], chunking, Checks::default());
    let (segment, _, state) = made.expect("a segment");
    assert!(state < 1 << 20, "{state} bytes of state");
    assert!(segment.state.large(file as u32).is_none());
    assert_eq!(segment.state.all_large().count(), 1, "the other one");
}

/// It overflowed. A time that no clock shows means that the agent runs, as any future time does.
#[test]
fn a_pulse_that_no_clock_shows_is_not_taken_for_silence() {
    let dir = tempfile::tempdir().expect("temp dir");
    let params = shm::ControlParams { mnt_ns: 0, slash: (0, 0), user_ns: 0, pid_ns: 0 };
    let map: ControlMap<'_> = shm::create_control(&held(dir.path()), params).expect("control block");
    for (pulse, silent) in [(0, false), (1, true), (u64::MAX / 1000 + 1, false), (u64::MAX, false)] {
        map.ctl.pulse_ms.store(pulse, Ordering::Relaxed);
        assert_eq!(is_silent(map.ctl, 60_000_000_000), silent, "{pulse}");
    }
}

fn large(chunks: u32) -> Large {
    let zero = || AtomicU32::new(0);
    Large {
        ino: 1,
        id: 2,
        slot: 3,
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
    }
}

/// The agent fetched a range that begins behind the end of the file.
#[test]
fn a_bit_behind_the_last_chunk_requests_nothing() {
    let (head, words) = (large(70), [const { AtomicU64::new(0) }; 5]);
    let file = LargeFile::new(0, &head, 4096, &words).expect("three words of 32 bits with their checks, two of 64");
    words.iter().for_each(|w| w.store(u64::MAX, Ordering::Relaxed));
    let mut asked = Vec::new();
    file.take_wanted(|chunk| asked.push(chunk));
    assert_eq!(asked, (0..70).collect::<Vec<u32>>());
    assert!(!file.is_wanted(69) && !file.is_wanted(127), "all bits are taken");
}

#[test]
fn a_number_of_chunks_without_bits_is_not_believed() {
    let (head, words) = (large(70), [const { AtomicU64::new(0) }; 5]);
    let mut file = LargeFile::new(0, &head, 4096, &words).expect("a large file");
    assert_eq!(file.chunks(), 70);
    // As if another process had changed it since.
    let more = large(u32::MAX);
    file.head = &more;
    assert_eq!(file.chunks(), 96);
    assert!(LargeFile::new(0, &more, 4096, &words).is_none());
    assert!(LargeFile::new(0, &head, 0, &words).is_none(), "chunks of no bytes: a read would never end");
}

#[test]
fn bytes_are_there_up_to_the_first_chunk_that_is_not() {
    let (head, words) = (large(70), [const { AtomicU64::new(0) }; 5]);
    let file = LargeFile::new(0, &head, 100, &words).expect("a large file");
    [0, 1, 3].into_iter().for_each(|chunk| file.arrived(chunk));
    assert_eq!((file.present_until(50, 1000), file.present_until(50, 150)), (200, 150));
    assert_eq!((file.present_until(250, 1000), file.present_until(399, 400)), (250, 400));
    assert_eq!(file.present_until(u64::MAX - 1, u64::MAX), u64::MAX - 1);
}
