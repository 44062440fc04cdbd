//! Creates, fills and maps shared-memory files.
//!
//! Only this module maps memory that is shared with other processes. Files are fallocated before
//! they are mapped, so that a full `/dev/shm` is an error here and never a SIGBUS in a process that
//! maps them. They get their name by rename, so that no process sees one half-written. Mappings are
//! kept for the life of the process: threads may hold references anywhere.

mod filling;
mod large_table;

use crate::held_dir::HeldDir;
use large_table::LargeTable;
use monarch_abi::control::{CONTROL_LEN, CONTROL_MAGIC, Control, ControlMap, Str};
use monarch_abi::guard::Guards;
use monarch_abi::index::{Index, IndexHeader};
use monarch_abi::mem::{HUGE_PAGE_BYTES, MIN_HUGE_BYTES, Map};
use monarch_abi::segment::Segment;
use monarch_abi::state::{STATE_MAGIC, StateHeader, StateMap, TABLE_OFF, layout_of};
use monarch_config::AbsentRule;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use filling::{BLOCK_BYTES, Block, FilledBytes, Filling};
pub use monarch_config::Checks;

/// Name of the control block in a runtime directory.
pub const CONTROL: &str = "control";

/// See madvise(2). (Not in each C library that is supported.)
const MADV_COLLAPSE: libc::c_int = 25;
/// Bytes of a call for it.
const HUGE_STEP_BYTES: usize = 64 << 20;

/// Maps a file read-only for this process.
fn map_private(file: &File) -> io::Result<memmap2::Mmap> {
    // SAFETY: files of the private runtime directory, which this process has written and no process
    // changes any more.
    unsafe { memmap2::Mmap::map(file) }
}

/// The bytes of an index that lie in this process's memory.
#[derive(Debug)]
pub struct IndexBytes<'a>(pub &'a [u8]);

impl<'a> IndexBytes<'a> {
    /// The index, if the bytes are one.
    #[must_use]
    pub fn open(&self) -> Option<Index<'a>> {
        // SAFETY: the slice is borrowed for 'a, so that it is not written to.
        Index::open(unsafe { Map::new(self.0.as_ptr(), self.0.len()) })
    }
}

/// Opens a file of the runtime directory, and maps all of it for the life of the process.
fn map_shared(dir: &HeldDir, name: &str, writable: bool) -> io::Result<Map<'static>> {
    let flags = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let fd = dir.open_file(name, flags, Mode::empty())?;
    let len = usize::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
    if len == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "empty shared-memory file"));
    }
    let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: a fresh mapping at an address the kernel picks, or within one that it has just
    // reserved there, of a file whose blocks are allocated and that is never truncated; it is never
    // unmapped, hence 'static.
    unsafe {
        let (mut at, mut flags) = (std::ptr::null_mut(), MapFlags::SHARED);
        if len >= MIN_HUGE_BYTES {
            // Huge pages begin at multiples of their size.
            let reserved = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let start = rustix::mm::mmap_anonymous(at, len + HUGE_PAGE_BYTES, ProtFlags::empty(), reserved)?;
            (at, flags) = (start.byte_add(start.align_offset(HUGE_PAGE_BYTES)), flags | MapFlags::FIXED);
        }
        let p = rustix::mm::mmap(at, len, prot, flags, &fd, 0)?;
        let _ = rustix::mm::madvise(p, len, Advice::LinuxDontDump);
        Ok(Map::new(p.cast(), len))
    }
}

/// Has the kernel hold the files of a large segment in huge pages, as far as it can: a lookup among
/// many names waits for the page tables otherwise, of which each process that maps the segment has
/// its own. Returns the bytes that are in huge pages. May take seconds; readers go on meanwhile.
pub fn use_huge_pages(segment: &Segment<'_>) -> u64 {
    let index = (std::ptr::from_ref(segment.index.header).cast::<u8>(), segment.index.header.len);
    let state = (std::ptr::from_ref(segment.state.header).cast::<u8>(), segment.state.header.len);
    let mut huge = 0;
    for (start, len) in [index, state].into_iter().filter(|(_, len)| *len >= MIN_HUGE_BYTES as u64) {
        let len = len as usize / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        for done in (0..len).step_by(HUGE_STEP_BYTES) {
            let step = (len - done).min(HUGE_STEP_BYTES);
            // SAFETY: advice about mapped memory that changes none of its bytes.
            let failed = unsafe { libc::madvise(start.byte_add(done).cast_mut().cast(), step, MADV_COLLAPSE) } != 0;
            match failed.then(|| io::Error::last_os_error().raw_os_error()).flatten() {
                None => huge += step as u64,
                // (Pages that are busy now stay small.)
                Some(libc::EAGAIN | libc::EBUSY) => {}
                // Linux before 6.1, or a system that forbids it; no memory to spare.
                Some(_) => break,
            }
        }
    }
    huge
}

