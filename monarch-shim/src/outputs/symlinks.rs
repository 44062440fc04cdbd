//! Symbolic links that are made below an output root.

use super::answer::{Answer, GONE, Result};
use super::barrier;
use super::beside::UnderWay;
use super::create::is_through;
use super::data_roots;
use super::journal::{About, Journal};
use super::lookup::{Found, lookup};
use super::name_watch::NameWatch;
use super::names::{MAX_TRIES, NAME_MAX, is_quiet, make, may_change_directory, plainly};
use super::place::Place;
use super::plainly::goes_plainly;
use super::remembered::{entry_at, on_pfs};
use super::subtree;
use super::tree::{self, Entry, drop_data};
use super::whereabouts::HeldParent;
use core::ffi::CStr;
use monarch_abi::outputs::found;
use monarch_abi::outputs::names;
use monarch_abi::outputs::record::Op;

/// symlink(2). `under_way`: as for [`make`].
pub fn symlink(place: &mut Place, target: &CStr, under_way: &mut Option<UnderWay>) -> Result<Answer<()>> {
    if is_quiet(&place.root) || place.rel().is_empty() || is_through(&place.root, place.name()) {
        return make(place, under_way);
    }
    // The text of a link of the overlay would be too long.
    if target.count_bytes() + names::SYMLINK.len() >= monarch_abi::PATH_MAX {
        return symlink_long(place, target, under_way);
    }
    for _ in 0..MAX_TRIES {
        match symlink_in_turn(place, target) {
            Ok(Some(Answer::Plain)) => break,
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => {}
            // (For the tier, or for the PFS, which says so.)
            Err(libc::ENAMETOOLONG) => return symlink_long(place, target, under_way),
            Err(e) if goes_plainly(place, e) => break,
            Err(e) => return Err(e),
        }
    }
    plainly(place, under_way)
}

/// [`symlink`] with a target that no link of the overlay has: one that may lead to what is pending
/// is made after that.
#[cold]
fn symlink_long(place: &mut Place, target: &CStr, under_way: &mut Option<UnderWay>) -> Result<Answer<()>> {
    let made = make(place, under_way)?;
    let is_name = |part: &[u8]| part.len() <= NAME_MAX;
    if target.to_bytes().split(|&c| c == b'/').all(is_name) && place.root.map.may_be_overtaken() {
        barrier::wait_for_all(&place.root)?;
    }
    Ok(made)
}

/// [`symlink`] in its turn; `None` if another process has made the name meanwhile.
fn symlink_in_turn(place: &mut Place, target: &CStr) -> Result<Option<Answer<()>>> {
    let root = place.root;
    // A name whose removal is pending gets the link after that.
    let is_removed = !place.is_dir_path && matches!(entry_at(place)?, Entry::Removed);
    let is_plain = |place: &mut Place| -> Result<bool> {
        let is_made = matches!(make(place, &mut None)?, Answer::Done(()));
        Ok(is_made || !root.map.may_be_overtaken() || place.is_dir_path)
    };
    if !is_removed && is_plain(place)? {
        return Ok(Some(Answer::Plain));
    }
    let watch = NameWatch::exclusive(place);
    if !is_removed && (!leads_to_pending(place, target.to_bytes())? || on_pfs(place).is_ok()) {
        return Ok(Some(Answer::Plain));
    }
    let dir = HeldParent::of(place)?;
    may_change_directory(place)?;
    let journal = Journal::lock(&root)?;
    if !dir.is_at(place)? {
        // The kernel says where it is.
        return Ok(Some(Answer::Plain));
    }
    if watch.is_changed(place, &journal) {
        return Ok(None);
    }
    let entry = tree::read(&root, place.rel())?;
    match &entry {
        // Its file was removed by others.
        Entry::Clean(clean) => drop_data(&root, &clean.file),
        // The removal was made meanwhile.
        Entry::Nothing | Entry::Directory if is_removed => return Ok(Some(Answer::Plain)),
        Entry::Nothing | Entry::Directory | Entry::Removed => {}
        _ => return Err(libc::EEXIST),
    }
    if !subtree::remove_empty(&root, place.rel()) {
        return Err(libc::EEXIST);
    }
    let mut text = monarch_abi::mem::PathBuffer::front();
    text.append(names::SYMLINK).and_then(|()| text.append(target.to_bytes())).ok_or(libc::ENAMETOOLONG)?;
    let link = tree::prepare(place, text.get())?;
    let about = About { found: found::NOTHING, ..About::default() };
    journal.append(Op::Symlink, about, place.rel(), target.to_bytes())?;
    link.put(&entry)?;
    data_roots::changed(place, &entry, false);
    Ok(Some(Answer::Done(())))
}

/// Whether the target of a link that is to be made at a place is pending.
fn leads_to_pending(place: &Place, target: &[u8]) -> Result<bool> {
    let found = if target.first() == Some(&b'/') {
        Place::absolute(&place.root.ctx, target)
    } else {
        let mut path = place.parent_on_pfs()?;
        // (What the kernel finds in spite of that, by dots, is not pending for long.)
        path.append(target).and_then(|()| Place::absolute(&place.root.ctx, path.get()))
    };
    let Some(mut found) = found else { return Ok(false) };
    // A link to a file with a slash behind it leads nowhere, but not to nothing.
    found.is_dir_path = false;
    Ok(match lookup(&mut found, true) {
        Ok(Found::Entry(Entry::File(_) | Entry::Symlink(_))) => true,
        Ok(Found::Entry(Entry::Directory)) => subtree::has_new_names(&found.root, found.rel())?,
        Err(GONE) => return Err(GONE),
        // A link may lead nowhere: through a file, or to itself.
        Ok(_) | Err(_) => false,
    })
}
