//! The ledger against the disk: after any sequence of copies made, published, given up, evicted
//! under readers, swept, moved aside, and of agents killed and machines cut off, a tier takes as
//! many bytes on disk as its ledger says, and no more than its capacity.

use monarch_abi::hash::Identity;
use monarch_storage::engine::{Sink, SourceFile};
use monarch_storage::tier::{Codec, Copy, CopyFile, CopyName, PackedWriter, PartCopy, Sum, TierDir, WindowFile};
use proptest::prelude::*;
use rustix::fs::fstat;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

const CAPACITY_BYTES: u64 = 6 << 20;
const PAGE_BYTES: u64 = 4096;

#[derive(Clone, Debug)]
enum Op {
    /// Makes a copy of one of a few files, all of whose bytes are written.
    Create(u8),
    /// Publishes a copy that is being written.
    Publish(usize),
    GiveUp(usize),
    Part(u8),
    /// Writes a number of pages into a partial copy.
    Fill(usize, u64),
    PublishPart(usize),
    DropPart(usize),
    /// Evicts a copy, which a reader has open or not.
    Evict(u8, bool),
    /// Compresses a file, of bytes that get smaller or not, into a number of bytes reserved; all of
    /// it, or it is given up half-way.
    Pack(u8, bool, u64, bool),
    EvictPacked(u8, bool),
    /// A reader closes its file.
    Close,
    Sweep,
    /// Logs many copies that have gone, so that the log is compacted, while a process reads it or
    /// not.
    CompactLog(bool),
    /// The agent is killed, and another agent starts.
    Kill,
    /// The machine loses power: what was not synced may be zeros, cut, or gone.
    PowerLoss(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let which = any::<usize>;
    prop_oneof![
        6 => (0u8..16).prop_map(Op::Create),
        6 => which().prop_map(Op::Publish),
        2 => which().prop_map(Op::GiveUp),
        2 => (0u8..16).prop_map(Op::Part),
        4 => (which(), 1u64..64).prop_map(|(i, n)| Op::Fill(i, n)),
        2 => which().prop_map(Op::PublishPart),
        1 => which().prop_map(Op::DropPart),
        4 => (0u8..16, any::<bool>()).prop_map(|(n, open)| Op::Evict(n, open)),
        5 => (0u8..16, any::<bool>(), 0u64..(1 << 21), prop::bool::weighted(0.8)).prop_map(|(n, text, room, all)| Op::Pack(n, text, room, all)),
        3 => (0u8..16, any::<bool>()).prop_map(|(n, open)| Op::EvictPacked(n, open)),
        2 => Just(Op::Close),
        2 => Just(Op::Sweep),
        1 => any::<bool>().prop_map(Op::CompactLog),
        1 => Just(Op::Kill),
        1 => any::<u64>().prop_map(Op::PowerLoss),
    ]
}

fn name(n: u8) -> CopyName {
    CopyName(u128::from(n) << 120 | u128::from(n) << 64 | 7)
}

/// The name of a compressed copy.
fn packed_name(n: u8) -> CopyName {
    name(n + 16)
}

/// The codec of a compressed copy.
fn codec_of(n: u8) -> Codec {
    Codec::ALL[usize::from(n) % 2]
}

/// The bytes to compress: both kinds are of the same file, as far as this test is concerned.
fn contents(n: u8, text: bool) -> Vec<u8> {
    let word = |i: u64| {
        if text {
            [(i / 8 % 7) as u8 | 1; 8]
        } else {
            xxhash_rust::xxh3::xxh3_64(&(i + u64::from(n)).to_le_bytes()).to_le_bytes()
        }
    };
    let mut bytes: Vec<u8> = (0..size(n).div_ceil(8)).flat_map(word).collect();
    bytes.truncate(size(n) as usize);
    bytes
}

fn identity(n: u8) -> Identity {
    Identity { size: size(n), mtime_ns: 1, ctime_ns: 2, ino: 3 }
}

/// Reads a compressed copy; `None` if it is damaged.
fn unpacked(tier: &TierDir, n: u8) -> Option<Vec<u8>> {
    let file = tier.packed.open(packed_name(n), identity(n)).unwrap()?;
    let mut bytes = vec![0; size(n) as usize + 1];
    let mut at = 0;
    loop {
        match file.read_at(&mut bytes[at..], at as u64).ok()? {
            0 => break,
            n => at += n,
        }
    }
    bytes.truncate(at);
    Some(bytes)
}

/// The size of a file: each name has one size, as names carry identity.
const fn size(n: u8) -> u64 {
    [
        0,
        1,
        511,
        4095,
        4096,
        4097,
        10_000,
        65_536,
        100_000,
        262_143,
        500_000,
        700_001,
        1 << 20,
        1_500_000,
        2 << 20,
        3_000_000,
    ][n as usize % 16]
}

/// Blocks of everything in a directory, in bytes; its files, and those of them that are copies.
fn on_disk(dir: &Path) -> (u64, u64) {
    let (mut bytes, mut copies) = (0, 0);
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let st = entry.metadata().unwrap();
        if st.is_dir() {
            let below = on_disk(&entry.path());
            bytes += below.0;
            copies += below.1;
        } else {
            bytes += st.blocks() * 512;
            copies += u64::from(dir.parent().is_some_and(|d| d.ends_with("copies")));
        }
    }
    (bytes + dir.metadata().unwrap().blocks() * 512, copies)
}

