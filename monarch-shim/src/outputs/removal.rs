//! Removals of names below an output root.

use super::answer::{Answer, Result};
use super::barrier;
use super::beside::{self, UnderWay};
use super::create::is_through;
use super::data_roots;
use super::journal::{About, Journal};
use super::kernel;
use super::lookup::{Found, lookup_to_change};
use super::name_watch::NameWatch;
use super::names::{MAX_TRIES, begins_quietly, is_published, may_appear};
use super::place::Place;
use super::plainly::goes_plainly;
use super::remembered::{entry_at, inside};
use super::staged::is_written;
use super::tree::{self, Entry, drop_data};
use super::whereabouts::HeldParent;
use monarch_abi::outputs::found;
use monarch_abi::outputs::names;
use monarch_abi::outputs::record::{Op, flag};

/// What is known about a name before the lock is taken: no call of the PFS is made under it.
struct Removal {
    /// The directory of the name.
    dir: HeldParent,
    /// The name, since before the PFS was asked.
    watch: NameWatch,
    /// Whether the PFS has, or is about to have, a file of that name.
    published: bool,
    /// Whether the removal has to wait for its turn.
    waits: bool,
    /// What the PFS has at the name; not known where something is pending there.
    found: u64,
    /// Whether the PFS was asked.
    is_looked_at: bool,
}

impl Removal {
    /// Asks the PFS. An error is that of the call.
    fn of(place: &Place, entry: &Entry) -> Result<Self> {
        let is_pending = entry.is_pending();
        if !is_pending && (!place.root.map.may_be_overtaken() || is_through(&place.root, place.name())) {
            let (dir, watch) = (HeldParent::by_path(), NameWatch::shared(place));
            let found = found::UNKNOWN;
            return Ok(Self { dir, watch, published: true, waits: false, found, is_looked_at: false });
        }
        let dir = HeldParent::to_look(place)?;
        let watch = NameWatch::exclusive(place);
        if is_pending {
            dir.may_change(place)?;
        }
        let (published, waits, found) = match entry {
            Entry::File(file) => (is_published(&dir, place, file), true, found::UNKNOWN),
            // The agent may be making the link just now.
            Entry::Symlink(_) => (true, true, found::UNKNOWN),
            _ => {
                let found = waits(&dir, place)?;
                (true, found.is_some(), found.unwrap_or(found::UNKNOWN))
            }
        };
        Ok(Self { dir, watch, published, waits, found, is_looked_at: true })
    }

    /// Whether the removal is still a plain one, as it was when the PFS was asked. With its slot
    /// taken.
    fn is_still_plain(&self, place: &Place, entry: &Entry) -> Result<bool> {
        let root = &place.root;
        if !self.is_looked_at && root.map.may_be_overtaken() && !is_through(root, place.name()) {
            return Ok(false);
        }
        Ok(is_same(&tree::read(root, place.rel())?, entry))
    }
}

/// Whether two looks at the overlay have found the same.
fn is_same(a: &Entry, b: &Entry) -> bool {
    match (a, b) {
        (Entry::File(a), Entry::File(b)) => a.id == b.id,
        (Entry::Clean(a), Entry::Clean(b)) => a.file.id == b.file.id,
        _ => core::mem::discriminant(a) == core::mem::discriminant(b),
    }
}

/// unlink(2). `under_way`: to be kept until the plain call has ended.
pub fn unlink(place: &mut Place, under_way: &mut Option<UnderWay>) -> Result<Answer<()>> {
    if place.rel().is_empty() || begins_quietly(place, under_way) {
        return Ok(Answer::Plain);
    }
    if place.is_dir_path {
        return unlink_directory(place);
    }
    for _ in 0..MAX_TRIES {
        // (What others have done to the file of a clean copy, the look at the name below says.)
        let found = lookup_to_change(place)?;
        let entry = match inside(place, found)? {
            Found::Entry(Entry::Removed | Entry::RemovedDir) => return Err(libc::ENOENT),
            Found::Entry(Entry::Directory) | Found::Held => return Ok(Answer::Plain),
            Found::Entry(entry) => entry,
            Found::Elsewhere(_) => Entry::Nothing,
        };
        let known = Removal::of(place, &entry)?;
        if !known.waits {
            *under_way = None;
            *under_way = beside::making(place);
            if !known.is_still_plain(place, &entry)? {
                *under_way = None;
                continue;
            }
            if matches!(entry, Entry::Nothing) {
                return Ok(Answer::Plain);
            }
        }
        match remove(place, &entry, &known) {
            Ok(Some(answer)) => {
                if matches!(answer, Answer::Done(())) {
                    data_roots::changed(place, &entry, false);
                }
                return Ok(answer);
            }
            Ok(None) => *under_way = None,
            Err(e) if goes_plainly(place, e) => return Ok(Answer::Plain),
            Err(e) => return Err(e),
        }
    }
    Ok(Answer::Plain)
}

