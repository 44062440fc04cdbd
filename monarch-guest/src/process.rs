//! What this process knows about itself, in a page that the kernel clears in every child
//! that does not share memory with it (`MADV_WIPEONFORK`).
//!
//! A child made by `fork`, or by a bare `clone` into other namespaces, begins with nothing known,
//! and asks for itself: which user it is, what it may read, which mounts it sees. A child of
//! `vfork` shares the page with its parent: what it stores there must be right for both.

use crate::sys;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use monarch_abi::control::{Hidden, MAX_OUTPUTS, MAX_ROOTS};

/// The page; zero is "not known" in every field. Fields: 13, because all that a child has to ask
/// for again lies in this one page.
#[cfg_attr(not(target_arch = "aarch64"), repr(C, align(4096)))]
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
pub struct Process {
    /// Process that the page belongs to; 0 after a fork until the child takes it.
    owner: AtomicU32,
    /// Whether calls are answered: see [`crate::ctx`].
    pub gate: AtomicU32,
    /// What the working directory is to the roots: see [`crate::cwd`].
    pub cwd: AtomicU64,
    /// Whether the mounts are the agent's: see [`crate::ctx`].
    pub namespace: AtomicU32,
    /// Not zero: threads, or a child that shares this memory, may have another `/` or other mounts.
    pub divided: AtomicU32,
    /// [`crate::mounts`]: whether a device of a root is mounted at several places.
    pub several: AtomicU32,
    /// Counter of mount events that was taken over, plus one.
    pub mount_events: AtomicU32,
    /// A bit for each tier that was found to be the agent's.
    pub tiers: AtomicU32,
    /// When the mounts were last looked at, milliseconds of the coarse clock.
    pub mounts_seen_ms: AtomicU32,
    /// Hash of the table of mounts when it was looked at.
    pub mounts: AtomicU64,
    /// By root: whether the agent's data set lies there.
    pub trust: [AtomicU32; MAX_ROOTS],
    /// Spellings that lead elsewhere here.
    pub hidden: Hidden,
    /// By output root: whether it and its staging directory are what they are for the agent.
    pub outputs: [AtomicU32; MAX_OUTPUTS],
}

/// Bytes of a page, the largest that the kernels of the architecture have.
const PAGE: usize = if cfg!(target_arch = "aarch64") { 65536 } else { 4096 };
const _: () = assert!(size_of::<Process>() == PAGE);

// SAFETY: atomics of which zero is a valid value.
static PROCESS: Process = unsafe { MaybeUninit::zeroed().assume_init() };

/// The page.
#[inline]
#[must_use]
pub fn process() -> &'static Process {
    &PROCESS
}

/// Claims the page for this process. By the constructor.
pub fn boot() {
    // A kernel that cannot clear it leaves that to `forked`; then children of a bare `clone` keep
    // what their parent knew.
    sys::advise((&raw const PROCESS).cast_mut().cast(), PAGE, libc::MADV_WIPEONFORK);
    PROCESS.owner.store(sys::pid(), Ordering::Relaxed);
}

/// In a child of `fork`: the page is this process's now.
pub fn forked() {
    if PROCESS.owner.load(Ordering::Relaxed) != 0 {
        PROCESS.forget();
    }
    PROCESS.owner.store(sys::pid(), Ordering::Relaxed);
}

/// A number that usually distinguishes this process from others: its process id, or 0 in a child
/// that was not made by `fork`.
#[inline]
#[must_use]
pub fn number() -> u32 {
    PROCESS.owner.load(Ordering::Relaxed)
}

/// Whether what a call changes about the process holds for all that use this page: not in a child
/// that shares the memory, nor in one of several threads.
#[must_use]
pub fn is_alone() -> bool {
    let threads = || sys::stat_at(libc::AT_FDCWD, c"/proc/self/task", 0).map(|st| st.st_nlink);
    matches!(number(), 0) || number() == sys::pid() && threads() == Some(3)
}

impl Process {
    /// Forgets everything.
    fn forget(&self) {
        self.gate.store(0, Ordering::Relaxed);
        self.cwd.store(0, Ordering::Relaxed);
        self.forget_mounts(0);
    }

    /// Forgets what is mounted where; `namespace` is what is known of that.
    pub fn forget_mounts(&self, namespace: u32) {
        self.namespace.store(namespace, Ordering::Relaxed);
        for t in &self.trust {
            t.store(0, Ordering::Release);
        }
        for t in &self.outputs {
            t.store(0, Ordering::Release);
        }
        self.hidden.clear();
        self.several.store(0, Ordering::Relaxed);
        self.tiers.store(0, Ordering::Relaxed);
    }
}