/// A file, with all its bytes allocated, that has a temporary name. Dropped, it is removed unless
/// it has got its final name.
#[derive(Debug)]
pub struct Unfinished {
    file: File,
    dir: Arc<HeldDir>,
    /// Its temporary name; `None` once it has the final one.
    at: Option<String>,
}

impl Unfinished {
    /// Makes such a file in a directory; the temporary name is `name` with `.new` as its suffix.
    ///
    /// # Errors
    /// What the kernel said, `ENOSPC` when shared memory is full.
    fn beside(dir: &Arc<HeldDir>, name: &str, len: u64) -> io::Result<Self> {
        let tmp = format!("{}.new", name.rsplit_once('.').map_or(name, |(stem, _)| stem));
        // A file that a killed agent left there may be mapped, or not be writable.
        let _ = dir.unlink(tmp.as_str());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = File::from(dir.open_file(tmp.as_str(), flags, Mode::RUSR | Mode::WUSR)?);
        let new = Self { file, dir: dir.clone(), at: Some(tmp) };
        if len > 0 {
            new.allocate(len)?;
        }
        Ok(new)
    }

    /// Makes such a file of no bytes: those that are written take their space then. Before it is
    /// mapped it is [`Unfinished::allocate`]d.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn empty(dir: &Arc<HeldDir>) -> io::Result<Self> {
        Self::within(dir, 0)
    }

    /// Makes it `len` bytes long at least, and allocates them.
    ///
    /// # Errors
    /// What the kernel said, `ENOSPC` when shared memory is full.
    pub fn allocate(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), 0, len)?)
    }

    /// Makes such a file in a directory.
    ///
    /// # Errors
    /// What the kernel said, `ENOSPC` when shared memory is full.
    pub fn within(dir: &Arc<HeldDir>, len: u64) -> io::Result<Self> {
        Self::beside(dir, &hex(crate::sys::random_uuid()), len)
    }

    /// Writes all of `bytes` at `at`.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    /// Makes it `len` bytes long, which are to be filled through a mapping.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn map_to_fill(self, len: u64) -> io::Result<Filling> {
        Filling::of(self, usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?)
    }

    /// Maps its bytes; it must not be written to from then on.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn map(&self) -> io::Result<memmap2::Mmap> {
        map_private(&self.file)
    }

    /// Maps its bytes to write them.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn map_to_write(self) -> io::Result<MappedFile> {
        // SAFETY: a file of the private runtime directory that has no name yet by which another
        // process would open it; its blocks are allocated.
        let map = unsafe { memmap2::MmapMut::map_mut(&self.file) }?;
        Ok(MappedFile { file: self, map })
    }

    /// Gives it its final name, and `mode`: read-only if it is not written to any more.
    ///
    /// # Errors
    /// What the kernel said.
    fn finish(mut self, name: &str, mode: Mode) -> io::Result<()> {
        rustix::fs::fchmod(&self.file, mode)?;
        if let Some(tmp) = &self.at {
            self.dir.rename(tmp.as_str(), name)?;
        }
        self.at = None;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(tmp) = &self.at {
            let _ = self.dir.unlink(tmp.as_str());
        }
    }
}

/// An unfinished file that is written through a mapping.
#[derive(Debug)]
pub struct MappedFile {
    file: Unfinished,
    map: memmap2::MmapMut,
}

impl MappedFile {
    /// The file, and its bytes, which are not written to any more.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn written(self) -> io::Result<(Unfinished, memmap2::Mmap)> {
        Ok((self.file, self.map.make_read_only()?))
    }
}