struct Disk<'a> {
    tier: &'a TierDir,
    writing: Vec<(CopyFile<'a>, u8, Sum)>,
    parts: Vec<(PartCopy, u64, u8)>,
    copies: BTreeMap<u8, Copy>,
    /// Whether each compressed copy is of text.
    packed: BTreeMap<u8, Option<bool>>,
    /// Files that readers have open.
    readers: Vec<File>,
    /// Logs that readers have open.
    verifying: Vec<File>,
}

/// A stamp that belongs to a name.
fn stamp(n: u8) -> monarch_abi::hash::Stamp {
    name(n).stamp(monarch_abi::hash::PathHash { fp: 0x1234_5678_9abc_def0, check: 5 })
}

impl<'a> Disk<'a> {
    fn new(tier: &'a TierDir) -> Self {
        Self {
            tier,
            writing: Vec::new(),
            parts: Vec::new(),
            copies: BTreeMap::new(),
            packed: BTreeMap::new(),
            readers: Vec::new(),
            verifying: Vec::new(),
        }
    }

    fn publish_end(&mut self, n: u8, end: std::io::Result<Option<Copy>>) {
        let end = match end {
            // The log has no room for its record: it gets no name, and the copy that had the name
            // stays.
            Err(e) if e.kind() == std::io::ErrorKind::StorageFull => return,
            end => end.unwrap(),
        };
        // The copy that had the name before was dropped for it.
        match end {
            Some(copy) => {
                self.copies.insert(n, copy);
            }
            None if self.tier.copies.stat(name(n)).unwrap().is_none() => {
                self.copies.remove(&n);
            }
            None => {}
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Create(n) => {
                if let Some(copy) = self.tier.copies.create(size(n)).unwrap() {
                    let bytes = vec![n | 1; size(n) as usize];
                    File::from(copy.fd().try_clone_to_owned().unwrap()).write_all_at(&bytes, 0).unwrap();
                    self.writing.push((copy, n, Sum::whole(xxhash_rust::xxh3::xxh3_64(&bytes))));
                }
            }
            Op::Publish(i) if !self.writing.is_empty() => {
                let (copy, n, sum) = self.writing.swap_remove(i % self.writing.len());
                let end = copy.publish(name(n), stamp(n), sum);
                self.publish_end(n, end);
            }
            Op::GiveUp(i) if !self.writing.is_empty() => drop(self.writing.swap_remove(i % self.writing.len())),
            Op::Part(n) => {
                if let Some(part) = self.tier.parts.begin(size(n), true).unwrap() {
                    self.parts.push((part, 0, n));
                }
            }
            Op::Fill(i, pages) if !self.parts.is_empty() => {
                let at = i % self.parts.len();
                let (part, done, _) = &mut self.parts[at];
                let n = (pages * PAGE_BYTES).min(part.size - *done);
                if n > 0 {
                    let to = self.tier.parts.open(part, *done, n).unwrap();
                    monarch_storage::engine::Sink::write_at(&to, &vec![3; n as usize], *done).unwrap();
                    *done += n;
                }
            }
            Op::PublishPart(i) if !self.parts.is_empty() => {
                let (part, done, n) = self.parts.swap_remove(i % self.parts.len());
                if done < part.size {
                    self.tier.parts.discard(&part);
                } else {
                    let end =
                        self.tier.parts.publish(&part, name(n), stamp(n), Some(Sum { value: 1, piece: PAGE_BYTES }));
                    if end.is_err() {
                        self.tier.parts.discard(&part);
                    }
                    self.publish_end(n, end);
                }
            }
            Op::DropPart(i) if !self.parts.is_empty() => {
                let (part, ..) = self.parts.swap_remove(i % self.parts.len());
                self.tier.parts.discard(&part);
            }
            Op::Evict(n, open) => {
                if let Some(copy) = self.copies.remove(&n) {
                    if open {
                        self.readers.push(self.tier.copies.open(copy.name).unwrap().into());
                    }
                    self.tier.trash.evict(copy.name, copy.size);
                    // And of the process that had turned its word just before: the charge is
                    // released once.
                    self.tier.trash.evict_resident(copy.name, copy.size);
                }
            }
            Op::Pack(n, text, room, all) => self.pack(n, text, room, all),
            Op::EvictPacked(n, open) if self.packed.remove(&n).is_some() => {
                if open {
                    let path = String::from_utf8(packed_name(n).rel_path().to_vec()).unwrap();
                    self.readers
                        .push(File::open(self.tier.path.join(format!("{path}{}", codec_of(n).suffix()))).unwrap());
                }
                assert!(self.tier.packed.evict(packed_name(n), size(n)).is_some(), "{n}");
                assert!(self.tier.packed.evict(packed_name(n), size(n)).is_none(), "{n}");
            }
            Op::Close => {
                self.readers.clear();
                self.verifying.clear();
            }
            Op::Sweep => drop(self.tier.trash.sweep()),
            Op::CompactLog(open) => {
                if open {
                    self.verifying.push(File::open(self.tier.path.join("log")).unwrap());
                }
                (0..5000).for_each(|i| self.tier.log.verified(name(200), Sum::whole(i), 7));
                let _ = self.tier.compactor.compact_if_due(|| true);
                assert!(!self.tier.path.join("log.new").exists());
            }
            _ => {}
        }
    }

