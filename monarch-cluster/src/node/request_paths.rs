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

/// Path of a request for a file; `keeps` says that the asker will keep a copy.
pub(super) fn file_path(file: &FileRef, keeps: bool) -> String {
    let keep = if keeps { "?keep" } else { "" };
    format!("/v1/files/{}/{}{keep}", hex(&file.index), file.id)
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
        assert_eq!(file_path(&file, true), format!("/v1/files/{}/7?keep", "0a".repeat(16)));
        assert!(file_path(&file, false).ends_with("/7"));
    }
}
