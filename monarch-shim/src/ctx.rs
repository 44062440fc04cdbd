//! The boot gate, shared memory, and which roots can be trusted in this process.
//!
//! Before our constructor has run every call goes to the next symbol. The constructor maps the control block if the
//! environment names one that is ours; segments are mapped when they appear, and never unmapped. A root is trusted if this
//! process sees the same mounts as the agent: the same mount namespace and the same `/`, or else, asked once, the same
//! `st_dev` and `st_ino` at the root's path and at the tiers.

use crate::sys;
use crate::user::{self, Beginning};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use monarch_abi::control::{ControlMap, Counter, Hidden, MAX_ROOTS, MAX_SEGMENTS, SEGMENT_LIVE, SegmentRef};
use monarch_abi::demand::Life;
use monarch_abi::hash::hash_groups;
use monarch_abi::index::Index;
use monarch_abi::mem::{Map, PathBuffer, common_prefix};
use monarch_abi::resolve::Segments;
use monarch_abi::segment::Segment;
use monarch_abi::state::{OPENING, StateMap};

/// How often a segment that another thread is mapping is looked for.
const PATIENCE: u32 = 200;

/// 0 before the constructor, then one of these.
static GATE: AtomicU32 = AtomicU32::new(0);
const OFF: u32 = 1;
const ON: u32 = 2;
/// The process runs as somebody else for now: it reads nothing through us, but its changes count.
const OTHER_USER: u32 = 3;
/// Not zero: never again what the agent may.
static RIGHTS_DIFFER: AtomicU32 = AtomicU32::new(0);

/// A cell that is written once, before a flag says so.
struct Once<T>(UnsafeCell<MaybeUninit<T>>);
// SAFETY: written once by the thread that claimed it, read only after a release store of its flag.
unsafe impl<T: Sync> Sync for Once<T> {}

static HIDDEN: Hidden = Hidden::none();
static CONTROL: Once<ControlMap<'static>> = Once(UnsafeCell::new(MaybeUninit::uninit()));

struct SegmentCell {
    /// 0 empty, 1 being mapped, 2 mapped, 3 cannot be mapped.
    flag: AtomicU32,
    segment: Once<Segment<'static>>,
}
static SEGMENTS: [SegmentCell; MAX_SEGMENTS] =
    [const { SegmentCell { flag: AtomicU32::new(0), segment: Once(UnsafeCell::new(MaybeUninit::uninit())) } };
        MAX_SEGMENTS];

/// Number + 1 of the live segment of each root.
static ROOT_SEGMENT: [AtomicU32; MAX_ROOTS] = [const { AtomicU32::new(0) }; MAX_ROOTS];
/// 0 not asked, 1 trusted, 2 another mount lies there.
static ROOT_TRUST: [AtomicU32; MAX_ROOTS] = [const { AtomicU32::new(0) }; MAX_ROOTS];
/// 0 not asked, 1 the agent's mounts, 2 perhaps others.
static NAMESPACE: AtomicU32 = AtomicU32::new(0);
/// Generation of the control block that was taken over.
static SYNCED: AtomicU32 = AtomicU32::new(0);
/// Directory of the runtime files and its length.
static DIR: Once<[u8; 512]> = Once(UnsafeCell::new(MaybeUninit::uninit()));
static DIR_LEN: AtomicUsize = AtomicUsize::new(0);

/// The shared state, when the gate is open.
#[derive(Clone, Copy)]
pub struct Ctx {
    /// The control block.
    pub map: &'static ControlMap<'static>,
    /// Whether segments that are not open yet are seen, too: changes have to be entered there.
    opening: bool,
    /// So many bytes of the path at hand are the only spelling of the only root; 0 when that is not known.
    below: usize,
}

/// The gate: `None` means pass through.
#[inline]
#[must_use]
pub fn get() -> Option<Ctx> {
    if GATE.load(Ordering::Acquire) != ON {
        return None;
    }
    open_gate()
}