/// unlink(2) of a path that can only mean a directory.
#[cold]
fn unlink_directory(place: &mut Place) -> Result<Answer<()>> {
    place.is_dir_path = false;
    match entry_at(place)? {
        Entry::File(_) | Entry::Symlink(_) => Err(libc::ENOTDIR),
        Entry::Removed | Entry::RemovedDir => Err(libc::ENOENT),
        Entry::Directory | Entry::Nothing | Entry::Clean(_) => Ok(Answer::Plain),
    }
}

/// Removes a name, if the overlay still says the same of it.
fn remove(place: &Place, entry: &Entry, known: &Removal) -> Result<Option<Answer<()>>> {
    let root = &place.root;
    let journal = Journal::lock(root)?;
    if !is_same(&tree::read(root, place.rel())?, entry) {
        return Ok(None);
    }
    // (A plain rename may be moving it.)
    if known.waits && known.watch.is_changed(place, &journal) {
        return Ok(None);
    }
    // A link may have taken the place of its directory: the kernel says where that leads.
    if known.waits && !entry.is_pending() && !known.dir.is_at(place)? {
        return Ok(Some(Answer::Plain));
    }
    let (id, data) = match entry {
        // It has no place in the order while it is written.
        Entry::File(file) if is_written(root, file) => (file.id, Some(*file)),
        // The agent removes its data: it may have to publish the file before.
        Entry::File(file) => (file.id, None),
        Entry::Clean(clean) => (0, Some(clean.file)),
        _ => (0, None),
    };
    // The agent says under the lock what it is about to publish, and until it is there.
    let published = known.published || matches!(entry, Entry::File(file) if is_published(&known.dir, place, file));
    let may_appear = published || may_appear(place, id);
    let whiteout = if known.waits && may_appear { Some(tree::prepare(place, names::WHITEOUT)?) } else { None };
    if known.waits {
        let flags = if published { flag::PUBLISHED } else { 0 };
        journal.append(Op::Unlink, About { id, flags, found: known.found }, place.rel(), b"")?;
    }
    match whiteout {
        Some(link) => link.put(entry)?,
        None => tree::take(place, entry)?,
    }
    if let Some(file) = data {
        drop_data(root, &file);
    }
    Ok(Some(if known.waits { Answer::Done(()) } else { Answer::Plain }))
}

/// Whether the removal of a name that the PFS has waits for what is pending. Links to nothing are
/// removed at once: programs use them as locks. Before one of several names of a file is removed,
/// all that is pending is published: the other names tell how many there are. What the PFS has
/// there, if it does.
fn waits(dir: &HeldParent, place: &Place) -> Result<Option<u64>> {
    let Ok(own) = dir.lstat(place) else { return Ok(None) };
    let waits = match own.st_mode & libc::S_IFMT {
        libc::S_IFREG => true,
        libc::S_IFLNK => {
            let mut path = place.on_pfs()?;
            kernel::stat_at(libc::AT_FDCWD, path.c_str().ok_or(libc::ENAMETOOLONG)?, 0).is_ok()
        }
        _ => false,
    };
    if !waits {
        return Ok(None);
    }
    // The kernel says why not.
    if dir.may_change(place).is_err() {
        return Ok(None);
    }
    if own.st_nlink > 1 {
        barrier::wait_for_all(&place.root)?;
        return Ok(None);
    }
    Ok(Some(kernel::found(&own)))
}
