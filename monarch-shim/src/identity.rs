//! Which file a descriptor is a copy of, and what stat says about an entry.
//!
//! Nothing is remembered about descriptors: a copy carries a stamp in its modification time (see
//! `monarch_abi::hash`), so that the answer of the kernel's own fstat says which file it is a copy
//! of.

use core::sync::atomic::Ordering;
use monarch_abi::hash::Stamp;
use monarch_abi::index::{OWNER_KERNEL, Record};
use monarch_abi::names::Attributes;
use monarch_abi::resolve::Found;
use monarch_abi::segment::Segment;
use monarch_abi::word::State;
use monarch_guest::ctx::{self, Ctx, ids};

/// Mode of every copy.
pub const COPY_MODE: u32 = libc::S_IFREG | 0o400;

/// The facts about a descriptor that identify a copy.
#[derive(Clone, Copy)]
pub struct Facts {
    /// `st_dev`.
    pub dev: u64,
    /// `st_mode`.
    pub mode: u32,
    /// `st_size`.
    pub size: u64,
    /// Modification time: seconds, nanoseconds.
    pub mtime: (i64, u32),
}

impl Facts {
    /// From an answer of fstat.
    #[must_use]
    #[inline]
    pub fn of(st: &libc::stat64) -> Self {
        Self {
            dev: st.st_dev,
            mode: st.st_mode,
            size: st.st_size as u64,
            mtime: (st.st_mtime, st.st_mtime_nsec as u32),
        }
    }
}

/// The entry of which the described file is a copy.
#[inline]
#[must_use]
pub fn copy_of(ctx: &Ctx, f: &Facts) -> Option<Found<'static>> {
    if f.mode != COPY_MODE {
        return None;
    }
    copy_of_slow(ctx, f)
}

#[inline(never)]
fn copy_of_slow(ctx: &Ctx, f: &Facts) -> Option<Found<'static>> {
    let on_tier = ctx.map.tiers().iter().any(|t| t.dev.load(Ordering::Relaxed) == f.dev);
    if !on_tier {
        return None;
    }
    let stamp = Stamp::from_time(f.mtime.0, f.mtime.1)?;
    ctx::live(*ctx).find_map(|(root, number, segment)| {
        let entry = segment.by_stamp(stamp, f.size)?;
        Some(Found { root, number, segment, entry })
    })
}

/// The entry of which an open file is a copy.
#[must_use]
pub fn copy_of_fd(ctx: &Ctx, fd: core::ffi::c_int) -> Option<Found<'static>> {
    copy_of(ctx, &Facts::of(&monarch_guest::sys::fstat_local(fd)?))
}

/// The present attributes of a file that the job has changed since the copy was opened, when its
/// content is still that of the copy: chmod and the like on a descriptor are seen through it.
#[must_use]
pub fn changed_attributes(ctx: &Ctx, f: &Found<'static>) -> Option<libc::stat64> {
    if is_current(f) { None } else { attributes(ctx, f) }
}

/// The present attributes of the file on the PFS that a copy was made of, if it has the same inode
/// and size.
#[must_use]
pub fn attributes(ctx: &Ctx, f: &Found<'static>) -> Option<libc::stat64> {
    // Another file may have its number by now.
    if f.entry.word().is_gone() {
        return None;
    }
    let mut path = monarch_guest::absolute::pfs_path(ctx, f)?;
    let now = monarch_guest::sys::stat_at(libc::AT_FDCWD, path.c_str()?, libc::AT_SYMLINK_NOFOLLOW)?;
    (is_inode_of(ctx, f, &now) && now.st_size as u64 == f.entry.record.size).then_some(now)
}

/// The path on the PFS of an entry if the file that was indexed is still there.
#[must_use]
pub fn path_if_there(ctx: &Ctx, f: &Found<'static>) -> Option<monarch_guest::absolute::Absolute> {
    if f.entry.word().is_gone() {
        return None;
    }
    let mut path = monarch_guest::absolute::pfs_path(ctx, f)?;
    let st = monarch_guest::sys::stat_at(libc::AT_FDCWD, path.c_str()?, libc::AT_SYMLINK_NOFOLLOW)?;
    is_inode_of(ctx, f, &st).then_some(path)
}