impl AsMut<[u8]> for MappedFile {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

/// Creates a file with `len` allocated bytes, lets `fill` write it, and gives it its name.
fn create(dir: &Arc<HeldDir>, name: &str, len: u64, fill: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let new = Unfinished::beside(dir, name, len)?;
    fill(&new.file)?;
    new.finish(name, Mode::RUSR | Mode::WUSR)
}

/// The fixed values of a control block.
#[derive(Clone, Copy, Debug)]
pub struct ControlParams {
    /// Inode of the mount namespace, 0 when unknown.
    pub mnt_ns: u64,
    /// (`st_dev`, `st_ino`) of `/`.
    pub slash: (u64, u64),
    /// Inode of the user namespace, 0 when unknown.
    pub user_ns: u64,
    /// Inode of the PID namespace, 0 when unknown.
    pub pid_ns: u64,
}

/// Creates a control block in a directory and maps it.
///
/// # Errors
/// What the kernel said, `ENOSPC` when shared memory is full.
pub fn create_control(dir: &Arc<HeldDir>, params: ControlParams) -> io::Result<ControlMap<'static>> {
    create(dir, CONTROL, CONTROL_LEN as u64, |f| {
        let put = |off: usize, v: &[u8]| f.write_all_at(v, off as u64);
        put(offset_of!(Control, magic), &CONTROL_MAGIC.to_le_bytes())?;
        put(offset_of!(Control, layout), &monarch_abi::LAYOUT.to_le_bytes())?;
        put(offset_of!(Control, uid), &rustix::process::geteuid().as_raw().to_le_bytes())?;
        put(offset_of!(Control, len), &(CONTROL_LEN as u64).to_le_bytes())?;
        put(offset_of!(Control, groups), &our_groups().to_le_bytes())?;
        put(offset_of!(Control, caps), &our_capabilities().to_le_bytes())?;
        put(offset_of!(Control, user_ns), &params.user_ns.to_le_bytes())?;
        put(offset_of!(Control, pid_ns), &params.pid_ns.to_le_bytes())?;
        put(offset_of!(Control, mnt_ns), &params.mnt_ns.to_le_bytes())?;
        put(offset_of!(Control, slash_dev), &params.slash.0.to_le_bytes())?;
        put(offset_of!(Control, slash_ino), &params.slash.1.to_le_bytes())
    })?;
    open_control(dir, CONTROL)
}

/// A value for the groups of this process, with which the shim compares that of its own.
#[must_use]
pub fn our_groups() -> u64 {
    let others = rustix::process::getgroups().unwrap_or_default();
    let others: Vec<u32> = others.into_iter().map(rustix::process::Gid::as_raw).collect();
    monarch_abi::hash::hash_groups(rustix::process::getegid().as_raw(), &others)
}

/// The capabilities to read any file that this thread has.
fn our_capabilities() -> u64 {
    let has = rustix::thread::capabilities(None).map_or(0, |sets| sets.effective.bits());
    has & monarch_abi::control::READS_ALL
}

/// Whether a control block is of an agent with the rights of this process to read files.
#[must_use]
pub fn is_of_our_rights(ctl: &ControlMap<'_>) -> bool {
    (ctl.ctl.groups, ctl.ctl.caps) == (our_groups(), our_capabilities())
}

/// Maps an existing control block.
///
/// # Errors
/// `InvalidData` when it is of another version or not a control block.
pub fn open_control(dir: &HeldDir, name: &str) -> io::Result<ControlMap<'static>> {
    let map = map_shared(dir, name, true)?;
    ControlMap::open(map)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a control block of this version"))
}

/// Appends a string to the string area of the control block in a directory, and points `to` at it.
/// Only one caller at a time.
///
/// # Errors
/// The area is full, or what the kernel said; the area is unchanged then.
pub fn put_str(dir: &HeldDir, ctl: &ControlMap<'_>, to: &Str, text: &[u8]) -> io::Result<()> {
    let len = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let off = ctl.ctl.strings_len.load(Ordering::Relaxed);
    if off as usize + text.len() > monarch_abi::control::STRINGS {
        return Err(io::Error::new(io::ErrorKind::StorageFull, "too many or too long root paths"));
    }
    let file = File::from(dir.open_file(CONTROL, OFlags::WRONLY, Mode::empty())?);
    // Through the file: readers take mapped bytes as plain ones, and only those that were written
    // before the count of strings covered them.
    file.write_all_at(text, (monarch_abi::control::STRINGS_OFF + off as usize) as u64)?;
    ctl.ctl.strings_len.store(off + len, Ordering::Relaxed);
    to.off.store(off, Ordering::Relaxed);
    to.len.store(len, Ordering::Release);
    Ok(())
}

/// Names of the two files of a segment.
#[must_use]
pub fn segment_names(uuid: [u8; 16], state_uuid: [u8; 16]) -> (String, String) {
    (format!("{}.idx", hex(uuid)), format!("{}.st", hex(state_uuid)))
}

/// Lower-case hex of a UUID.
#[must_use]
pub fn hex(uuid: [u8; 16]) -> String {
    data_encoding::HEXLOWER.encode(&uuid)
}

/// Enters a UUID into the control block.
pub fn put_uuid(to: &[AtomicU64; 2], uuid: [u8; 16]) {
    for (half, bytes) in to.iter().zip(uuid.chunks_exact(8)) {
        half.store(bytes.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)), Ordering::Relaxed);
    }
}

