//! Maps the names of copies to files.

use super::memory::{Memory, path_of};
use crate::snapshot::Range;
use monarch_abi::hash::CopyName;
use monarch_abi::index::DIR_INCOMPLETE;
use monarch_abi::segment::Segment;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

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

/// Returns the directories of these ranges that are marked incomplete, each behind the path of its
/// root.
pub(super) fn unread_dirs(memory: &Memory, within: &[Range]) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for range in within {
        let Some((root, segment)) = segment_of(memory, *range) else { continue };
        let index = &segment.index;
        let is_incomplete = |id: &u32| {
            let dir = index.record(*id).and_then(|record| index.dir(record));
            dir.is_some_and(|dir| dir.flags & DIR_INCOMPLETE != 0)
        };
        let ids = (range.from..range.end).filter(is_incomplete);
        found.extend(ids.filter_map(|id| Some((root.clone(), below(segment, &root, id)?))));
    }
    found
}

/// Returns the path of the first entry of a range.
pub(super) fn path(memory: &Memory, of: Range) -> Option<PathBuf> {
    let (root, segment) = segment_of(memory, of)?;
    below(segment, &root, of.from)
}

/// Returns the path of the root of a range, and its segment.
fn segment_of(memory: &Memory, of: Range) -> Option<(PathBuf, &Segment<'static>)> {
    let (root, (_, segment)) = (0..memory.ctl.roots().len())
        .filter_map(|root| Some((root, memory.live(root)?)))
        .find(|(_, (number, _))| *number == of.segment)?;
    Some((path_of(memory.ctl.str(&memory.ctl.roots().get(root)?.path)), segment))
}

fn below(segment: &Segment<'_>, root: &Path, id: u32) -> Option<PathBuf> {
    let mut buf = [0u8; monarch_abi::PATH_MAX];
    let len = segment.index.path(id, &mut buf)?;
    let rest = OsStr::from_bytes(buf.get(..len)?);
    Some(if rest.is_empty() { root.to_owned() } else { root.join(rest) })
}