    fn pack(&mut self, n: u8, text: bool, room: u64, all: bool) {
        let Some(room) = self.tier.packed.reserve(room).unwrap() else { return };
        let Some(mut writer) = PackedWriter::begin(&self.tier.copies, codec_of(n), room, size(n), 0).unwrap() else {
            return;
        };
        let bytes = contents(n, text);
        let units: Vec<&[u8]> = bytes.chunks(writer.unit()).collect();
        let so_many = if all { units.len() } else { units.len() / 2 };
        if !units[..so_many].iter().all(|unit| writer.add(unit).unwrap()) || !all {
            return;
        }
        let stamp = packed_name(n).stamp(monarch_abi::hash::PathHash { fp: 0x1234_5678_9abc_def0, check: 5 });
        let sum = Sum::whole(xxhash_rust::xxh3::xxh3_64(&bytes));
        match writer.publish(packed_name(n), stamp, sum).unwrap() {
            Some(_) => drop(self.packed.insert(n, Some(text))),
            // The copy that had the name before was dropped for it.
            None => drop(self.packed.remove(&n)),
        }
    }

    /// The ledger counts what is there, and no more than the capacity.
    fn check(&self, at_start: u64) {
        let u = self.tier.space.ledger.usage();
        let (bytes, copies) = on_disk(&self.tier.path);
        assert!(u.used + u.reserved <= CAPACITY_BYTES, "{u:?}");
        // A file that a reader has open keeps a name, and so its charge.
        assert!(self.readers.iter().all(|r| r.metadata().unwrap().nlink() > 0));
        assert_eq!(u.files, copies, "{u:?}");
        let mut unsettled = 0;
        for (copy, ..) in &self.writing {
            unsettled += fstat(copy.fd()).unwrap().st_blocks as u64 * 512;
        }
        for (part, ..) in &self.parts {
            let path = self.tier.path.join(format!("part/{:016x}", part.number));
            unsettled += fs::metadata(path).unwrap().blocks() * 512;
        }
        // On a disk without large free extents a file system may need a block to list the extents
        // of a file, and find that out when it writes them.
        let lists = if self.tier.space.is_in_memory() {
            0
        } else {
            PAGE_BYTES * (self.parts.len() + self.writing.len() + 1) as u64
        };
        assert!(unsettled <= u.reserved + lists, "{unsettled} of {u:?}");
        // Names are charged towards the growth of directories, and so is the initial size of the
        // directories.
        let settled = bytes - unsettled;
        let names = u.used - u.used.min(settled);
        assert!(settled <= u.used + lists, "{settled} on disk, {u:?}");
        let trashed = fs::read_dir(self.tier.path.join("trash")).unwrap().count() as u64;
        let most = 96 * (copies + trashed) + 8 * PAGE_BYTES;
        assert!(
            names <= most,
            "{names} too much in the ledger, {copies} copies, {trashed} in the trash, at start {at_start}"
        );
    }
}