/// Whether these are the attributes of the inode that was indexed.
#[must_use]
pub fn is_inode_of(ctx: &Ctx, f: &Found<'static>, st: &libc::stat64) -> bool {
    st.st_ino == f.entry.record.ino && is_device_of(ctx, f, st.st_dev)
}

/// Whether a file of an entry may lie on this device: that of the root, or any where the index does
/// not have it (layers of overlays).
fn is_device_of(ctx: &Ctx, f: &Found<'static>, dev: u64) -> bool {
    let root = ctx.map.ctl.roots.get(f.root).map(|r| r.dev.load(Ordering::Relaxed));
    root == Some(dev) || f.entry.record.owner == OWNER_KERNEL
}

/// Whether these are the attributes of the content that was indexed. The change time may differ:
/// the job may have changed attributes.
#[must_use]
pub fn is_version_of(ctx: &Ctx, f: &Found<'static>, st: &libc::stat64) -> bool {
    let ns = |s: i64, ns: i64| s.saturating_mul(1_000_000_000).saturating_add(ns);
    let r = f.entry.record;
    is_inode_of(ctx, f, st) && st.st_size as u64 == r.size && ns(st.st_mtime, st.st_mtime_nsec) == r.mtime_ns
}

/// [`is_version_of`] for an answer of statx.
#[must_use]
pub fn is_version_of_statx(ctx: &Ctx, f: &Found<'static>, st: &libc::statx) -> bool {
    let r = f.entry.record;
    let ns = st.stx_mtime.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(st.stx_mtime.tv_nsec));
    st.stx_ino == r.ino
        && st.stx_size == r.size
        && ns == r.mtime_ns
        && is_device_of(ctx, f, monarch_guest::sys::makedev(st.stx_dev_major, st.stx_dev_minor))
}

/// Seconds and nanoseconds of a time in nanoseconds.
#[inline]
const fn split(ns: i64) -> (i64, i64) {
    const SECOND: u64 = 1_000_000_000;
    if ns < 0 {
        return (ns.div_euclid(SECOND.cast_signed()), ns.rem_euclid(SECOND.cast_signed()));
    }
    // (Without a sign the divisions take half the instructions.)
    let ns = ns.cast_unsigned();
    ((ns / SECOND).cast_signed(), (ns % SECOND).cast_signed())
}

/// Fills a stat buffer from an entry; `None` when the kernel has to answer. The state is not looked
/// at.
#[inline]
#[must_use]
pub fn fill_stat(ctx: &Ctx, root: usize, segment: &Segment<'_>, r: &Record, out: &mut libc::stat64) -> Option<()> {
    fill_stat_of(ctx, root, segment.index.owner(r)?, r, out)
}

/// [`fill_stat`] from what the agent says of a path that the index does not hold.
#[cold]
#[must_use]
pub fn fill_stat_on_demand(ctx: &Ctx, root: usize, of: &Attributes, out: &mut libc::stat64) -> Option<()> {
    fill_stat_of(ctx, root, (of.uid, of.gid), &of.record, out)
}

#[inline(always)]
fn fill_stat_of(ctx: &Ctx, root: usize, (uid, gid): (u32, u32), r: &Record, out: &mut libc::stat64) -> Option<()> {
    let root = ctx.map.ctl.roots.get(root)?;
    out.st_dev = root.dev.load(Ordering::Relaxed);
    out.st_blksize = root.blksize.load(Ordering::Relaxed) as _;
    out.st_ino = r.ino;
    out.st_mode = u32::from(r.mode);
    out.st_nlink = r.nlink as _;
    out.st_uid = uid;
    out.st_gid = gid;
    out.st_rdev = 0;
    out.st_size = r.size as i64;
    out.st_blocks = i64::from(r.blocks);
    (out.st_atime, out.st_atime_nsec) = split(r.atime_ns);
    (out.st_mtime, out.st_mtime_nsec) = split(r.mtime_ns);
    (out.st_ctime, out.st_ctime_nsec) = split(r.ctime_ns);
    if ids::differ() { renumber(&mut out.st_uid, &mut out.st_gid) } else { Some(()) }
}

