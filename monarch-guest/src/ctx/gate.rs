//! Whether calls are answered in this process: what the constructor found, and the control block.

use crate::once::Once;
use crate::process::process;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use monarch_abi::control::{COUNTER_GROUPS, ControlMap};

/// 0 before the constructor, then one of these, for good.
pub(super) static BOOTED: AtomicU32 = AtomicU32::new(0);
/// There is no job.
pub const WITHOUT: u32 = 1;
/// The control block is mapped.
pub const MAPPED: u32 = 2;
/// There is a job, but its control block cannot be opened.
pub const FOREIGN: u32 = 3;
/// The gate of this process, [`Process::gate`](crate::process::Process::gate): 0 before the first
/// look, or one of these.
pub(super) const ON: u32 = 2;
/// The process may read other files than the agent, or is switched off: it reads the PFS, but its
/// changes count.
pub(super) const OTHER_RIGHTS: u32 = 3;

/// Group of the counters of this process's job.
pub(super) static COUNTER_GROUP: AtomicUsize = AtomicUsize::new(0);

static CONTROL: Once<ControlMap<'static>> = Once(UnsafeCell::new(MaybeUninit::uninit()));

/// The control block, unless everything is left to the PFS.
///
/// # Safety
/// The constructor has found [`MAPPED`].
#[inline]
pub(super) unsafe fn control() -> Option<&'static ControlMap<'static>> {
    // SAFETY: written before the gate opened.
    let map = unsafe { (*CONTROL.0.get()).assume_init_ref() };
    (map.ctl.bypassed.load(Ordering::Relaxed) == 0).then_some(map)
}

/// The control block, also where calls about data sets are left to the PFS.
///
/// # Safety
/// The constructor has found [`MAPPED`].
#[inline]
pub(super) unsafe fn any_control() -> &'static ControlMap<'static> {
    // SAFETY: written before the gate opened.
    unsafe { (*CONTROL.0.get()).assume_init_ref() }
}

/// By the constructor, before [`set_booted`].
pub fn set_control(control: ControlMap<'static>) {
    // SAFETY: no thread reads before the gate opens.
    unsafe { (*CONTROL.0.get()).write(control) };
}

/// By the constructor: the value of `MONARCH_JOB`, the group of the job's counters. Anything else
/// than a number stands for group 0.
pub fn set_counter_group(text: &[u8]) {
    let digit = |sum: Option<usize>, c: &u8| {
        sum?.checked_mul(10)?.checked_add(usize::from(c.checked_sub(b'0').filter(|d| *d < 10)?))
    };
    let group = text.iter().fold(Some(0), digit).filter(|group| *group < COUNTER_GROUPS);
    COUNTER_GROUP.store(group.unwrap_or(0), Ordering::Relaxed);
}

/// By the constructor: [`WITHOUT`], [`MAPPED`] or [`FOREIGN`].
pub fn set_booted(state: u32) {
    BOOTED.store(state, Ordering::Release);
}

/// From here on this process is left alone: it may only read, write and end, and any other system
/// call would kill it.
pub fn leave_alone() {
    process().gate.store(OTHER_RIGHTS, Ordering::Release);
    BOOTED.store(WITHOUT, Ordering::Release);
}
