//! Maps the names of copies to files.

use super::memory::{Memory, path_of};
use crate::snapshot::Range;
use monarch_abi::hash::CopyName;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Returns the name of the copy of each regular file, with the file as a range; only of files
/// in `within`, if given.
pub(super) fn copy_names(memory: &Memory, within: Option<&[Range]>) -> impl Iterator<Item = (CopyName, Range)> {
    let segments = (0..memory.ctl.roots().len()).filter_map(|root| memory.live(root));
    segments.flat_map(move |(number, segment)| {
        let wanted = move |id: u32| {
            let holds = |r: &Range| r.segment == number && (r.from..r.end).contains(&id);
            within.is_none_or(|ranges| ranges.iter().any(holds))
        };
        let files = segment.files().filter(move |e| wanted(e.id));
        files.map(move |e| (segment.copy_name(&e), Range { segment: number, from: e.id, end: e.id + 1 }))
    })
}

/// Returns the path of the first entry of a range.
pub(super) fn path(memory: &Memory, of: Range) -> Option<PathBuf> {
    let (root, (_, segment)) = (0..memory.ctl.roots().len())
        .filter_map(|root| Some((root, memory.live(root)?)))
        .find(|(_, (number, _))| *number == of.segment)?;
    let mut buf = [0u8; monarch_abi::PATH_MAX];
    let len = segment.index.path(of.from, &mut buf)?;
    let root = path_of(memory.ctl.str(&memory.ctl.roots().get(root)?.path));
    Some(root.join(OsStr::from_bytes(buf.get(..len)?)))
}
