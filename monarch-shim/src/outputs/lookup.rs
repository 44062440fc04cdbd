//! What a path means on this node: the overlay first, links followed as the kernel would.

use super::kernel::{self, Errno};
use super::place::{Place, beneath, canonical, split};
use super::roots::{self, may_cross};
use super::tree::{self, Entry};
use super::walk::MAX_LINKS;
use core::sync::atomic::Ordering;
use monarch_abi::mem::PathBuffer;
use monarch_guest::absolute::Absolute;

/// What a path leads to.
pub enum Found {
    /// The overlay says this of the place, which may be another one than at first.
    Entry(Entry),
    /// A directory that is open, and that the job has removed: the kernel knows it.
    Held,
    /// The PFS is to be asked here: a link that only the overlay has leads there.
    Elsewhere(Absolute),
}

/// What a place means. With `follow` a link in the last component is followed, as it is where the
/// path ends with a slash. A pending file is ENOTDIR there: calls that say something else of such
/// a path look up the path without the slash.
pub fn lookup(place: &mut Place, follow: bool) -> Result<Found, Errno> {
    look(place, follow, false)
}

/// [`lookup`] of a name that is to be changed, which follows no link there. The links on the way
/// are followed also while nothing is pending, or the overlay is empty: what is said of the name
/// later has to be said at its real path, and something may be pending by then.
pub fn lookup_to_change(place: &mut Place) -> Result<Found, Errno> {
    look(place, false, true)
}

fn look(place: &mut Place, follow: bool, is_change: bool) -> Result<Found, Errno> {
    let (mut is_canonical, mut by_overlay) = (false, place.by_overlay);
    for _ in 0..MAX_LINKS {
        (place.is_missing, place.leads_out) = (false, false);
        by_overlay |= place.by_overlay;
        let state = place.root.state();
        // (Otherwise a link may lead to what another output root has.)
        let ends_here = !(follow || place.is_dir_path) || !may_cross(&place.root);
        if state.entries.load(Ordering::Acquire) == 0 && ends_here && !is_change || place.rel().is_empty() {
            return nothing(place, by_overlay);
        }
        match tree::read(&place.root, place.rel())? {
            Entry::Nothing if state.pending.load(Ordering::Acquire) == 0 && ends_here && !is_change => {
                return nothing(place, by_overlay);
            }
            Entry::Nothing => {
                if place.parent().is_empty() || tree::has_dir(&place.root, place.parent()) {
                    if matches!(tree::read(&place.root, place.parent())?, Entry::RemovedDir) {
                        place.by_overlay = by_overlay;
                        return Ok(Found::Entry(Entry::Removed));
                    }
                } else {
                    // Before the PFS, which may still have another link of that name.
                    match through_link(place)? {
                        Through::Link => {
                            (is_canonical, by_overlay) = (false, true);
                            continue;
                        }
                        Through::LinkOut(path) => return leads_out(place, path),
                        Through::Nothing => {}
                    }
                    if !core::mem::replace(&mut is_canonical, true) {
                        match through_pfs(place)? {
                            Parents::Real => {}
                            Parents::Moved => continue,
                            Parents::MovedByOverlay => {
                                by_overlay = true;
                                continue;
                            }
                            Parents::Out(path) => return leads_out(place, path),
                            Parents::Kernels => return nothing(place, by_overlay),
                        }
                    }
                }
                let target = if follow || place.is_dir_path { pfs_link(place)? } else { None };
                let Some(target) = target else { return nothing(place, by_overlay) };
                match to_target(place, target.get())? {
                    None => is_canonical = false,
                    Some(elsewhere) => {
                        place.leads_out = true;
                        return Ok(if by_overlay { Found::Elsewhere(elsewhere) } else { Found::Entry(Entry::Nothing) });
                    }
                }
            }
            Entry::Symlink(target) if follow || place.is_dir_path => {
                (is_canonical, by_overlay) = (false, true);
                if let Some(elsewhere) = to_target(place, target.get())? {
                    place.leads_out = true;
                    return Ok(Found::Elsewhere(elsewhere));
                }
            }
            Entry::File(_) if place.is_dir_path => return Err(libc::ENOTDIR),
            // The PFS has it, but not the link that led here.
            Entry::Directory | Entry::Clean(_) if by_overlay => return place.as_named().map(Found::Elsewhere),
            Entry::Removed | Entry::RemovedDir if place.is_held => return Ok(Found::Held),
            entry => {
                // (Of the next look, too, which may find that it is published, and the link not.)
                place.by_overlay = by_overlay;
                return Ok(Found::Entry(entry));
            }
        }
    }
    Err(libc::ELOOP)
}