/// What can be asked of statx and is held.
const INDEXED_FIELDS: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

/// Fills a statx buffer from an entry; `None` when the kernel has to answer. The state is not
/// looked at.
#[must_use]
pub fn fill_statx(ctx: &Ctx, f: &Found<'static>, mask: u32, out: &mut libc::statx) -> Option<()> {
    let r = f.entry.record;
    let owner = f.segment.index.owner(r)?;
    if mask & !INDEXED_FIELDS != 0 {
        return None;
    }
    let btime = if mask & libc::STATX_BTIME == 0 || f.segment.index.header.btimes_off == 0 {
        None
    } else {
        Some(f.segment.index.btime_ns(f.entry.id)?)
    };
    fill_statx_of(ctx, f.root, owner, r, btime, out)
}

/// [`fill_statx`] from what the agent says of a path that the index does not hold.
#[cold]
#[must_use]
pub fn fill_statx_on_demand(ctx: &Ctx, root: usize, of: &Attributes, mask: u32, out: &mut libc::statx) -> Option<()> {
    let wants_btime = mask & libc::STATX_BTIME != 0;
    if mask & !INDEXED_FIELDS != 0 || (wants_btime && of.btime_ns == i64::MIN) {
        return None;
    }
    let btime = Some(of.btime_ns).filter(|_| wants_btime);
    fill_statx_of(ctx, root, (of.uid, of.gid), &of.record, btime, out)
}

#[inline(always)]
fn fill_statx_of(
    ctx: &Ctx,
    root: usize,
    (uid, gid): (u32, u32),
    r: &Record,
    btime: Option<i64>,
    out: &mut libc::statx,
) -> Option<()> {
    let root = ctx.map.ctl.roots.get(root)?;
    let dev = root.dev.load(Ordering::Relaxed);
    let time = |ns: i64| {
        let (s, n) = split(ns);
        // SAFETY: integers, of which zero is a valid value.
        let mut t: libc::statx_timestamp = unsafe { core::mem::zeroed() };
        t.tv_sec = s;
        t.tv_nsec = n as u32;
        t
    };
    // SAFETY: integers, of which zero is a valid value.
    *out = unsafe { core::mem::zeroed() };
    out.stx_mask = libc::STATX_BASIC_STATS | if btime.is_some() { libc::STATX_BTIME } else { 0 };
    out.stx_blksize = root.blksize.load(Ordering::Relaxed);
    out.stx_nlink = u32::from(r.nlink);
    out.stx_uid = uid;
    out.stx_gid = gid;
    out.stx_mode = r.mode;
    out.stx_ino = r.ino;
    out.stx_size = r.size;
    out.stx_blocks = u64::from(r.blocks);
    out.stx_atime = time(r.atime_ns);
    out.stx_mtime = time(r.mtime_ns);
    out.stx_ctime = time(r.ctime_ns);
    if let Some(ns) = btime {
        out.stx_btime = time(ns);
    }
    out.stx_dev_major = monarch_guest::sys::major(dev);
    out.stx_dev_minor = monarch_guest::sys::minor(dev);
    if ids::differ() { renumber(&mut out.stx_uid, &mut out.stx_gid) } else { Some(()) }
}

/// Gives user and group of the agent's namespace the numbers that they have in this one.
#[cold]
#[inline(never)]
fn renumber(user: &mut u32, group: &mut u32) -> Option<()> {
    (*user, *group) = ids::owner_here((*user, *group))?;
    Some(())
}

/// Whether an entry's metadata may be answered from the index.
#[inline]
#[must_use]
pub fn is_current(f: &Found<'static>) -> bool {
    f.entry.word().state() != State::Bypass
}