/// The gate for what needs no rights: changes, and descriptors that the process has.
#[inline]
#[must_use]
pub fn mapped() -> Option<Ctx> {
    if GATE.load(Ordering::Acquire) < ON {
        return None;
    }
    open_gate()
}

#[inline]
fn open_gate() -> Option<Ctx> {
    // SAFETY: written before the gate opened.
    let map = unsafe { (*CONTROL.0.get()).assume_init_ref() };
    if map.ctl.bypassed.load(Ordering::Relaxed) != 0 {
        return None;
    }
    Some(Ctx { map, opening: false, below: 0 })
}

/// The constructor.
pub extern "C" fn boot(_argc: i32, _argv: *const *const u8, envp: *const *const u8) {
    crate::next::resolve_all();
    let on = is_glibc() && attach(envp).is_some();
    GATE.store(if on { ON } else { OFF }, Ordering::Release);
}

/// Other C libraries have other streams and structures; there we only pass through.
fn is_glibc() -> bool {
    crate::next::address(crate::symbols::Sym::gnu_get_libc_version) != 0
}

/// The value of an environment variable.
///
/// # Safety
/// `envp` must be the environment as the loader passed it.
unsafe fn env(envp: *const *const u8, name: &[u8]) -> Option<&'static [u8]> {
    let mut at = envp;
    if at.is_null() {
        return None;
    }
    loop {
        // SAFETY: the environment ends with a null pointer, its strings with a NUL.
        let text = unsafe {
            if (*at).is_null() {
                return None;
            }
            core::ffi::CStr::from_ptr((*at).cast()).to_bytes()
        };
        if let Some(value) = text.strip_prefix(name)
            && let Some((b'=', value)) = value.split_first()
        {
            return Some(value);
        }
        // SAFETY: as above.
        at = unsafe { at.add(1) };
    }
}

/// Maps the control block that the environment names.
fn attach(envp: *const *const u8) -> Option<()> {
    // SAFETY: from the loader.
    let (disabled, path) = unsafe { (env(envp, b"MONARCH_DISABLE"), env(envp, b"MONARCH_CTL")?) };
    if disabled.is_some_and(|v| !v.is_empty() && v != b"0") {
        return None;
    }
    let slash = path.iter().rposition(|&c| c == b'/')?;
    let dir = path.get(..slash)?;
    if dir.len() >= 512 || path.first() != Some(&b'/') {
        return None;
    }
    // SAFETY: the constructor runs once, before anybody reads.
    unsafe {
        core::ptr::copy_nonoverlapping(dir.as_ptr(), (*DIR.0.get()).as_mut_ptr().cast(), dir.len());
    }
    DIR_LEN.store(dir.len(), Ordering::Relaxed);
    let map = map_file(path, true)?;
    let control = ControlMap::open_hiding(map, &HIDDEN)?;
    if !is_our_user(&control) || !is_in_our_groups(&control) {
        return None;
    }
    // SAFETY: as above.
    unsafe { (*CONTROL.0.get()).write(control) };
    crate::cwd::boot();
    Some(())
}

/// Maps all of a file that is ours.
fn map_file(path: &[u8], writable: bool) -> Option<Map<'static>> {
    let access = if writable { libc::O_RDWR } else { libc::O_RDONLY };
    let fd = sys::open_bytes(path, access | libc::O_CLOEXEC | libc::O_NOFOLLOW)?;
    let st = sys::fstat(fd.0)?;
    let len = usize::try_from(st.st_size).ok()?;
    if len == 0 || st.st_uid != sys::euid() || st.st_mode & 0o077 != 0 {
        return None;
    }
    let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let p = sys::map(len, prot, libc::MAP_SHARED, fd.0)?;
    sys::advise(p, len, libc::MADV_DONTDUMP);
    // SAFETY: a fresh mapping of a file whose blocks are allocated and that is never truncated; never unmapped.
    Some(unsafe { Map::new(p, len) })
}

