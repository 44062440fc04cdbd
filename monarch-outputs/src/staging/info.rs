//! To which output root a staging directory belongs, and in which boot that was.

use crate::errors::OutputsError;
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The file that says to which output root a staging directory belongs.
pub const ROOT: &str = "root";

/// To which output root a staging directory belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootInfo {
    /// The root's real path.
    pub root: String,
    /// The same in hexadecimal, when it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_bytes: Option<String>,
    /// The node.
    pub node: String,
    /// The user.
    pub uid: u32,
    /// The process that made or adopted it last.
    pub pid: u32,
    /// The boot in which that was.
    pub boot: String,
    /// Number of the staging directory, in the names of part files.
    pub instance: u64,
    /// The tier that holds it.
    pub tier: String,
    /// Whether what is staged there is lost with the node.
    pub is_volatile: bool,
}

impl RootInfo {
    /// What this process knows of a root.
    #[must_use]
    pub fn of(root: &Path, tier: &str, is_volatile: bool) -> Self {
        let bytes = root.as_os_str().as_bytes();
        let hex = || bytes.iter().map(|b| format!("{b:02x}")).collect();
        Self {
            root: root.to_string_lossy().into_owned(),
            root_bytes: root.to_str().is_none().then(hex),
            node: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            uid: rustix::process::geteuid().as_raw(),
            pid: std::process::id(),
            boot: boot_id(),
            instance: 0,
            tier: tier.to_owned(),
            is_volatile,
        }
    }

    /// The root's real path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let Some(hex) = &self.root_bytes else { return PathBuf::from(&self.root) };
        let byte = |at: usize| hex.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).filter_map(byte).collect();
        PathBuf::from(std::ffi::OsString::from_vec(bytes))
    }
}

/// The number of this boot of the node; empty when the kernel does not tell.
#[must_use]
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The number of this boot in records; never 0.
#[must_use]
pub fn boot_number() -> u32 {
    (xxhash_rust::xxh3::xxh3_64(boot_id().as_bytes()) as u32).max(1)
}

/// The name of the staging directory of a root: 16 hexadecimal digits.
#[must_use]
pub fn key(root: &Path) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(root.as_os_str().as_bytes()))
}

/// What the text file of a staging directory says.
///
/// # Errors
/// [`OutputsError`].
pub fn read_info(path: &Path) -> Result<RootInfo, OutputsError> {
    let file = path.join(ROOT);
    let text = std::fs::read(&file).map_err(|source| OutputsError::Io { what: "read", path: file.clone(), source })?;
    serde_json::from_slice(&text).map_err(|_| OutputsError::Damaged { path: file, what: "no JSON of a root" })
}
