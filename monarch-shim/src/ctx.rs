//! The boot gate, shared memory, and which roots can be trusted in this process.
//!
//! | module | what it holds |
//! |---|---|
//! | [`files`] | the files of the runtime directory |
//! | [`segments`] | mapping segments as they appear |
//! | [`trust`] | what leads in this process where it leads for the agent |
//! | [`stem`] | what the first bytes of a path tell |
//!
//! Before our constructor has run every call goes to the next symbol. The constructor maps the control block if the
//! environment names one that is ours; segments are mapped when they appear, and never unmapped. A root is trusted if this
//! process sees the same mounts as the agent: the same mount namespace and the same `/`, or else, asked once, the same
//! `st_dev` and `st_ino` at the root's path and at the tiers.

use crate::sys;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use monarch_abi::control::{ControlMap, Counter};
use monarch_abi::hash::hash_groups;

mod files;
mod segments;
mod stem;
mod trust;

pub use files::{agent, hint_file};
pub use segments::forked;
pub use trust::{mounts_changed, place_changed};

/// 0 before the constructor, then one of these.
static GATE: AtomicU32 = AtomicU32::new(0);
const OFF: u32 = 1;
const ON: u32 = 2;
/// The process runs as another user for now, or is switched off: it reads nothing through us, but its changes count.
const OTHER_USER: u32 = 3;
/// Not zero: never again what the agent may, or switched off.
static RIGHTS_DIFFER: AtomicU32 = AtomicU32::new(0);

/// A cell that is written once, before a flag says so.
struct Once<T>(UnsafeCell<MaybeUninit<T>>);
// SAFETY: written once by the thread that claimed it, read only after a release store of its flag.
unsafe impl<T: Sync> Sync for Once<T> {}

static CONTROL: Once<ControlMap<'static>> = Once(UnsafeCell::new(MaybeUninit::uninit()));

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

/// Whether the gate is open, as far as a look at it tells.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    GATE.load(Ordering::Relaxed) == ON
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
    let gate = if crate::next::is_glibc() { attach(envp).unwrap_or(OFF) } else { OFF };
    GATE.store(gate, Ordering::Release);
}

/// From here on this process is left alone: it may only read, write and end, and any other system call would kill it.
pub fn leave_alone() {
    GATE.store(OFF, Ordering::Release);
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

/// Maps the control block that the environment names, and says how far the gate opens: what a process changes that is not served counts
/// for those that are.
fn attach(envp: *const *const u8) -> Option<u32> {
    // SAFETY: from the loader.
    let (disabled, path) = unsafe { (env(envp, b"MONARCH_DISABLE"), env(envp, b"MONARCH_CTL")?) };
    let slash = path.iter().rposition(|&c| c == b'/')?;
    let dir = path.get(..slash)?;
    if dir.len() > files::MAX_DIR || path.first() != Some(&b'/') {
        return None;
    }
    files::set_dir(dir);
    let map = files::map_file(path, true)?;
    let control = ControlMap::open_hiding(map, &trust::HIDDEN)?;
    let is_same = is_our_user(&control) && is_in_our_groups(&control);
    if disabled.is_some_and(|v| !v.is_empty() && v != b"0") {
        RIGHTS_DIFFER.store(1, Ordering::Release);
    }
    // SAFETY: as above.
    unsafe { (*CONTROL.0.get()).write(control) };
    crate::cwd::boot();
    let is_on = is_same && RIGHTS_DIFFER.load(Ordering::Relaxed) == 0;
    Some(if is_on { ON } else { OTHER_USER })
}

/// After setuid, setgid and the like: the index tells only the agent's user, with the agent's groups, what it holds.
pub fn rights_changed() {
    if GATE.load(Ordering::Acquire) >= ON
        && let Some(ctx) = open_gate()
    {
        let same = is_our_user(ctx.map) && is_in_our_groups(ctx.map) && RIGHTS_DIFFER.load(Ordering::Acquire) == 0;
        GATE.store(if same { ON } else { OTHER_USER }, Ordering::Release);
    }
}

/// After setfsuid and setfsgid, which are one thread's: what the kernel allows differs from what it allows the agent in this
/// thread only. So nothing is told any more.
pub fn threads_rights_changed() {
    RIGHTS_DIFFER.store(1, Ordering::Release);
    rights_changed();
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
    let groups = sys::groups(&mut list).map(|others| hash_groups(sys::egid(), others));
    sys::gid() == sys::egid() && groups == Some(map.ctl.groups)
}

impl Ctx {
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
}
