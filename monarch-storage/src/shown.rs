//! Names from the parallel file system in text for people: logs, terminals, messages, pages.
//!
//! A file may have any name. A newline in it would forge a line of a log, an escape sequence would
//! move a terminal's cursor or retitle its window, a bidirectional override would show another
//! name. So every path that is shown goes through [`ShowPath::shown`], which spells out what is no
//! plain character (`\n`, `\x1b`, `\xff` for a byte that is no UTF-8, `\u{202e}`) and doubles
//! backslashes, so that two names never look the same. JSON has escapes of its own.
//!
//! [`plain`] and [`one_line`] are for whole texts whose parts are not known any more, right before
//! a terminal or a log.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter, Write};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A name as it is shown.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(&'a [u8]);

/// Bytes of a path, as they are shown.
#[must_use]
pub const fn bytes(name: &[u8]) -> Shown<'_> {
    Shown(name)
}

/// Paths that can be shown.
pub trait ShowPath {
    /// The path as it is shown to people.
    fn shown(&self) -> Shown<'_>;
}

impl ShowPath for Path {
    fn shown(&self) -> Shown<'_> {
        Shown(self.as_os_str().as_bytes())
    }
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\\' => f.write_str("\\\\")?,
                    c if is_hidden(c) => spell(c, f)?,
                    c => f.write_char(c)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// A text in which what is no plain character is spelled out, except for line ends and tabs.
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    spelled(text, |c| is_hidden(c) && c != '\n' && c != '\t')
}

/// [`plain`] with line ends spelled out too.
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    spelled(text, is_hidden)
}

fn spelled(text: &str, which: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&which) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // Writing to a string does not fail.
        let _ = if which(c) { spell(c, &mut out) } else { out.write_char(c) };
    }
    Cow::Owned(out)
}

/// JSON with escapes for characters that are invisible, or change how other characters are shown.
/// Its meaning is the same.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    // (Controls within strings have escapes already.)
    let which = |c: char| is_hidden(c) && !c.is_ascii_whitespace();
    if !text.contains(which) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if which(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Writes paths to JSON: a byte that is no UTF-8 becomes U+FFFD. serde would fail for such a path,
/// and with it for the whole answer.
pub mod serial {
    use serde::Serializer;
    use std::path::{Path, PathBuf};

    /// A path.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn path<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&path.to_string_lossy())
    }

    /// A path that may be missing.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn perhaps<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        match path {
            Some(path) => to.serialize_some(&path.to_string_lossy()),
            None => to.serialize_none(),
        }
    }

    /// Paths.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn all<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|p| p.to_string_lossy()))
    }
}

/// Whether a character is invisible, or changes how other characters are shown: controls, line
/// ends, bidirectional and other format marks.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn spell(c: char, out: &mut impl Write) -> fmt::Result {
    match c {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        // (A C1 control is two bytes of UTF-8: `\x9b` would be the byte.)
        '\0'..='\x7f' => write!(out, "\\x{:02x}", c as u32),
        c => write!(out, "\\u{{{:x}}}", c as u32),
    }
}

/// A writer of a log, with one write for each line: nothing within a line looks like the end of a
/// line, or like more than text.
#[derive(Debug)]
pub struct LogLines<W>(pub W);

impl<W: io::Write> io::Write for LogLines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let (text, end) = line.strip_suffix(b"\n").map_or((line, ""), |text| (text, "\n"));
        let mut out = one_line(&String::from_utf8_lossy(text)).into_owned();
        out.push_str(end);
        self.0.write_all(out.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::io::Write;

    #[test]
    fn names_that_are_more_than_text_are_spelled_out() {
        for (name, want) in [
            (b"a b/\xc3\xbc.jpg".as_slice(), "a b/\u{fc}.jpg"),
            (b"a\nroot ready", "a\\nroot ready"),
            (b"\x1b]0;title\x07\x1b[2J\r\t\0", "\\x1b]0;title\\x07\\x1b[2J\\r\\t\\x00"),
            (b"\xff\xfea\xc3", "\\xff\\xfea\\xc3"),
            (
                "a\u{202e}gpj.exe\u{200b}\u{9b}1m\u{2028}\u{e0041}".as_bytes(),
                "a\\u{202e}gpj.exe\\u{200b}\\u{9b}1m\\u{2028}\\u{e0041}",
            ),
            (b"a\\nb", "a\\\\nb"),
        ] {
            assert_eq!(Path::new(OsStr::from_bytes(name)).shown().to_string(), want);
        }
    }

    #[test]
    fn json_means_the_same_and_shows_nothing_else() {
        let text = serde_json::to_string(&["a\u{202e}b\u{7f}\u{9b}\u{e0041}\n\u{1b}\u{fc}\\"]).unwrap();
        let safe = json(&text);
        assert_eq!(safe, r#"["a\u202eb\u007f\u009b\udb40\udc41\n\u001b\u{fc}\\"]"#.replace("\\u{fc}", "\u{fc}"));
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(parse(&safe), parse(&text));
        assert_eq!(plain(&safe), safe);
    }

    #[test]
    fn a_text_keeps_its_lines_and_a_line_of_a_log_stays_one() {
        assert_eq!(plain("a\tb\n\x1b[1mc\r"), "a\tb\n\\x1b[1mc\\r");
        assert!(matches!(plain("as it is\n"), Cow::Borrowed(_)));
        let mut log = LogLines(Vec::new());
        log.write_all(b"WARN file=a\nERROR forged \xff\n").unwrap();
        log.write_all(b"next\n").unwrap();
        assert_eq!(String::from_utf8(log.0).unwrap(), "WARN file=a\\nERROR forged \u{fffd}\nnext\n");
    }
}
