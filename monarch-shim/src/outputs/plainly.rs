//! Calls that are made plainly, as this process cannot append to the journal: it has no descriptor
//! for that, or the tier no space.

use super::answer::LEADS_OUT;
use super::barrier;
use super::kernel::Errno;
use super::place::Place;
use super::remembered::entry_at;
use super::staged::is_written;
use super::tree::Entry;
use core::sync::atomic::Ordering;
use monarch_guest::sys;

/// How often, and how long apart, a call looks for the publication of a file whose close is not in
/// the journal: the agent looks at open files once a second at least.
const MAX_CLOSE_LOOKS: usize = 150;
const CLOSE_PAUSE_US: i64 = 20_000;

/// Whether a call that has got no journal, or could not append to it, is a plain one: what it is
/// about is published, once all entries so far are.
#[cold]
#[inline(never)]
pub(super) fn goes_plainly(place: &mut Place, errno: Errno) -> bool {
    let is_of_journal =
        matches!(errno, libc::EMFILE | libc::ENFILE | libc::EFBIG | libc::ENOSPC | libc::EDQUOT | libc::EIO);
    if !is_of_journal {
        return false;
    }
    let root = place.root;
    let state = root.state();
    let last = state.last_entry.load(Ordering::Acquire);
    barrier::wait_until_entry(&root, last);
    if state.published.load(Ordering::Acquire) < last {
        return false;
    }
    // A close that could not be appended is found by the agent, if no descriptor is left.
    for _ in 0..MAX_CLOSE_LOOKS {
        match entry_at(place) {
            Ok(Entry::File(file)) if errno == libc::EFBIG && !is_written(&root, &file) => {
                sys::sleep_us(CLOSE_PAUSE_US);
            }
            Err(LEADS_OUT) => return true,
            entry => return entry.is_ok_and(|entry| !entry.is_pending()),
        }
    }
    false
}
