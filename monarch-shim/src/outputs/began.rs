//! The number of this process and when it began, by which the agent knows it in the records of the
//! journal. In another PID namespace that is not its own number.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use monarch_guest::ctx::{Ctx, ids};
use monarch_guest::sys::{self, Fd};

const STAT: &CStr = c"/proc/self/stat";
/// Bytes of it that are read: more than 22 numbers and the name of a program have.
const STAT_BYTES: usize = 512;
/// The field that has the ticks, counted from the one behind the name of the program.
const BEGAN_AT: usize = 19;
/// The upper bits of [`KNOWN`] have the process, the lower ones its ticks: 40 bits are 348 years.
const TICKS_BITS: u32 = 40;
const TICKS_MASK: u64 = (1 << TICKS_BITS) - 1;

/// A process and its begin, in one word: a child of `vfork` shares it with its parent.
static KNOWN: AtomicU64 = AtomicU64::new(0);

/// The process and the number that the agent knows it by, in one word likewise.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// What the agent knows this process by.
#[derive(Clone, Copy)]
pub struct Began {
    /// Its number in the agent's PID namespace.
    pub pid: u32,
    /// The ticks of the kernel's clock since the node was started at which it began; 0 where there
    /// is no `/proc`.
    pub ticks: u64,
}

/// What the agent knows this process by.
pub fn this_process(ctx: &Ctx) -> Began {
    let own = sys::pid();
    let known = NUMBER.load(Ordering::Relaxed);
    let pid = if known >> 32 == u64::from(own) { Some(known as u32) } else { ask_for_number(ctx, own) };
    Began { pid: pid.unwrap_or(own), ticks: ticks(own) }
}

/// In a child of `fork`: in a PID namespace of its own it may have its parent's number.
pub fn forked() {
    KNOWN.store(0, Ordering::Relaxed);
    NUMBER.store(0, Ordering::Relaxed);
}

#[cold]
#[inline(never)]
fn ask_for_number(ctx: &Ctx, own: u32) -> Option<u32> {
    let pid = ids::pid_of_agent(ctx.map.ctl, own)?;
    NUMBER.store(u64::from(own) << 32 | u64::from(pid), Ordering::Relaxed);
    Some(pid)
}

fn ticks(pid: u32) -> u64 {
    let known = KNOWN.load(Ordering::Relaxed);
    if known >> TICKS_BITS == u64::from(pid) & (u64::MAX >> TICKS_BITS) {
        return known & TICKS_MASK;
    }
    let ticks = look().filter(|ticks| *ticks <= TICKS_MASK).unwrap_or(0);
    KNOWN.store(u64::from(pid) << TICKS_BITS | ticks, Ordering::Relaxed);
    ticks
}

#[cold]
#[inline(never)]
fn look() -> Option<u64> {
    let file: Fd = super::spare::open_own(STAT, libc::O_RDONLY).ok()?;
    let mut out = [0; STAT_BYTES];
    began(sys::read(file.0, &mut out)?)
}

/// The ticks in a text of `/proc/PID/stat`.
fn began(text: &[u8]) -> Option<u64> {
    // The name of the program may have spaces and parentheses.
    let end = text.iter().rposition(|&c| c == b')')?;
    let mut fields = text.get(end + 1..)?.split(|&c| c == b' ').filter(|field| !field.is_empty());
    let field = fields.nth(BEGAN_AT)?;
    field.iter().try_fold(0_u64, |n, &c| {
        let digit = c.checked_sub(b'0').filter(|digit| *digit < 10)?;
        n.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