/// `dir/name` in the runtime directory.
fn runtime_file<'b>(name: &[u8], buf: &'b mut [u8; 600]) -> Option<&'b [u8]> {
    let len = DIR_LEN.load(Ordering::Relaxed);
    // SAFETY: so many bytes were written by the constructor.
    let dir = unsafe { core::slice::from_raw_parts((*DIR.0.get()).as_ptr().cast::<u8>(), len) };
    let total = len + 1 + name.len();
    buf.get_mut(..len)?.copy_from_slice(dir);
    *buf.get_mut(len)? = b'/';
    buf.get_mut(len + 1..total)?.copy_from_slice(name);
    buf.get(..total)
}

/// Whether the agent lives: it holds a lock. Slow path only.
#[must_use]
pub fn agent() -> Life {
    let mut buf = [0; 600];
    let Some(path) = runtime_file(b"lock", &mut buf) else { return Life::Unknown };
    let Some(fd) = sys::open_bytes(path, libc::O_RDONLY | libc::O_CLOEXEC) else { return Life::Unknown };
    if !sys::lock(fd.0, libc::LOCK_SH | libc::LOCK_NB) {
        return Life::Alive;
    }
    // At once, not by the close: a child forked meanwhile has the descriptor, too.
    let _ = sys::lock(fd.0, libc::LOCK_UN);
    Life::Dead
}

/// After chroot, setns, unshare: ask again what lies where.
pub fn place_changed() {
    ask_again(0);
}

/// After setuid and the like: the index tells only the agent's user what it holds.
pub fn user_changed() {
    if GATE.load(Ordering::Acquire) >= ON
        && let Some(ctx) = open_gate()
    {
        let same = is_our_user(ctx.map) && RIGHTS_DIFFER.load(Ordering::Acquire) == 0;
        GATE.store(if same { ON } else { OTHER_USER }, Ordering::Release);
    }
}

/// After setgid and setgroups, which do not matter to root, and after setfsuid, which is one thread's: what the kernel allows
/// may differ from what it allows the agent, perhaps only in this thread. So nothing is told any more.
pub fn rights_changed(even_roots: bool) {
    if GATE.load(Ordering::Acquire) == ON
        && let Some(ctx) = open_gate()
        && (even_roots || ctx.map.ctl.uid != 0)
    {
        RIGHTS_DIFFER.store(1, Ordering::Release);
        GATE.store(OTHER_USER, Ordering::Release);
    }
}

/// Whether this process runs as the agent's user in every respect.
fn is_our_user(map: &ControlMap<'_>) -> bool {
    let uid = map.ctl.uid;
    uid == sys::euid() && uid == sys::uid() && uid == sys::fsuid()
}

/// Whether this process has the agent's groups: they may let it read what others of the user may not.
fn is_in_our_groups(map: &ControlMap<'_>) -> bool {
    if map.ctl.uid == 0 {
        return true;
    }
    let mut list = [0u32; 256];
    sys::groups(&mut list).is_some_and(|groups| hash_groups(sys::egid(), groups) == map.ctl.groups)
}

/// After mount, umount: ask again, and do not rely on the namespace.
pub fn mounts_changed() {
    ask_again(2);
}

fn ask_again(namespace: u32) {
    NAMESPACE.store(namespace, Ordering::Relaxed);
    for t in &ROOT_TRUST {
        t.store(0, Ordering::Relaxed);
    }
    HIDDEN.clear();
    crate::mounts::forget();
    crate::cwd::invalidate();
}

/// What all spellings of the roots have in front: number of spellings << 48 | whether it is all there is << 47 |
/// length << 32 | offset in the area of strings.
static STEM: AtomicU64 = AtomicU64::new(0);
const WHOLE: u64 = 1 << 47;

