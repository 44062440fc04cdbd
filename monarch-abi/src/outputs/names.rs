//! Names of staged files and part files, and the texts of the links of the overlay.

use super::PART_PREFIX;

/// Which part file on the PFS a staged file has, and what `stat` says of it: the name of the staged
/// file in `data/`, so that a descriptor tells it by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Staged {
    /// Number of the file in its staging directory; never used again.
    pub id: u64,
    /// Device of the part file.
    pub dev: u64,
    /// Inode number of the part file, which the published file keeps.
    pub ino: u64,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Bytes of the name of a staged file.
pub const STAGED_LEN: usize = 16 * 3 + 8 * 2 + 4;
/// Bytes of the name of a part file.
pub const PART_LEN: usize = PART_PREFIX.len() + 16 + 1 + 16;
/// What the text of each link of the overlay begins with. The kernel goes nowhere from there: a
/// path that has such a link as one of its directories does not lead to another name of the
/// overlay.
pub const NOWHERE: &[u8] = b"/dev/null/";
/// Bytes of the link of a staged file.
pub const FILE_LEN: usize = NOWHERE.len() + 1 + STAGED_LEN;
/// Bytes of the link of a clean file. (tmpfs needs a page for a link of 128 and more.)
pub const CLEAN_LEN: usize = FILE_LEN + 3 * 16;

/// Writes numbers in hexadecimal, and text, into a fixed array.
struct Writer<const N: usize> {
    out: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    const fn new() -> Self {
        Self { out: [0; N], at: 0 }
    }

    fn text(&mut self, text: &[u8]) {
        for &c in text {
            if let Some(to) = self.out.get_mut(self.at) {
                *to = c;
            }
            self.at += 1;
        }
    }

    fn hex(&mut self, value: u64, digits: u32) {
        for place in (0..digits).rev() {
            let digit = (value >> (place * 4) & 0xf) as u8;
            self.text(&[if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }]);
        }
    }
}

/// Takes `digits` hexadecimal digits from the front of a text.
fn take_hex(text: &mut &[u8], digits: usize) -> Option<u64> {
    let (number, rest) = text.split_at_checked(digits)?;
    *text = rest;
    number.iter().try_fold(0u64, |sum, &c| {
        let digit = match c {
            b'0'..=b'9' => c - b'0',
            b'a'..=b'f' => c - b'a' + 10,
            _ => return None,
        };
        Some(sum << 4 | u64::from(digit))
    })
}

fn take(text: &mut &[u8], c: u8) -> Option<()> {
    *text = text.strip_prefix(&[c])?;
    Some(())
}

impl Staged {
    /// The name in `data/`.
    #[must_use]
    pub fn name(&self) -> [u8; STAGED_LEN] {
        let mut w = Writer::new();
        w.hex(self.id, 16);
        w.text(b"-");
        w.hex(self.dev, 16);
        w.text(b"-");
        w.hex(self.ino, 16);
        w.text(b"-");
        w.hex(u64::from(self.uid), 8);
        w.text(b"-");
        w.hex(u64::from(self.gid), 8);
        w.out
    }

    /// From a text that begins with such a name.
    #[must_use]
    pub fn parse(mut text: &[u8]) -> Option<Self> {
        let t = &mut text;
        let id = take_hex(t, 16)?;
        take(t, b'-')?;
        let dev = take_hex(t, 16)?;
        take(t, b'-')?;
        let ino = take_hex(t, 16)?;
        take(t, b'-')?;
        let uid = take_hex(t, 8)? as u32;
        take(t, b'-')?;
        let gid = take_hex(t, 8)? as u32;
        Some(Self { id, dev, ino, uid, gid })
    }
}

/// The name of the part file of a staged file, beside the file that it will be.
#[must_use]
pub fn part_name(instance: u64, id: u64) -> [u8; PART_LEN] {
    let mut w = Writer::new();
    w.text(PART_PREFIX);
    w.hex(instance, 16);
    w.text(b"-");
    w.hex(id, 16);
    w.out
}

/// The staging directory and the number of a part file by its name.
#[must_use]
pub fn parse_part(name: &[u8]) -> Option<(u64, u64)> {
    let mut text = name.strip_prefix(PART_PREFIX)?;
    let instance = take_hex(&mut text, 16)?;
    take(&mut text, b'-')?;
    let id = take_hex(&mut text, 16)?;
    text.is_empty().then_some((instance, id))
}

/// What was published of a file that is kept as a clean copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clean {
    /// The staged file.
    pub file: Staged,
    /// Bytes of the published file.
    pub size: u64,
    /// Its modification time, nanoseconds.
    pub mtime_ns: i64,
    /// Its change time, nanoseconds.
    pub ctime_ns: i64,
}

