//! Appending to the journal in a process that may not make files as long as the journal is
//! (`ulimit -f`, `RLIMIT_FSIZE`), which is meant for the files of the job: the agent makes the
//! journal longer, ahead of its end, and the process writes there by a mapping, which has no limit.

use super::answer::Result;
use super::kernel::Errno;
use super::order;
use super::roots::Root;
use core::sync::atomic::{AtomicU64, Ordering};
use monarch_guest::sys::{self, call, coarse_ms};

/// Bytes that are there behind the end when a process begins to append: a call may append a record
/// for each file that is open in a directory.
const ROOM: u64 = 256 << 10;
/// How long a process waits for the agent, and how long it does not wait again after that.
const TIMEOUT_MS: u64 = 1_000;
const SLEEP_MS: u64 = 5;
const PAUSE_MS: u64 = 5_000;
/// Offsets of mappings are multiples of the pages of any machine.
const PAGE: u64 = 64 << 10;
/// madvise(2), since Linux 5.14.
const MADV_POPULATE_WRITE: usize = 23;

/// Until when this process does not wait for the agent.
static NO_WAIT_UNTIL_MS: AtomicU64 = AtomicU64::new(0);

/// Whether this process may append to a journal that ends there.
pub fn may_append(tail: u64) -> bool {
    sys::longest_file() >= tail.saturating_add(ROOM)
}

/// Whether a journal of these bytes has room behind its end.
pub fn has_room(root: &Root, len: u64) -> bool {
    len >= root.state().tail.load(Ordering::Acquire).saturating_add(ROOM)
}

/// Waits for the agent to make the journal longer, without the lock; EFBIG where it has not done so
/// since the call `began`.
pub fn wait_for_room(root: &Root, began: u64) -> Result<()> {
    let state = root.state();
    let seen = state.done.load(Ordering::Acquire);
    state.is_limited.store(1, Ordering::Release);
    root.map.notify_agent();
    let now = coarse_ms();
    if now < NO_WAIT_UNTIL_MS.load(Ordering::Relaxed) {
        return Err(libc::EFBIG);
    }
    if now.saturating_sub(began) > TIMEOUT_MS {
        NO_WAIT_UNTIL_MS.store(now.saturating_add(PAUSE_MS), Ordering::Relaxed);
        return Err(libc::EFBIG);
    }
    order::sleep_up_to(root, seen, SLEEP_MS);
    Ok(())
}

/// Writes all of it at an offset of a file that has these bytes.
#[cold]
#[inline(never)]
pub fn write(fd: i32, bytes: &[u8], at: u64) -> core::result::Result<(), Errno> {
    let begin = at / PAGE * PAGE;
    let before = (at - begin) as usize;
    let len = before + bytes.len();
    let how = [libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED].map(|flags| flags as usize);
    // SAFETY: a new mapping, which is removed here. Where the file has no such bytes after all, the
    // kernel says so before they are written, and the file is cut under the lock only.
    unsafe {
        let base = call(libc::SYS_mmap, [0, len, how[0], how[1], fd as usize, begin as usize]);
        if base < 0 && base > -4096 {
            return Err(-base as Errno);
        }
        let base = base as usize;
        let answer = call(libc::SYS_madvise, [base, len, MADV_POPULATE_WRITE, 0, 0, 0]);
        let is_there = answer == 0 || answer == -(libc::EINVAL as isize);
        if is_there {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), (base + before) as *mut u8, bytes.len());
        }
        call(libc::SYS_munmap, [base, len, 0, 0, 0, 0]);
        if is_there { Ok(()) } else { Err(libc::EIO) }
    }
}
