//! Directories whose files cannot be staged, because the index does not have them.

use monarch_core::agent::protocol::Range;
use monarch_core::reader::Reader;
use monarch_core::shown::ShowPath;
use serde_json::{Value, json};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most directories that are named.
const MAX_NAMED: usize = 20;

/// Directories below what is staged that the index lacks, or has in part, with the reasons.
#[derive(Debug, Default)]
pub(super) struct UnreadDirs {
    failed: Vec<(PathBuf, String)>,
    elsewhere: Vec<PathBuf>,
}

impl UnreadDirs {
    /// Finds them in the index, and asks the PFS why.
    pub(super) fn find(reader: &Reader, ranges: &[Range]) -> Self {
        let mut found = Self::default();
        for (root, dir) in reader.unread_dirs(ranges) {
            // The scan leaves snapshots out.
            if dir.file_name().is_some_and(|name| name == ".snapshot") {
                continue;
            }
            match std::fs::read_dir(&dir) {
                Err(e) => found.failed.push((dir, e.to_string())),
                Ok(_) if is_elsewhere(&root, &dir) => found.elsewhere.push(dir),
                Ok(_) => {
                    let why = "not all of it is in the index: index.max_memory was reached, or it was changing; see `monarch status`";
                    found.failed.push((dir, why.to_owned()));
                }
            }
        }
        found
    }

    /// Whether files were asked for that cannot be staged. (Another file system below a root is not
    /// part of it.)
    pub(super) const fn has_failures(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Returns a line for each directory.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        if !self.failed.is_empty() {
            let _ = writeln!(
                text,
                "not staged: {} directories that could not be read, and all below them",
                self.failed.len()
            );
        }
        for (dir, why) in self.failed.iter().take(MAX_NAMED) {
            let _ = writeln!(text, "  {}: {why}", dir.shown());
        }
        if self.failed.len() > MAX_NAMED {
            let _ = writeln!(text, "  and {} more", self.failed.len() - MAX_NAMED);
        }
        for dir in self.elsewhere.iter().take(MAX_NAMED) {
            let _ = writeln!(text, "left out: {} is another file system: give it a --root of its own", dir.shown());
        }
        text
    }

    /// The same as an array of objects.
    pub(super) fn json(&self) -> Value {
        let failed = self.failed.iter().map(|(dir, why)| json!({"path": dir.to_string_lossy(), "why": why}));
        let elsewhere =
            self.elsewhere.iter().map(|dir| json!({"path": dir.to_string_lossy(), "why": "another file system"}));
        failed.chain(elsewhere).collect()
    }
}

fn is_elsewhere(root: &Path, dir: &Path) -> bool {
    let dev = |path: &Path| path.metadata().map(|m| m.dev()).ok();
    dev(root) != dev(dir)
}
