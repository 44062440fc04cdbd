//! The boot gate, shared memory, and which roots can be trusted in this process.
//!
//! | module | what it holds |
//! |---|---|
//! | [`files`] | the files of the runtime directory |
//! | [`segments`] | mapping segments as they appear |
//! | [`rights`] | whether this process may read what the agent may read |
//! | [`trust`] | what leads in this process where it leads for the agent |
//! | [`stem`] | what the first bytes of a path tell |
//!
//! Before our constructor has run every call goes to the next symbol. The constructor maps the control block if the
//! environment names one that is ours; segments are mapped when they appear, and never unmapped. A root is trusted if this
//! process sees the same mounts as the agent: the same mount namespace and the same `/`, or else, asked once, the same
//! `st_dev` and `st_ino` at the root's path and at the tiers.

use crate::process::process;
use crate::user;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use monarch_abi::control::{ControlMap, Counter};

mod files;
mod rights;
mod segments;
mod stem;
mod trust;

pub use files::{agent, hint_file};
pub use rights::{never_again, rights_changed, threads_rights_changed};
pub use segments::forked;
pub use trust::{mounts_changed, place_changed};

/// 0 before the constructor, then one of these, for good.
static BOOTED: AtomicU32 = AtomicU32::new(0);
const WITHOUT: u32 = 1;
const MAPPED: u32 = 2;
/// There is a job, but its control block cannot be opened.
const OUTSIDE: u32 = 3;
/// The gate of this process, [`Process::gate`](crate::process::Process::gate): 0 when nobody has looked, or one of these.
const ON: u32 = 2;
/// The process may read other files than the agent, or is switched off: it reads nothing through us, but its changes count.
const OTHER_RIGHTS: u32 = 3;

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
    if process().gate.load(Ordering::Acquire) != ON && !look() {
        return None;
    }
    open_gate()
}

/// Whether the gate opens, in a process that has not looked yet: after the constructor, and in a child.
#[cold]
#[inline(never)]
fn look() -> bool {
    if process().gate.load(Ordering::Acquire) != 0 || BOOTED.load(Ordering::Acquire) != MAPPED {
        return false;
    }
    let saved = user::errno();
    rights_changed();
    user::set_errno(saved);
    process().gate.load(Ordering::Acquire) == ON
}

/// The gate for what needs no rights: changes, and descriptors that the process has.
#[inline]
#[must_use]
pub fn mapped() -> Option<Ctx> {
    if BOOTED.load(Ordering::Acquire) != MAPPED {
        return None;
    }
    open_gate()
}

/// Whether the gate may be open, as far as a look at it tells.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    match process().gate.load(Ordering::Relaxed) {
        ON => true,
        0 => BOOTED.load(Ordering::Relaxed) == MAPPED,
        _ => false,
    }
}

/// Whether this process belongs to a job whose control block it cannot open: see [`crate::outside`].
#[inline]
#[must_use]
pub fn is_outside() -> bool {
    BOOTED.load(Ordering::Acquire) == OUTSIDE
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
    let state = if crate::next::is_glibc() { attach(envp) } else { WITHOUT };
    BOOTED.store(state, Ordering::Release);
}

/// From here on this process is left alone: it may only read, write and end, and any other system call would kill it.
pub fn leave_alone() {
    process().gate.store(OTHER_RIGHTS, Ordering::Release);
    BOOTED.store(WITHOUT, Ordering::Release);
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
fn attach(envp: *const *const u8) -> u32 {
    // SAFETY: from the loader.
    let (disabled, path) = unsafe { (env(envp, b"MONARCH_DISABLE"), env(envp, b"MONARCH_CTL")) };
    let Some(path) = path.filter(|path| path.first() == Some(&b'/')) else { return WITHOUT };
    if map_control(path, disabled).is_some() {
        return MAPPED;
    }
    crate::outside::boot(path);
    OUTSIDE
}

fn map_control(path: &'static [u8], disabled: Option<&[u8]>) -> Option<()> {
    let slash = path.iter().rposition(|&c| c == b'/')?;
    let dir = path.get(..slash)?;
    if dir.len() > files::MAX_DIR {
        return None;
    }
    files::set_dir(dir);
    let map = files::map_file(path, true)?;
    let control = ControlMap::open_hiding(map, &process().hidden)?;
    if disabled.is_some_and(|v| !v.is_empty() && v != b"0") {
        rights::switch_off();
    }
    // SAFETY: as above.
    unsafe { (*CONTROL.0.get()).write(control) };
    crate::process::boot();
    Some(())
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

    /// Whether the call at hand changes nothing: then what is not found is the kernel's to answer.
    #[inline]
    #[must_use]
    pub const fn only_reads(&self) -> bool {
        !self.opening
    }

    /// The same, with segments that are not open yet.
    #[must_use]
    pub const fn for_changes(&self) -> Self {
        Self { opening: true, below: 0, ..*self }
    }
}