/// What a link of the overlay says of the name at which it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link<'a> {
    /// A staged file that is not published yet.
    File(Staged),
    /// A staged file that was published, and is a copy as long as the published file is unchanged.
    Clean(Clean),
    /// The job has removed the name; the PFS still has it.
    Whiteout,
    /// A symbolic link that is not published yet; its target.
    Symlink(&'a [u8]),
}

impl<'a> Link<'a> {
    /// The meaning of the text of a link. (Earlier versions wrote it without [`NOWHERE`], and the
    /// numbers behind colons.)
    #[must_use]
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let (kind, rest) = text.strip_prefix(NOWHERE).unwrap_or(text).split_first()?;
        match kind {
            b'F' if rest.len() == STAGED_LEN => Some(Self::File(Staged::parse(rest)?)),
            b'C' => {
                let (name, mut rest) = rest.split_at_checked(STAGED_LEN)?;
                let mut number = || {
                    let _ = take(&mut rest, b':');
                    take_hex(&mut rest, 16)
                };
                let (size, mtime, ctime) = (number()?, number()?, number()?);
                let file = Staged::parse(name)?;
                Some(Self::Clean(Clean { file, size, mtime_ns: mtime as i64, ctime_ns: ctime as i64 }))
            }
            b'-' => rest.is_empty().then_some(Self::Whiteout),
            b'L' => Some(Self::Symlink(rest)),
            _ => None,
        }
    }
}

/// Whether a name counts as pending at which a link with this text lies.
#[must_use]
pub fn is_pending(text: &[u8]) -> bool {
    !matches!(Link::parse(text), Some(Link::Clean(_)))
}

/// The text of [`Link::Whiteout`].
pub const WHITEOUT: &[u8] = b"/dev/null/-";

/// The text of [`Link::Symlink`], before the target.
pub const SYMLINK: &[u8] = b"/dev/null/L";

/// The text of [`Link::File`].
#[must_use]
pub fn file_text(file: &Staged) -> [u8; FILE_LEN] {
    let mut w = Writer::new();
    w.text(NOWHERE);
    w.text(b"F");
    w.text(&file.name());
    w.out
}

/// The text of [`Link::Clean`].
#[must_use]
pub fn clean_text(clean: &Clean) -> [u8; CLEAN_LEN] {
    let mut w = Writer::new();
    w.text(NOWHERE);
    w.text(b"C");
    w.text(&clean.file.name());
    for number in [clean.size, clean.mtime_ns as u64, clean.ctime_ns as u64] {
        w.hex(number, 16);
    }
    w.out
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Staged = Staged { id: 7, dev: 0x1f_0000_0001, ino: u64::MAX - 3, uid: 1000, gid: u32::MAX };

    #[test]
    fn names_and_links_are_read_as_they_were_written() {
        assert_eq!(Staged::parse(&FILE.name()), Some(FILE));
        assert_eq!(Link::parse(&file_text(&FILE)), Some(Link::File(FILE)));
        let clean = Clean { file: FILE, size: 5, mtime_ns: -1, ctime_ns: 1_700_000_000_123_456_789 };
        assert_eq!(Link::parse(&clean_text(&clean)), Some(Link::Clean(clean)));
        assert_eq!(Link::parse(WHITEOUT), Some(Link::Whiteout));
        assert!(clean_text(&clean).len() < 128 && !is_pending(&clean_text(&clean)) && is_pending(&file_text(&FILE)));
        assert_eq!(Link::parse(&[SYMLINK, b"some/where"].concat()), Some(Link::Symlink(b"some/where")));
        assert_eq!(parse_part(&part_name(0xabc, 9)), Some((0xabc, 9)));
    }

    #[test]
    fn links_of_earlier_versions_are_read() {
        assert_eq!(Link::parse(&file_text(&FILE)[NOWHERE.len()..]), Some(Link::File(FILE)));
        assert_eq!(Link::parse(b"-"), Some(Link::Whiteout));
        let clean = Clean { file: FILE, size: 5, mtime_ns: 6, ctime_ns: 7 };
        let numbers = b":0000000000000005:0000000000000006:0000000000000007";
        let text = [b"C", &FILE.name()[..], numbers].concat();
        assert_eq!(Link::parse(&text), Some(Link::Clean(clean)));
        assert_eq!(Link::parse(b"L/dev/null/L"), Some(Link::Symlink(b"/dev/null/L")));
    }

    #[test]
    fn other_texts_are_no_names_and_no_links() {
        for text in [&b""[..], b"F", b"F00", b"C00", b"-x", b"Q", b"F-", NOWHERE, b"/dev/null"] {
            assert_eq!(Link::parse(text), None, "{text:?}");
        }
        let mut short = FILE.name();
        short[20] = b'G';
        assert_eq!(Staged::parse(&short), None);
        assert_eq!(parse_part(b".monarch-part-12-3"), None);
        assert_eq!(parse_part(b"model.pt"), None);
    }
}