/// What is left of files that had not reached the disk.
fn lose_power(dir: &Path, mut seed: u64) {
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    for sub in fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()) {
        let inner: Vec<_> = if sub.ends_with("copies") {
            fs::read_dir(&sub).unwrap().flat_map(|d| fs::read_dir(d.unwrap().path()).unwrap()).collect()
        } else {
            fs::read_dir(&sub).unwrap().collect()
        };
        for path in inner.into_iter().map(|e| e.unwrap().path()) {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            let (size, time) = (file.metadata().unwrap().len(), file.metadata().unwrap().modified().unwrap());
            match random() % 5 {
                0 => file.write_all_at(&vec![0; size as usize], 0).unwrap(),
                1 => file.set_len(random() % (size + 1)).unwrap(),
                2 => fs::remove_file(&path).unwrap(),
                _ => {}
            }
            file.set_modified(time).unwrap();
            file.set_permissions(fs::Permissions::from_mode(0o400)).unwrap();
        }
    }
    let log = File::options().read(true).write(true).open(dir.join("log")).unwrap();
    let len = log.metadata().unwrap().len();
    match random() % 4 {
        0 => log.set_len(random() % (len + 1)).unwrap(),
        1 => {
            let from = random() % (len + 1);
            log.write_all_at(&vec![0; (len - from) as usize], from).unwrap();
        }
        2 => (&log).write_all(b"garbage").unwrap(),
        _ => {}
    }
}