impl Ctx {
    /// [`get`] for a path: `None` also when it is absolute and certainly leads outside all roots.
    ///
    /// It is told by the first byte that differs from what all spellings have in common, unless that is the doubled slash or dot
    /// of an odd spelling. If there is but one spelling, and the path begins with it, nothing needs to be compared again.
    ///
    /// # Safety
    /// That of [`crate::user::path`].
    #[inline]
    pub unsafe fn enter<'a>(mut self, path: *const core::ffi::c_char) -> Option<(Self, &'a [u8])> {
        let known = STEM.load(Ordering::Acquire);
        let n = self.map.ctl.spellings_len.load(Ordering::Acquire);
        let known = if known >> 48 == u64::from(n) { known } else { self.find_stem() };
        let len = (known >> 32 & 0x7fff) as usize;
        let stem = self.map.string(known as u32, len);
        // SAFETY: by contract.
        unsafe {
            match user::compare(path, stem) {
                Beginning::Differs(at, c) => {
                    let odd = matches!(c, b'/' | b'.') && at > 0 && stem.get(at - 1) == Some(&b'/');
                    if at > 0 && !odd {
                        return None;
                    }
                }
                Beginning::Same if known & WHOLE != 0 => {
                    if let Some(bytes) = user::rest_in_page(path, len) {
                        self.below = len;
                        return Some((self, bytes));
                    }
                }
                _ => {}
            }
            Some((self, user::path(path)?))
        }
    }

    #[cold]
    #[inline(never)]
    fn find_stem(&self) -> u64 {
        let all = self.map.spellings();
        let Some((first, others)) = all.split_first() else { return 0 };
        let text = self.map.str(&first.path);
        let common = others.iter().map(|s| common_prefix(text, self.map.str(&s.path)));
        let len = common.fold(text.len().min(0x7fff), usize::min);
        let whole = others.is_empty() && len == text.len() && self.map.str(&first.sub).is_empty();
        let found = (all.len() as u64) << 48
            | if whole { WHOLE } else { 0 }
            | (len as u64) << 32
            | u64::from(first.path.off.load(Ordering::Relaxed));
        STEM.store(found, Ordering::Release);
        found
    }

    /// The part of a path behind the only spelling of the only root, and that root, if [`Ctx::enter`] found it there.
    #[inline]
    #[must_use]
    pub fn below<'p>(&self, path: &'p [u8]) -> Option<(usize, &'p [u8])> {
        if self.below == 0 {
            return None;
        }
        let rest = path.get(self.below..).filter(|rest| rest.first() == Some(&b'/'))?;
        Some((self.map.ctl.spellings.first()?.root.load(Ordering::Relaxed) as usize, rest))
    }

    /// Adds to a counter.
    #[inline]
    pub fn count(&self, what: Counter, by: u64) {
        // The stack differs between threads, the kernel's randomisation between processes.
        let here = 0u8;
        let hint = &raw const here as usize;
        self.map.count(hint >> 12 ^ hint >> 20 ^ hint >> 28, what, by);
    }

    /// The same, with segments that are not open yet.
    #[must_use]
    pub const fn for_changes(&self) -> Self {
        Self { opening: true, below: 0, ..*self }
    }

    /// Whether a root has no index so far. If it has one that this process cannot map, what changes cannot be entered: then the
    /// whole root is left to the PFS.
    #[must_use]
    pub fn awaits_index(&self, root: usize) -> bool {
        for _ in 0..PATIENCE {
            self.sync();
            if ROOT_SEGMENT.get(root).is_none_or(|s| s.load(Ordering::Acquire) != 0) {
                return false;
            }
            if !self.has_live_segment(root) {
                return true;
            }
            // Another thread is just mapping it.
            SYNCED.store(0, Ordering::Relaxed);
            sys::pause();
        }
        self.give_up(root);
        false
    }

    fn has_live_segment(&self, root: usize) -> bool {
        let is = |s: &SegmentRef| {
            s.status.load(Ordering::Acquire) == SEGMENT_LIVE && s.root.load(Ordering::Relaxed) as usize == root
        };
        self.map.segments().iter().any(is)
    }

    /// Leaves a root to the PFS, in all processes and for good.
    pub fn give_up(&self, root: usize) {
        if let Some(r) = self.map.roots().get(root) {
            r.bypassed.store(1, Ordering::Release);
        }
    }

    /// Takes over segments that appeared since the last look.
    #[inline]
    fn sync(&self) {
        let now = self.map.ctl.generation.load(Ordering::Acquire);
        if SYNCED.load(Ordering::Relaxed) != now {
            self.sync_slow(now);
        }
    }

    #[cold]
    #[inline(never)]
    fn sync_slow(&self, now: u32) {
        for (at, s) in self.map.segments().iter().enumerate() {
            let root = s.root.load(Ordering::Relaxed) as usize;
            let Some(slot) = ROOT_SEGMENT.get(root) else { continue };
            let live = s.status.load(Ordering::Acquire) == SEGMENT_LIVE && segment_at(at, s).is_some();
            if live {
                slot.store(at as u32 + 1, Ordering::Release);
            } else {
                let _ = slot.compare_exchange(at as u32 + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        SYNCED.store(now, Ordering::Release);
    }

    /// Whether what lies at the root's path in this process is what the agent serves.
    #[inline]
    fn trusted(&self, root: usize) -> bool {
        match ROOT_TRUST.get(root).map(|t| t.load(Ordering::Acquire)) {
            Some(1) => true,
            Some(0) => self.ask_trust(root),
            _ => false,
        }
    }

    #[cold]
    #[inline(never)]
    fn ask_trust(&self, root: usize) -> bool {
        if NAMESPACE.load(Ordering::Relaxed) == 0 {
            NAMESPACE.store(if self.same_mounts() { 1 } else { 2 }, Ordering::Relaxed);
        }
        let same_mounts = NAMESPACE.load(Ordering::Relaxed) == 1;
        let good = same_mounts || self.same_files(root);
        // The path at hand may have come by a spelling that is hidden only now.
        let hidden = !same_mounts && good && self.hide_spellings(root);
        if let Some(t) = ROOT_TRUST.get(root) {
            t.store(if good { 1 } else { 2 }, Ordering::Release);
        }
        good && !hidden
    }

    /// Hides the spellings of a root that lead elsewhere, or nowhere, in this process; whether there were any.
    fn hide_spellings(&self, root: usize) -> bool {
        let Some(real) = self.map.roots().get(root).map(|r| self.map.str(&r.path)) else { return false };
        let mut any = false;
        for (number, s) in self.map.spellings().iter().enumerate() {
            let text = self.map.str(&s.path);
            if s.root.load(Ordering::Relaxed) as usize != root || text == real {
                continue;
            }
            let place = |path: &[u8]| sys::stat_bytes(path, 0).map(|st| (st.st_dev, st.st_ino));
            let mut there = PathBuffer::front();
            let joined =
                there.append(real).and_then(|()| there.append(b"/")).and_then(|()| there.append(self.map.str(&s.sub)));
            let leads_there = joined.is_some() && place(text).is_some_and(|p| Some(p) == place(there.get()));
            if !leads_there {
                HIDDEN.add(number);
                any = true;
            }
        }
        any
    }

    /// Whether this process has mounts of its own: what it mounts concerns nobody else.
    #[must_use]
    pub fn in_own_namespace(&self) -> bool {
        !self.same_mounts()
    }

    /// Same mount namespace and same `/`: then all paths lead where they lead for the agent.
    fn same_mounts(&self) -> bool {
        let ino = |p: &core::ffi::CStr| sys::stat_at(libc::AT_FDCWD, p, 0);
        let ctl = self.map.ctl;
        ctl.mnt_ns != 0
            && ino(c"/proc/self/ns/mnt").is_some_and(|s| s.st_ino == ctl.mnt_ns)
            && ino(c"/").is_some_and(|s| (s.st_dev, s.st_ino) == (ctl.slash_dev, ctl.slash_ino))
    }

    /// Same device and inode at the root's path and at every tier, and no other mount below the root.
    fn same_files(&self, root: usize) -> bool {
        let is = |path: &[u8], dev: u64, ino: u64| {
            sys::stat_bytes(path, 0).is_some_and(|st| (st.st_dev, st.st_ino) == (dev, ino))
        };
        let load = |v: &core::sync::atomic::AtomicU64| v.load(Ordering::Relaxed);
        let Some(r) = self.map.roots().get(root) else { return false };
        is(self.map.str(&r.path), load(&r.dev), load(&r.ino))
            && self.map.tiers().iter().all(|t| is(self.map.str(&t.path), load(&t.dev), load(&t.ino)))
            && !crate::mounts::any_below(self.map.str(&r.path))
    }

    /// The mapped segments that are live, with their numbers and roots.
    pub fn live(&self) -> impl Iterator<Item = (usize, usize, &'static Segment<'static>)> + use<> {
        self.sync();
        let this = *self;
        (0..this.map.roots().len()).filter_map(move |root| {
            let (number, segment) = this.segment(root)?;
            Some((root, number, segment))
        })
    }
}

impl Segments<'static> for Ctx {
    #[inline]
    fn segment(&self, root: usize) -> Option<(usize, &'static Segment<'static>)> {
        self.sync();
        let number = (ROOT_SEGMENT.get(root)?.load(Ordering::Acquire) as usize).checked_sub(1)?;
        // A change is entered even where we would not read: to bypass too much is safe.
        if !self.opening && !self.trusted(root) {
            return None;
        }
        let cell = SEGMENTS.get(number)?;
        if cell.flag.load(Ordering::Acquire) != 2 {
            return None;
        }
        // SAFETY: the flag says that it was written.
        let segment = unsafe { (*cell.segment.0.get()).assume_init_ref() };
        let closed = segment.state.header.bypassed.load(Ordering::Relaxed);
        if (closed != 0 && !(self.opening && closed == OPENING))
            || self.map.roots().get(root)?.bypassed.load(Ordering::Relaxed) != 0
        {
            return None;
        }
        Some((number, segment))
    }
}

/// Maps segment number `at` if nobody has.
fn segment_at(at: usize, s: &SegmentRef) -> Option<()> {
    let cell = SEGMENTS.get(at)?;
    match cell.flag.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        Err(2) => return Some(()),
        Err(_) => return None,
    }
    let mapped = map_segment(s);
    let flag = if let Some(segment) = mapped {
        // SAFETY: we claimed the cell.
        unsafe { (*cell.segment.0.get()).write(segment) };
        2
    } else {
        3
    };
    cell.flag.store(flag, Ordering::Release);
    (flag == 2).then_some(())
}