/// Reads a UUID of the control block.
#[must_use]
pub fn get_uuid(from: &[AtomicU64; 2]) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&from[0].load(Ordering::Relaxed).to_le_bytes());
    out[8..].copy_from_slice(&from[1].load(Ordering::Relaxed).to_le_bytes());
    out
}

/// Which files are read in chunks, and the size of chunks.
#[derive(Clone, Copy, Debug)]
pub struct Chunking {
    /// Files with more bytes than this are.
    pub threshold: u64,
    /// Bytes of a chunk.
    pub size: u64,
}

/// The lookup table of a segment, in the file that will hold its state.
#[derive(Debug)]
pub struct TableFile {
    file: Unfinished,
    bytes: FilledBytes,
}

impl TableFile {
    /// Takes the start of a state file, with the table at [`TABLE_OFF`] and zeros before it.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn of(filling: Filling) -> io::Result<Self> {
        let (file, bytes) = filling.filled()?;
        Ok(Self { file, bytes })
    }

    /// The bytes of the table.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(TABLE_OFF..).unwrap_or_default()
    }
}

/// Where the lookup table of a segment that is made lies.
#[derive(Debug)]
pub enum Buckets<'a> {
    /// In memory.
    Bytes(&'a [u8]),
    /// In its file.
    File(TableFile),
}

/// Writes the two files of a segment into `dir`, and maps them.
///
/// # Errors
/// What the kernel said; nothing is left behind.
pub fn create_segment(
    dir: &Arc<HeldDir>,
    index: &[u8],
    buckets: &[u8],
    state_uuid: [u8; 16],
    chunking: Chunking,
    checks: Checks,
) -> io::Result<(Segment<'static>, u64, u64)> {
    let file = Unfinished::within(dir, index.len() as u64)?;
    file.write(index, 0)?;
    segment_with(dir, (file, index), Buckets::Bytes(buckets), state_uuid, chunking, checks)
}

/// Writes the state file of a segment whose index is written already (the file, and its bytes), and
/// maps both.
///
/// # Errors
/// What the kernel said; nothing is left behind.
pub fn segment_with(
    dir: &Arc<HeldDir>,
    (file, index): (Unfinished, &[u8]),
    buckets: Buckets<'_>,
    state_uuid: [u8; 16],
    chunking: Chunking,
    checks: Checks,
) -> io::Result<(Segment<'static>, u64, u64)> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "short index");
    let header: IndexHeader = zerocopy::FromBytes::read_from_prefix(index).map(|(h, _)| h).map_err(|_| bad())?;
    let (index_name, state_name) = segment_names(header.uuid, state_uuid);
    file.finish(&index_name, Mode::RUSR)?;
    let made = write_state((dir, &state_name), (&header, index), buckets, chunking, checks)
        .and_then(|len| Ok((open_segment(dir, header.uuid, state_uuid)?, len)));
    if made.is_err() {
        let _ = dir.unlink(index_name.as_str());
        let _ = dir.unlink(state_name.as_str());
    }
    made.map(|(segment, len)| (segment, index.len() as u64, len))
}

