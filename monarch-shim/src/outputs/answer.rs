//! What a call below an output root comes to.

use super::kernel::Errno;
use core::ffi::c_int;
use monarch_guest::errno;

/// No error of a call: its output root is not staged any more, so that the call is a plain one.
pub const GONE: Errno = c_int::MAX;

/// No error of a call: symbolic links lead out of the output roots, so that the call is a plain
/// one.
pub const LEADS_OUT: Errno = c_int::MAX - 1;

/// A result whose error is the application's.
pub type Result<T> = core::result::Result<T, Errno>;

/// What a call comes to that has not failed.
#[derive(Clone, Copy)]
pub enum Answer<T> {
    /// Nothing here concerns it: it is made as without staging.
    Plain,
    /// It is done.
    Done(T),
}

/// Calls `work` with errno kept, and gives the result of the C function: -1 and errno when it
/// fails, `None` for a plain call.
pub fn of_call<T>(work: impl FnOnce() -> Option<Result<Answer<T>>>, failed: T) -> Option<T> {
    let saved = errno::errno();
    let answer = work();
    errno::set_errno(saved);
    match answer? {
        Ok(Answer::Plain) | Err(GONE | LEADS_OUT) => None,
        Ok(Answer::Done(value)) => Some(value),
        Err(e) => {
            errno::set_errno(e);
            Some(failed)
        }
    }
}