fn run(base: &Path, ops: &[Op]) {
    let dir = tempfile::tempdir_in(base).unwrap();
    let mut rest = ops;
    let mut first = true;
    let mut readers = Vec::new();
    while first || !rest.is_empty() {
        first = false;
        let tier = Arc::new(TierDir::open("t", dir.path(), CAPACITY_BYTES, 0).unwrap());
        let (mut found, mut packed) = (BTreeMap::new(), BTreeMap::new());
        let keep = |copy: Copy| {
            let n = (copy.name.0 >> 120) as u8;
            match copy.packed {
                true => drop(packed.insert(n - 16, None)),
                false => drop(found.insert(n, copy)),
            }
        };
        tier.recover(keep).unwrap();
        for n in packed.keys() {
            // Whatever the power loss has left: decompressed it is what it was, or found damaged.
            let bytes = unpacked(&tier, *n);
            assert!(bytes.is_none_or(|b| b == contents(*n, true) || b == contents(*n, false)), "{n}");
        }
        for (n, copy) in &found {
            // A copy that can be trusted is right; any other is checked by the copier that claims
            // it.
            let sound = copy.check.is_none_or(|sum| tier.copies.verify(copy.name, copy.size, sum));
            assert!(sound || copy.check.is_some(), "{n}");
        }
        let mut disk = Disk::new(&tier);
        (disk.copies, disk.packed, disk.readers) = (found, packed, readers);
        let at_start = tier.space.ledger.usage().used;
        disk.check(at_start);
        let mut killed = None;
        for (i, op) in rest.iter().enumerate() {
            if matches!(op, Op::Kill | Op::PowerLoss(_)) {
                killed = Some((i, op));
                break;
            }
            disk.step(op);
            disk.check(at_start);
        }
        rest = killed.map_or(&[], |(i, _)| &rest[i + 1..]);
        // Nothing of a killed agent is dropped in order; its descriptors go.
        let path = tier.path.clone();
        let fds = std::mem::take(&mut disk.writing);
        for (copy, ..) in fds {
            let fd = copy.fd().as_raw_fd();
            std::mem::forget(copy);
            // SAFETY: no other code has this descriptor any more.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        disk.parts.drain(..).for_each(std::mem::forget);
        // Jobs survive the agent.
        readers = std::mem::take(&mut disk.readers);
        drop(disk);
        drop(tier);
        if let Some((_, Op::PowerLoss(seed))) = killed {
            readers.clear();
            lose_power(&path, *seed);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn on_a_disk(ops in proptest::collection::vec(op(), 1..60)) {
        run(&std::env::temp_dir(), &ops);
    }

    #[test]
    fn in_memory(ops in proptest::collection::vec(op(), 1..60)) {
        run(Path::new("/dev/shm"), &ops);
    }
}

/// Chunks of any file lie in any slot of the window, over those that were there before. Its space
/// is reserved as long as it exists, whether its blocks are allocated or not.
#[test]
fn slots_of_a_window_are_overwritten_in_place_and_stay_reserved() {
    let dir = tempfile::tempdir().unwrap();
    let tier = opened(dir.path());
    let slot = 32 * PAGE_BYTES;
    let before = tier.space.ledger.usage();
    let window = WindowFile::begin(&tier.parts, 3, slot).unwrap().unwrap();
    assert!(tier.space.ledger.usage().reserved >= before.reserved + 3 * slot);
    let reader = File::from(tier.parts.read(window.number()).unwrap());
    let put = |slot: u32, range: std::ops::Range<u64>, byte: u8, is_fresh: bool| {
        let writer = window.open(slot, &range, is_fresh).unwrap();
        // As engines do: in pieces, at offsets of the file that is copied.
        let half = range.start + (range.end - range.start) / 2;
        for (from, to) in [(half, range.end), (range.start, half)] {
            writer.write_at(&vec![byte; (to - from) as usize], from).unwrap();
        }
    };
    let bytes = |off: u64, n: u64| {
        let mut bytes = vec![0; n as usize];
        reader.read_exact_at(&mut bytes, off).unwrap();
        bytes
    };
    put(2, 5 * slot..6 * slot, 1, true);
    assert_eq!(bytes(2 * slot, slot), vec![1; slot as usize]);
    let blocks = reader.metadata().unwrap().blocks();
    // The last chunk of another file, which is shorter.
    put(2, 9 * slot..9 * slot + 100, 2, false);
    assert_eq!((bytes(2 * slot, 100), bytes(2 * slot + 100, 100)), (vec![2; 100], vec![1; 100]));
    assert_eq!(reader.metadata().unwrap().blocks(), blocks, "no block is allocated anew");
    assert!(window.open(0, &(0..slot + 1), true).is_err(), "it would reach into the next slot");
    window.punch(2).unwrap();
    assert_eq!(reader.metadata().unwrap().blocks(), 0);
    put(0, 0..slot, 3, true);
    drop(window);
    assert!(tier.space.ledger.usage().used >= before.used + 3 * slot, "charged while a process has it open");
    drop(reader);
    assert_eq!((tier.trash.sweep(), tier.space.ledger.usage()), (0, before));
    assert!(WindowFile::begin(&tier.parts, u64::MAX / slot, slot).unwrap().is_none(), "more than there is");
}

/// A process keeps partial copies mapped for small reads. One that does not read kept their space
/// until it ended.
#[test]
fn a_partial_copy_that_stays_open_is_emptied_but_not_under_a_copier() {
    let dir = tempfile::tempdir().unwrap();
    let tier = opened(dir.path());
    let before = tier.space.ledger.usage();
    let size = 16 * PAGE_BYTES;
    let (part, reader) = part_with_reader(&tier, size);
    let copier = tier.parts.open(&part, 0, size).unwrap();
    tier.parts.discard(&part);
    let sweeps = |n: usize| (0..n).fold(None, |_, _| Some(tier.trash.sweep()));
    assert_eq!(sweeps(30), Some(1));
    copier.write_at(&[2], 0).unwrap();
    assert!(tier.space.ledger.usage().used >= before.used + size, "charged while a copier may write");
    drop(copier);
    assert_eq!((sweeps(1), tier.space.ledger.usage()), (Some(0), before));
    assert_eq!((reader.metadata().unwrap().blocks(), reader.metadata().unwrap().len()), (0, 0));
    // A reader has time to end its read.
    let (part, reader) = part_with_reader(&tier, size);
    tier.parts.discard(&part);
    assert_eq!((sweeps(10), reader.metadata().unwrap().len()), (Some(1), size));
    assert_eq!((sweeps(10), tier.space.ledger.usage()), (Some(0), before));
    // What a job may have open itself is never emptied.
    let (part, reader) = part_with_reader(&tier, size);
    let copy = tier.parts.publish(&part, name(1), stamp(1), None).unwrap().unwrap();
    tier.trash.evict(copy.name, copy.size);
    assert_eq!((sweeps(50), reader.metadata().unwrap().len()), (Some(1), size));
    drop(reader);
    assert_eq!((sweeps(1), tier.space.ledger.usage().used), (Some(0), before.used));
}

fn opened(dir: &Path) -> TierDir {
    let tier = TierDir::open("t", dir, CAPACITY_BYTES, 0).unwrap();
    tier.recover(|_| {}).unwrap();
    tier
}

/// A complete partial copy, and the file of a reader.
fn part_with_reader(tier: &TierDir, size: u64) -> (PartCopy, File) {
    let part = tier.parts.begin(size, true).unwrap().unwrap();
    tier.parts.open(&part, 0, size).unwrap().write_at(&vec![1; size as usize], 0).unwrap();
    let reader = File::from(tier.parts.read(part.number).unwrap());
    (part, reader)
}

/// An agent that came after another removed files that the log does not know, and gave their room
/// away while jobs had them open; and files that it removed itself got the names of what the other
/// agent had left.
#[test]
fn a_file_that_a_job_has_open_stays_charged_under_the_next_agents() {
    let dir = tempfile::tempdir().unwrap();
    let mut readers = Vec::new();
    let mut used = 0;
    for n in 0..3 {
        let tier = opened(dir.path());
        let copy = tier.copies.create(100 * PAGE_BYTES).unwrap().unwrap();
        File::from(copy.fd().try_clone_to_owned().unwrap())
            .write_all_at(&vec![1; 100 * PAGE_BYTES as usize], 0)
            .unwrap();
        let copy = copy.publish_passing(name(n), stamp(n)).unwrap().unwrap();
        readers.push(File::from(tier.copies.open(copy.name).unwrap()));
        let (part, reader) = part_with_reader(&tier, 50 * PAGE_BYTES);
        tier.parts.discard(&part);
        readers.push(reader);
        used += 150 * PAGE_BYTES;
        assert!(
            tier.space.ledger.usage().used >= used && readers.iter().all(|r| r.metadata().unwrap().nlink() == 1),
            "{n}"
        );
    }
    let tier = opened(dir.path());
    assert!(tier.space.ledger.usage().used >= used && tier.space.ledger.usage().files == 0);
    drop(readers);
    assert_eq!(tier.trash.sweep(), 0);
    assert!(tier.space.ledger.usage().used < 2 << 20);
}

#[test]
fn a_partial_copy_that_gets_no_name_is_charged_while_a_reader_has_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let tier = opened(dir.path());
    let before = tier.space.ledger.usage();
    let (part, reader) = part_with_reader(&tier, 100 * PAGE_BYTES);
    let parent = tier.path.join(String::from_utf8(name(1).rel_path().to_vec()).unwrap()).parent().unwrap().to_owned();
    fs::remove_dir(&parent).unwrap();
    fs::write(&parent, "").unwrap();
    assert!(tier.parts.publish(&part, name(1), stamp(1), None).is_err());
    let used = tier.space.ledger.usage().used - before.used;
    assert!(used >= 100 * PAGE_BYTES && reader.metadata().unwrap().nlink() == 1, "{used}");
    drop(reader);
    assert_eq!((tier.trash.sweep(), tier.space.ledger.usage()), (0, before));
}

#[test]
fn chunks_leave_keep_free_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    for (keep_free, has_room) in [(0, true), (u64::MAX, false)] {
        let tier = TierDir::open("t", dir.path(), CAPACITY_BYTES, keep_free).unwrap();
        assert_eq!(tier.space.has_room_on_disk(4 << 20), has_room);
    }
}