/// Writes a state file; its length.
fn write_state(
    (dir, name): (&Arc<HeldDir>, &str),
    (of, index): (&IndexHeader, &[u8]),
    buckets: Buckets<'_>,
    chunking: Chunking,
    checks: Checks,
) -> io::Result<u64> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "short index");
    let index = IndexBytes(index).open().ok_or_else(bad)?;
    let large = match &buckets {
        Buckets::Bytes(table) => LargeTable::of(&index, table, chunking.threshold, chunking.size),
        Buckets::File(table) => LargeTable::of(&index, table.bytes(), chunking.threshold, chunking.size),
    };
    let guards = Guards { checked: checks.loaded || checks.revalidate.is_some(), sums: checks.verify };
    let deciders = if checks.absent.rule == AbsentRule::Kernel { 0 } else { u64::from(of.dirs) };
    let (entries, large_files) = (u64::from(of.entries), large.files.len() as u64);
    let at = layout_of(entries, of.buckets, large_files, large.words, guards, deciders, checks.on_demand);
    let new = match buckets {
        Buckets::Bytes(table) => {
            let new = Unfinished::beside(dir, name, at.len)?;
            new.write(table, TABLE_OFF as u64)?;
            new
        }
        Buckets::File(table) => {
            table.file.allocate(at.len)?;
            table.file
        }
    };
    let fill = |f: &File| {
        let put = |off: usize, v: &[u8]| f.write_all_at(v, off as u64);
        let number = |off: usize, v: u64| put(off, &v.to_le_bytes());
        put(offset_of!(StateHeader, magic), &STATE_MAGIC.to_le_bytes())?;
        put(offset_of!(StateHeader, layout), &monarch_abi::LAYOUT.to_le_bytes())?;
        put(offset_of!(StateHeader, index_uuid), &of.uuid)?;
        number(offset_of!(StateHeader, buckets), of.buckets)?;
        number(offset_of!(StateHeader, entries), u64::from(of.entries))?;
        number(offset_of!(StateHeader, len), at.len)?;
        number(offset_of!(StateHeader, bits_off), at.bits)?;
        number(offset_of!(StateHeader, summary_off), at.summary)?;
        number(offset_of!(StateHeader, touched_off), at.touched)?;
        number(offset_of!(StateHeader, touched_summary_off), at.touched_summary)?;
        number(offset_of!(StateHeader, large_off), at.large)?;
        number(offset_of!(StateHeader, large), large.files.len() as u64)?;
        number(offset_of!(StateHeader, by_ino_off), at.by_ino)?;
        number(offset_of!(StateHeader, chunks_off), at.chunks)?;
        number(offset_of!(StateHeader, chunk_words), large.words)?;
        number(offset_of!(StateHeader, chunk), chunking.size)?;
        number(offset_of!(StateHeader, checked_off), at.checked)?;
        number(offset_of!(StateHeader, sums_off), at.sums)?;
        number(offset_of!(StateHeader, pieces_off), at.pieces)?;
        put(offset_of!(StateHeader, revalidate_ms), &checks.interval_ms().to_le_bytes())?;
        put(offset_of!(StateHeader, flags), &checks.flags().to_le_bytes())?;
        number(offset_of!(StateHeader, deciders_off), at.deciders)?;
        put(offset_of!(StateHeader, deciders_ms), &checks.absent.interval_ms().to_le_bytes())?;
        number(offset_of!(StateHeader, marks_off), at.marks)?;
        f.write_all_at(large.files.as_flattened(), at.large)?;
        f.write_all_at(zerocopy::IntoBytes::as_bytes(large.by_ino.as_slice()), at.by_ino)
    };
    fill(&new.file)?;
    new.finish(name, Mode::RUSR | Mode::WUSR)?;
    Ok(at.len)
}

/// Maps the two files of an existing segment.
///
/// # Errors
/// `InvalidData` when they do not belong together.
pub fn open_segment(dir: &HeldDir, uuid: [u8; 16], state_uuid: [u8; 16]) -> io::Result<Segment<'static>> {
    let (index, state) = segment_names(uuid, state_uuid);
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "segment files do not belong together");
    let index = Index::open(map_shared(dir, &index, false)?).ok_or_else(bad)?;
    let state = StateMap::open(map_shared(dir, &state, true)?, &index).ok_or_else(bad)?;
    Ok(Segment { index, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_that_does_not_fit_takes_no_room() {
        let dir = tempfile::tempdir().expect("temp dir");
        let dir = Arc::new(HeldDir::at(dir.path()).expect("directory"));
        let ctl = create_control(&dir, ControlParams { mnt_ns: 0, slash: (0, 0), user_ns: 0, pid_ns: 0 })
            .expect("control block");
        let (big, to) = (vec![b'x'; monarch_abi::control::STRINGS], Str::default());
        put_str(&dir, &ctl, &to, b"first").expect("room");
        put_str(&dir, &ctl, &to, &big).expect_err("no room");
        assert_eq!(ctl.str(&to), b"first");
        put_str(&dir, &ctl, &to, b"second").expect("room");
        assert_eq!(ctl.str(&to), b"second");
    }

    /// Every change of a directory's name took two entries of a table that is never emptied: 129 of
    /// them turned the root off.
    #[test]
    fn a_subtree_that_is_bypassed_again_takes_no_room() {
        let dir = tempfile::tempdir().expect("temp dir");
        let params = ControlParams { mnt_ns: 0, slash: (0, 0), user_ns: 0, pid_ns: 0 };
        let ctl =
            create_control(&Arc::new(HeldDir::at(dir.path()).expect("directory")), params).expect("control block");
        for _ in 0..1000 {
            assert!(ctl.bypass_range(1, 10, 20) && ctl.bypass_range(1, 12, 14));
        }
        assert!(ctl.in_bypassed_range(1, 19) && !ctl.in_bypassed_range(1, 20) && !ctl.in_bypassed_range(0, 12));
        let more = (0..1000).take_while(|n| ctl.bypass_range(2, 10 * n, 10 * n + 1)).count();
        assert_eq!(more, monarch_abi::control::MAX_RANGES - 1);
    }
}
