//! When this process began, for the records of the journal: a process is known by that and its
//! number.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
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

/// The ticks of the kernel's clock since the node was started at which the process of that number,
/// which is this one, began; 0 where there is no `/proc`.
pub fn ticks(pid: u32) -> u64 {
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
