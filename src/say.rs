//! All that the command line writes goes through here: `print!` and its kin panic when nobody reads any more or the disk is full,
//! and that must not end a job that went well.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Writes to standard error. Whoever cannot be told is not told.
pub(crate) fn err(text: Arguments<'_>) {
    // One write, so that lines of several processes do not mix.
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}

/// Writes a warning, one line, to standard error.
pub(crate) fn warn(text: Arguments<'_>) {
    err(format_args!("monarch: warning: {text}\n"));
}

/// Writes to standard output; a reader that has gone has read enough.
///
/// # Errors
/// When it cannot be written for another reason, such as a full disk.
pub(crate) fn out(text: Arguments<'_>) -> io::Result<()> {
    out_bytes(text.to_string().as_bytes())
}

/// [`out`] for what may hold paths, which need not be text.
///
/// # Errors
/// As [`out`].
pub(crate) fn out_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut to = io::stdout().lock();
    match to.write_all(bytes).and_then(|()| to.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e),
        _ => Ok(()),
    }
}
