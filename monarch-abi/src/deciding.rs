//! Whether the listing of a directory may decide that it has no entry of some name.

use crate::absent::KERNEL;
use crate::control::ControlMap;
use crate::index::DIR_INCOMPLETE;
use crate::segment::{Entry, Segment};
use crate::word::State;

/// The longest name that is answered, in bytes. File systems refuse longer ones at lengths of their
/// own (255, or 143 where names are encrypted), with another error.
const MAX_NAME_BYTES: usize = 128;

/// Names that file systems answer without listing them: snapshots, controls.
const HIDDEN: [&[u8]; 9] =
    [b".snapshot", b".snapshots", b".snap", b".zfs", b".lustre", b".fscrypt", b".glusterfs", b".beegfs", b"lost+found"];

/// Whether file systems may answer a name without listing it.
#[must_use]
pub fn is_hidden(name: &[u8]) -> bool {
    HIDDEN.contains(&name)
}

/// Whether the listing of `dir` may decide that it has no entry called `name`.
#[must_use]
#[inline(never)]
pub(crate) fn may_decide(ctl: &ControlMap<'_>, segment: &Segment<'_>, dir: &Entry<'_>, name: &[u8]) -> bool {
    let listed = segment.index.dir(dir.record).is_some_and(|d| d.flags & DIR_INCOMPLETE == 0);
    listed
        && segment.state.deciders.word(dir.record.aux as usize) != KERNEL
        && dir.word().state() != State::Bypass
        && name.len() <= MAX_NAME_BYTES
        && !is_hidden(name)
        && may_search(ctl, segment, dir)
}

/// Whether a name may certainly be looked up in a directory. The scan has done that, by the rights
/// of this process, where it has found entries; an empty directory of another user may forbid it.
fn may_search(ctl: &ControlMap<'_>, segment: &Segment<'_>, dir: &Entry<'_>) -> bool {
    let has_entries = segment.index.dir(dir.record).is_some_and(|d| d.end > d.id.saturating_add(1));
    let is_own = || segment.index.owner(dir.record).is_some_and(|(owner, _)| owner == ctl.ctl.uid);
    has_entries || (is_own() && dir.record.mode & 0o100 != 0)
}