/// The directories on the way to a place, as the kernel follows them.
enum Parents {
    /// There are no links among them.
    Real,
    /// The place is where they lead now, by links of the PFS.
    Moved,
    /// The same, and a link that is not published was among them.
    MovedByOverlay,
    /// A link that is not published leads to this path, out of the output roots.
    Out(Absolute),
    /// The kernel says what is wrong with them, or follows them out of the output roots.
    Kernels,
}

/// Follows the links of the PFS among the directories of a place.
fn through_pfs(place: &mut Place) -> Result<Parents, Errno> {
    let mut dir = place.parent_on_pfs()?;
    let followed = place.follow_parent();
    if !matches!(followed, Ok(false))
        && roots::any_pending(&place.root.ctx)
        && let Some(path) = place.follow_pending(&dir)?
    {
        let is_out = beneath(&place.root.ctx, path.get()).is_none();
        return Ok(if is_out { Parents::Out(path) } else { Parents::MovedByOverlay });
    }
    match followed {
        // (A directory on the way may have been removed by the agent between both looks.)
        Ok(true) => canonical(dir.c_str().ok_or(libc::ENAMETOOLONG)?).map(|_| Parents::Moved),
        Ok(false) => Ok(Parents::Real),
        Err(libc::ENOENT) if tree::has_file_above(&place.root, place.rel())? => Err(libc::ENOTDIR),
        Err(e) => {
            place.leads_out = e == libc::EXDEV;
            Ok(Parents::Kernels)
        }
    }
}

/// A link that is not published leads to this path, out of the output roots.
fn leads_out(place: &mut Place, mut path: Absolute) -> Result<Found, Errno> {
    place.leads_out = true;
    if place.is_dir_path && !path.get().ends_with(b"/") {
        path.0.append(b"/").ok_or(libc::ENAMETOOLONG)?;
    }
    Ok(Found::Elsewhere(path))
}

fn nothing(place: &Place, by_overlay: bool) -> Result<Found, Errno> {
    if by_overlay { place.as_named().map(Found::Elsewhere) } else { Ok(Found::Entry(Entry::Nothing)) }
}

/// The target of the symbolic link that the PFS has at a place.
fn pfs_link(place: &mut Place) -> Result<Option<PathBuffer>, Errno> {
    let mut path = place.on_pfs()?;
    let target = kernel::read_link(path.c_str().ok_or(libc::ENAMETOOLONG)?);
    place.is_missing = matches!(target, Err(libc::ENOENT));
    Ok(target.ok())
}

/// Goes on where a link at the place leads. Returns the path if that is not below an output root.
pub fn to_target(place: &mut Place, target: &[u8]) -> Result<Option<Absolute>, Errno> {
    let mut path = if target.first() == Some(&b'/') {
        let mut path = PathBuffer::front();
        path.append(target).ok_or(libc::ENAMETOOLONG)?;
        Absolute(path)
    } else {
        let mut path = place.parent_on_pfs()?;
        path.append(target).ok_or(libc::ENAMETOOLONG)?;
        path
    };
    match Place::absolute(&place.root.ctx, path.get()) {
        Some(next) => {
            place.lead_to(next);
            Ok(None)
        }
        None => {
            if place.is_dir_path {
                path.0.append(b"/").ok_or(libc::ENAMETOOLONG)?;
            }
            Ok(Some(path))
        }
    }
}

/// A link of the overlay on the way to a place.
enum Through {
    /// There is none.
    Nothing,
    /// The place is where it leads now.
    Link,
    /// It leads to this path, out of the output roots.
    LinkOut(Absolute),
}

/// Replaces the first directory of a place that is a link of the overlay by its target.
fn through_link(place: &mut Place) -> Result<Through, Errno> {
    let rel = place.rel();
    for (end, _) in rel.iter().enumerate().filter(|(_, c)| **c == b'/') {
        let (above, below) = (rel.get(..end).unwrap_or_default(), rel.get(end..).unwrap_or_default());
        let target = match tree::read(&place.root, above)? {
            Entry::Symlink(target) => target,
            // The PFS still has what the job has removed.
            Entry::Removed | Entry::RemovedDir => return Err(libc::ENOENT),
            _ => continue,
        };
        let mut path = if target.get().first() == Some(&b'/') {
            Absolute(PathBuffer::front())
        } else {
            let mut dir = place.root.on_pfs(split(above).0).ok_or(libc::ENAMETOOLONG)?;
            dir.0.append(b"/").ok_or(libc::ENAMETOOLONG)?;
            dir
        };
        path.0.append(target.get()).ok_or(libc::ENAMETOOLONG)?;
        path.0.append(below).ok_or(libc::ENAMETOOLONG)?;
        let Some(next) = Place::absolute(&place.root.ctx, path.get()) else { return Ok(Through::LinkOut(path)) };
        place.lead_to(next);
        return Ok(Through::Link);
    }
    Ok(Through::Nothing)
}