fn map_segment(s: &SegmentRef) -> Option<Segment<'static>> {
    let mut buf = [0; 600];
    let index = Index::open(map_file(uuid_file(&s.uuid, b".idx", &mut buf)?, false)?)?;
    let state = StateMap::open(map_file(uuid_file(&s.state_uuid, b".st", &mut buf)?, true)?, &index)?;
    Some(Segment { index, state })
}

/// `dir/<32 hex><suffix>`.
fn uuid_file<'b>(uuid: &[core::sync::atomic::AtomicU64; 2], suffix: &[u8], buf: &'b mut [u8; 600]) -> Option<&'b [u8]> {
    let mut name = [0u8; 36];
    for (i, half) in uuid.iter().enumerate() {
        for (j, byte) in half.load(Ordering::Relaxed).to_le_bytes().into_iter().enumerate() {
            let at = (i * 8 + j) * 2;
            *name.get_mut(at)? = digit(byte >> 4);
            *name.get_mut(at + 1)? = digit(byte & 15);
        }
    }
    let len = 32 + suffix.len();
    name.get_mut(32..len)?.copy_from_slice(suffix);
    runtime_file(name.get(..len)?, buf)
}

const fn digit(v: u8) -> u8 {
    if v < 10 { b'0' + v } else { b'a' + v - 10 }
}
