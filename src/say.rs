//! All that the command line writes goes through here: `print!` and its kin panic when nobody reads
//! any more or the disk is full, and that must not end a job that went well. What is no plain text
//! is spelled out: names of files are the choice of whoever made them.

use monarch_core::shown;
use std::fmt::Arguments;
use std::io::{self, Write};

/// Writes to standard error. Whoever cannot be told is not told.
pub(crate) fn err(text: Arguments<'_>) {
    // One write, so that lines of several processes do not mix.
    let _ = io::stderr().write_all(shown::plain(&text.to_string()).as_bytes());
}

/// An error with its causes, in one line. Many of ours name their cause themselves: it is not said
/// twice.
pub(crate) fn chain(e: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in e.chain().map(ToString::to_string).filter(|c| !c.is_empty()) {
        if text.ends_with(&cause) {
            continue;
        }
        if !text.is_empty() {
            text += ": ";
        }
        text += &cause;
    }
    text
}

/// A number with separators.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
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
    out_bytes(shown::plain(&text.to_string()).as_bytes())
}

/// Writes a value as JSON to standard output.
///
/// # Errors
/// As [`out`].
pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    Ok(out_bytes(format!("{}\n", shown::json(&text)).as_bytes())?)
}

/// [`out`] for what has to be exact: paths for a shell, which need not be text.
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

#[cfg(test)]
mod tests {
    use anyhow::Context;

    #[test]
    fn a_cause_is_said_once() {
        let e = std::io::Error::from_raw_os_error(2);
        let own = monarch_core::index::SavedError::Io { path: "x".into(), source: e };
        let said = super::chain(&anyhow::Error::from(own));
        assert_eq!(said, "saved index x: No such file or directory (os error 2)");
        let e = Err::<(), _>(std::io::Error::from_raw_os_error(13)).context("root /r").unwrap_err();
        assert_eq!(super::chain(&e), "root /r: Permission denied (os error 13)");
    }
}
