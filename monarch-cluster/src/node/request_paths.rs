//! Names of files, indexes and roots in requests.

use data_encoding::HEXLOWER;
use monarch_storage::sharing::FileRef;

/// Hexadecimal digits of bytes, lower case.
pub(super) fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// The bytes that exactly `2 * N` hexadecimal digits stand for; upper case is refused.
pub(super) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    // (A buffer of another length than the text decodes to is a panic.)
    let fits = HEXLOWER.decode_len(text.len()).is_ok_and(|len| len == N);
    (fits && HEXLOWER.decode_mut(text.as_bytes(), &mut out).is_ok()).then_some(out)
}

/// Name of a root in requests.
pub(super) fn root_name(root: u64) -> String {
    hex(&root.to_be_bytes())
}

/// The root that a name in a request stands for.
pub(super) fn root_of(name: &str) -> Option<u64> {
    unhex::<8>(name).map(u64::from_be_bytes)
}

/// What a request for a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Bytes that the asker does not pass on.
    Bytes,
    /// A piece of a large file. The asker can be sent to a relay, and then serve as one.
    Piece,
    /// A piece that the relay that was named did not send.
    Direct,
    /// A piece, of a relay.
    Relayed,
}

impl Purpose {
    const fn word(self) -> Option<&'static str> {
        match self {
            Self::Bytes => None,
            Self::Piece => Some("piece"),
            Self::Direct => Some("direct"),
            Self::Relayed => Some("relayed"),
        }
    }
}

/// Path of a request for a file; `keeps` says that the asker will keep a copy.
pub(super) fn file_path(file: &FileRef, keeps: bool, purpose: Purpose) -> String {
    let words: Vec<&str> = keeps.then_some("keep").into_iter().chain(purpose.word()).collect();
    let mark = if words.is_empty() { "" } else { "?" };
    format!("/v1/files/{}/{}{mark}{}", hex(&file.index), file.id, words.join("&"))
}

/// Path of a request for several files of an index; `keeps` says that the asker will keep copies.
pub(super) fn batch_path(index: &[u8; 16], keeps: bool) -> String {
    format!("/v1/files/{}{}", hex(index), if keeps { "?keep" } else { "" })
}

/// Whether the asker will keep a copy, and what its request is for, by the query. Words that are
/// not known are ignored.
pub(super) fn file_query(query: Option<&str>) -> (bool, Purpose) {
    let has = |word: &str| query.is_some_and(|q| q.split('&').any(|w| w == word));
    let all = [Purpose::Relayed, Purpose::Direct, Purpose::Piece];
    let purpose = all.into_iter().find(|p| p.word().is_some_and(has));
    (has("keep"), purpose.unwrap_or(Purpose::Bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written_and_nothing_else_is() {
        assert_eq!(root_of(&root_name(0x9f)), Some(0x9f));
        assert_eq!(unhex::<2>("00ff"), Some([0, 255]));
        for bad in ["", "00f", "00ff0", "00fg", "00FF", "+0ff"] {
            assert_eq!(unhex::<2>(bad), None, "{bad}");
        }
        let file = FileRef { index: [0xa; 16], id: 7, fp: 9 };
        assert_eq!(file_path(&file, true, Purpose::Bytes), format!("/v1/files/{}/7?keep", "0a".repeat(16)));
        assert!(file_path(&file, false, Purpose::Bytes).ends_with("/7"));
        for (keeps, purpose) in [
            (true, Purpose::Bytes),
            (false, Purpose::Piece),
            (true, Purpose::Piece),
            (true, Purpose::Direct),
            (false, Purpose::Relayed),
        ] {
            let path = file_path(&file, keeps, purpose);
            assert_eq!(file_query(path.split_once('?').map(|(_, query)| query)), (keeps, purpose), "{path}");
        }
        assert_eq!(file_query(None), (false, Purpose::Bytes));
        assert_eq!(batch_path(&[0xa; 16], true), format!("/v1/files/{}?keep", "0a".repeat(16)));
        assert!(batch_path(&[0xa; 16], false).ends_with("0a"));
    }
}
