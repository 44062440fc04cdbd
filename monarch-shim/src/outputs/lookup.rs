//! What a path means on this node: the overlay first, links followed as the kernel would.

use super::kernel::{self, Errno};
use super::place::{Place, split};
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
    /// A link that only the overlay has leads here, where the PFS is to be asked.
    Elsewhere(Absolute),
}

/// What a place means. With `follow` a link in the last component is followed, as it is where the
/// path ends with a slash. A pending file is ENOTDIR there: calls that say something else of such
/// a path look up the path without the slash.
pub fn lookup(place: &mut Place, follow: bool) -> Result<Found, Errno> {
    let (mut is_canonical, mut by_overlay) = (false, place.by_overlay);
    for _ in 0..MAX_LINKS {
        place.is_missing = false;
        by_overlay |= place.by_overlay;
        let state = place.root.state();
        // (Otherwise a link may lead to what another output root has.)
        let ends_here = !(follow || place.is_dir_path) || !may_cross(&place.root);
        if state.entries.load(Ordering::Acquire) == 0 && ends_here || place.rel().is_empty() {
            return nothing(place, by_overlay);
        }
        match tree::read(&place.root, place.rel())? {
            Entry::Nothing if state.pending.load(Ordering::Acquire) == 0 && ends_here => {
                return nothing(place, by_overlay);
            }
            Entry::Nothing => {
                if place.parent().is_empty() || tree::has_dir(&place.root, place.parent()) {
                    if matches!(tree::read(&place.root, place.parent())?, Entry::RemovedDir) {
                        place.by_overlay = by_overlay;
                        return Ok(Found::Entry(Entry::Removed));
                    }
                } else if through_link(place)? {
                    // Before the PFS, which may still have another link of that name.
                    (is_canonical, by_overlay) = (false, true);
                    continue;
                } else if !is_canonical {
                    is_canonical = true;
                    let dir = place.parent_on_pfs()?;
                    let followed = place.follow_parent();
                    if !matches!(followed, Ok(false))
                        && let Some(path) = place.follow_pending(&dir)?
                    {
                        by_overlay = true;
                        if roots::at(&place.root.ctx, path.get()).is_none() {
                            return Ok(Found::Elsewhere(path));
                        }
                        continue;
                    }
                    match followed {
                        Ok(true) => continue,
                        Ok(false) => {}
                        Err(libc::ENOENT) if tree::has_file_above(&place.root, place.rel())? => {
                            return Err(libc::ENOTDIR);
                        }
                        // The kernel says why, or leads out of the root.
                        Err(_) => return nothing(place, by_overlay),
                    }
                }
                let target = if follow || place.is_dir_path { pfs_link(place)? } else { None };
                let Some(target) = target else { return nothing(place, by_overlay) };
                match to_target(place, target.get())? {
                    None => is_canonical = false,
                    Some(elsewhere) if by_overlay => return Ok(Found::Elsewhere(elsewhere)),
                    Some(_) => return Ok(Found::Entry(Entry::Nothing)),
                }
            }
            Entry::Symlink(target) if follow || place.is_dir_path => {
                (is_canonical, by_overlay) = (false, true);
                if let Some(elsewhere) = to_target(place, target.get())? {
                    return Ok(Found::Elsewhere(elsewhere));
                }
            }
            Entry::File(_) if place.is_dir_path => return Err(libc::ENOTDIR),
            // The PFS has it, but not the link that led here.
            Entry::Directory | Entry::Clean(_) if by_overlay => return place.as_named().map(Found::Elsewhere),
            entry => {
                // (Of the next look, too, which may find that it is published, and the link not.)
                place.by_overlay = by_overlay;
                return Ok(Found::Entry(entry));
            }
        }
    }
    Err(libc::ELOOP)
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

/// Replaces the first directory of a place that is a link of the overlay by its target; whether
/// there was one.
fn through_link(place: &mut Place) -> Result<bool, Errno> {
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
        let Some(next) = Place::absolute(&place.root.ctx, path.get()) else { return Ok(false) };
        place.lead_to(next);
        return Ok(true);
    }
    Ok(false)
}
