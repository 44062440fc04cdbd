//! What the overlay says of names that are being published, and after that. With the lock of the
//! journal held.

use super::names::lossy;
use crate::copy::{CopiedPart, is_part_of, is_same_time};
use crate::plan::{Action, Claim, Planner, Step, join};
use crate::staging::StagingDir;
use crate::target::TargetStat;
use monarch_abi::outputs::REMOVED_DIR;
use monarch_abi::outputs::names::{Clean, Link, Staged, WHITEOUT, clean_text};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// Puts a whiteout at a name, unless the overlay says something of it. With the lock held.
pub(super) fn hide(staging: &StagingDir, name: &[u8]) {
    let tree = staging.tree();
    if let Ok(None) = tree.read(name)
        && let Err(e) = tree.set(name, WHITEOUT)
    {
        tracing::warn!("{} cannot be hidden: {e}", lossy(name));
    }
}

/// The link of a name, when a step is committed: what it said is on the PFS now.
pub(super) fn fix_link(
    staging: &StagingDir,
    planner: &Planner,
    name: &[u8],
    (step, clean): (&Step, Option<&Clean>),
) -> Result<(), Errno> {
    let tree = staging.tree();
    if matches!(step.action, Action::Rmdir(_)) {
        if planner.overlay(name).is_none() {
            tree.remove(&join(name, REMOVED_DIR.as_bytes()))?;
        }
        return Ok(());
    }
    let is_made = match &step.action {
        Action::Publish(file) => file.target == name,
        Action::Symlink(path, _) => path == name,
        _ => false,
    };
    if is_made {
        // Before the overlay ceases to tell of it.
        staging.map().changes_of(name).fetch_add(1, Ordering::AcqRel);
    }
    match planner.overlay(name) {
        // The job removed it while it was published. Where the step has made nothing of the
        // name, the PFS has nothing, and the job may have made a directory there.
        Some(Claim::Absent | Claim::Left) if is_made => {
            hide(staging, name);
            return Ok(());
        }
        Some(_) => return Ok(()),
        None => {}
    }
    let Some(text) = tree.read(name)? else { return Ok(()) };
    match Link::parse(&text) {
        Some(Link::File(file)) if planner.file(file.id).is_none() => match clean {
            // (A full disk has no room for the new link.)
            Some(clean) if clean.file == file => tree.set(name, &clean_text(clean)).or_else(|_| tree.remove(name)),
            _ => tree.remove(name),
        },
        Some(Link::Whiteout | Link::Symlink(_)) => tree.remove(name),
        // A process was killed between its record and the change of the overlay.
        Some(Link::Clean(_)) if matches!(step.action, Action::Symlink(..)) => tree.remove(name),
        _ => Ok(()),
    }
}

/// What a clean copy is compared with; `None` when the published file is not the part file that the
/// staged file's name tells, or was changed since it got its name.
pub(super) fn to_clean(staged: &Staged, part: &CopiedPart, st: &TargetStat) -> Option<Clean> {
    let is_as_copied = st.size == part.size && is_same_time(st.mtime_ns, part.attributes.mtime_ns);
    (is_part_of(st, staged) && is_as_copied).then_some(Clean {
        file: *staged,
        size: st.size,
        mtime_ns: st.mtime_ns,
        ctime_ns: st.ctime_ns,
    })
}
