//! All output of the command line: `print!` and the like panic when the reader has closed the pipe
//! or the disk is full, and that must not end a job that went well. Control characters are escaped:
//! other users choose the names of files.

use monarch_core::shown;
use std::fmt::Arguments;
use std::io::{self, Write};

/// What is said of an agent whose reply does not fit the request.
pub(crate) const UNEXPECTED_REPLY: &str =
    "the agent gave an unexpected reply and may be of another version; stop it with `monarch stop`";

/// Writes to standard error. Errors are ignored.
pub(crate) fn err(text: Arguments<'_>) {
    // A single write, so that lines of several processes do not mix.
    let _ = io::stderr().write_all(shown::plain(&text.to_string()).as_bytes());
}

/// Returns an error with its causes, in a line. A cause that the error's own text ends with is not
/// repeated.
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

/// Formats a number with separators.
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

/// Formats a number of things: "1 copy", "2,000 copies".
pub(crate) fn counted(n: impl TryInto<u64>, noun: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    match (n, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{} {stem}ies", count(n)),
        (_, None) => format!("{} {noun}s", count(n)),
    }
}

/// Writes a warning, a line, to standard error.
pub(crate) fn warn(text: Arguments<'_>) {
    err(format_args!("monarch: warning: {text}\n"));
}

/// Writes what the user should know, a line, to standard error.
pub(crate) fn note(text: Arguments<'_>) {
    err(format_args!("monarch: {text}\n"));
}

/// Writes to standard output. A closed pipe is not an error: its reader has read enough.
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

/// [`out`] without escapes: paths for a shell, which need not be UTF-8.
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
    fn a_cause_is_named_once() {
        let e = std::io::Error::from_raw_os_error(2);
        let own = monarch_core::index::SavedError::Io { path: "x".into(), source: e };
        let said = super::chain(&anyhow::Error::from(own));
        assert_eq!(said, "saved index x: No such file or directory (os error 2)");
        let e = Err::<(), _>(std::io::Error::from_raw_os_error(13)).context("root /r").unwrap_err();
        assert_eq!(super::chain(&e), "root /r: Permission denied (os error 13)");
    }
}
