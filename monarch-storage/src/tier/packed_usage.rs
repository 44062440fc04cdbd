//! The number and the bytes of a tier's packed copies, and their paths.

use super::lz4_format::SUFFIX;
use monarch_abi::hash::CopyName;

/// The packed copies of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PackedUsage {
    /// Packed copies.
    pub files: u64,
    /// Bytes of the files that they are copies of.
    pub bytes: u64,
    /// Bytes of the packed copies themselves.
    pub stored: u64,
}

/// Path of a packed copy below the tier's directory.
pub(super) fn path_of(name: CopyName) -> String {
    format!("{}{SUFFIX}", String::from_utf8_lossy(&name.rel_path()))
}
