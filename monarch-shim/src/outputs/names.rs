//! Names below an output root that are removed, linked or made.

use super::answer::{Answer, GONE, Result};
use super::barrier;
use super::beside::{self, UnderWay};
use super::create::is_through;
use super::crossing;
use super::data_roots;
use super::journal::{About, Journal};
use super::kernel;
use super::lookup::{Found, lookup};
use super::name_watch::NameWatch;
use super::place::Place;
use super::plainly::goes_plainly;
use super::remembered::{entry_at, on_pfs, unhide};
use super::roots::{Root, may_cross};
use super::staged::is_written;
use super::subtree;
use super::tree::{self, Entry, drop_data};
use super::whereabouts::HeldParent;
use core::ffi::CStr;
use core::sync::atomic::Ordering;
use monarch_abi::outputs::found;
use monarch_abi::outputs::names::{self, Staged};
use monarch_abi::outputs::record::{Op, flag};

/// Whether anything below the root is not as the PFS has it.
pub(super) fn is_quiet(root: &Root) -> bool {
    root.state().entries.load(Ordering::Acquire) == 0 && !root.map.may_be_overtaken()
}

/// Whether the directory of a place may be changed.
pub(super) fn may_change_directory(place: &Place) -> Result<()> {
    let mut path = place.parent_on_pfs()?;
    kernel::access(path.c_str().ok_or(libc::ENAMETOOLONG)?, libc::W_OK | libc::X_OK, libc::AT_EACCESS)
}

/// Whether the PFS has a file at a place by which a staged file was published or is being
/// published.
pub(super) fn is_published(dir: &HeldParent, place: &Place, file: &Staged) -> bool {
    place.root.state().is_publishing(file.id) || dir.lstat(place).is_ok()
}

/// Most bytes of a name.
const NAME_MAX: usize = 255;

/// How often a call looks again when other processes change the name meanwhile.
pub(super) const MAX_TRIES: usize = 100;

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
}

impl Removal {
    /// Asks the PFS. An error is that of the call.
    fn of(place: &Place, entry: &Entry) -> Result<Self> {
        let is_pending = entry.is_pending();
        if !is_pending && (!place.root.map.may_be_overtaken() || is_through(&place.root, place.name())) {
            let (dir, watch) = (HeldParent::by_path(), NameWatch::shared(place));
            return Ok(Self { dir, watch, published: true, waits: false, found: found::UNKNOWN });
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
        Ok(Self { dir, watch, published, waits, found })
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

/// unlink(2).
pub fn unlink(place: &mut Place) -> Result<Answer<()>> {
    let root = place.root;
    if is_quiet(&root) || place.rel().is_empty() {
        return Ok(Answer::Plain);
    }
    if place.is_dir_path {
        return unlink_directory(place);
    }
    for _ in 0..MAX_TRIES {
        // (What others have done to the file of a clean copy, the look at the name below says.)
        let entry = match lookup(place, false)? {
            Found::Entry(Entry::Removed | Entry::RemovedDir) => return Err(libc::ENOENT),
            Found::Entry(Entry::Directory) => return Ok(Answer::Plain),
            Found::Entry(entry) => entry,
            Found::Elsewhere(_) => Entry::Nothing,
        };
        let known = Removal::of(place, &entry)?;
        if !known.waits && matches!(entry, Entry::Nothing) {
            return Ok(Answer::Plain);
        }
        match remove(place, &entry, &known) {
            Ok(Some(answer)) => {
                if matches!(answer, Answer::Done(())) {
                    data_roots::changed(place, &entry, false);
                }
                return Ok(answer);
            }
            Ok(None) => {}
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

/// A path that ends in `.` or `..`, which names nothing that can be made or removed: the kernel
/// says so, but first, what is wrong with the directory before that.
#[cold]
pub fn in_dots(place: &mut Place) -> Result<Answer<()>> {
    if is_quiet(&place.root) || place.rel().is_empty() {
        return Ok(Answer::Plain);
    }
    place.is_dir_path = true;
    match lookup(place, true)? {
        Found::Entry(Entry::Removed | Entry::RemovedDir) => Err(libc::ENOENT),
        Found::Entry(_) => Ok(Answer::Plain),
        Found::Elsewhere(_) => {
            crossing::wait_for_all(place)?;
            Ok(Answer::Plain)
        }
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
    if known.waits && known.watch.is_changed(place) {
        return Ok(None);
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
    // If something else came after it, the agent publishes it before it removes it.
    let may_appear = published || !root.state().is_last_closed(id);
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

/// How often a directory that is to be removed is looked at without the lock of the journal, while
/// other processes append to it. The last time it is looked at with it: they wait for the PFS then.
const MAX_LOOKS: usize = 4;

/// The answer of rmdir(2) of a directory that is not empty.
fn not_empty(below: &subtree::Below) -> Result<Answer<()>> {
    if below.has_pending_names { Err(libc::ENOTEMPTY) } else { Ok(Answer::Plain) }
}

/// Whether the kernel refuses to remove a directory: for the directory that has it, or as it is a
/// mount point.
fn is_refused(place: &Place) -> Result<bool> {
    Ok(may_change_directory(place).is_err()
        || kernel::is_mount_point(place.on_pfs()?.c_str().ok_or(libc::ENAMETOOLONG)?))
}

/// rmdir(2).
pub fn rmdir(place: &mut Place) -> Result<Answer<()>> {
    let root = place.root;
    if is_quiet(&root) {
        return Ok(Answer::Plain);
    }
    if place.rel().is_empty() {
        // The root itself: what was removed in it has its turn first.
        if root.map.may_be_overtaken() && !subtree::below(place)?.has_pending_names {
            barrier::wait_for_all(&root)?;
        }
        return Ok(Answer::Plain);
    }
    place.is_dir_path = false;
    let mut looks = 1;
    // Until the overlay says that the directory is removed.
    let mut under_way = None;
    let journal = loop {
        let seen = root.state().seq.load(Ordering::Acquire);
        match entry_at(place)? {
            Entry::File(_) | Entry::Symlink(_) => return Err(libc::ENOTDIR),
            Entry::Removed | Entry::RemovedDir => return Err(libc::ENOENT),
            Entry::Directory | Entry::Nothing | Entry::Clean(_) => {}
        }
        if under_way.is_none() {
            under_way = beside::removing(place);
        }
        let may_be_queued = root.map.may_be_overtaken();
        // Before the names, so that few calls of others fall between the look at them and the lock.
        if may_be_queued && is_refused(place)? {
            return Ok(Answer::Plain);
        }
        // (Of what is no directory, or cannot be read, the kernel says what the answer is.)
        let Ok(below) = subtree::below(place) else { return Ok(Answer::Plain) };
        if !below.is_empty {
            return not_empty(&below);
        }
        // While something is pending, the PFS may have names there that the job does not see: part
        // files, and files that are just being published or removed.
        if !may_be_queued && (!below.hides_names || is_refused(place)?) {
            return Ok(Answer::Plain);
        }
        let journal = match Journal::lock(&root) {
            Err(e) => {
                drop(under_way);
                return if goes_plainly(place, e) { Ok(Answer::Plain) } else { Err(e) };
            }
            Ok(journal) => journal,
        };
        // A file may have been entered there meanwhile, and even published.
        if root.state().seq.load(Ordering::Acquire) == seen {
            break journal;
        }
        if looks == MAX_LOOKS {
            match tree::read(&root, place.rel())? {
                Entry::File(_) | Entry::Symlink(_) => return Err(libc::ENOTDIR),
                Entry::Removed | Entry::RemovedDir => return Err(libc::ENOENT),
                Entry::Directory | Entry::Nothing | Entry::Clean(_) => {}
            }
            let Ok(below) = subtree::below(place) else { return Ok(Answer::Plain) };
            if !below.is_empty {
                return not_empty(&below);
            }
            break journal;
        }
        looks += 1;
    };
    // Something else has got the name meanwhile, or had it before: it is published first.
    let Ok(link) = tree::prepare_remove_dir(place) else {
        drop(journal);
        drop(under_way);
        barrier::wait_for_all(&root)?;
        return Ok(Answer::Plain);
    };
    let appended = journal.append(Op::Rmdir, About::default(), place.rel(), b"");
    if let Err(e) = appended {
        drop(journal);
        drop(under_way);
        return if goes_plainly(place, e) { Ok(Answer::Plain) } else { Err(e) };
    }
    tree::remove_dir(place, link)?;
    data_roots::changed(place, &Entry::Directory, false);
    Ok(Answer::Done(()))
}

/// Before mkdir(2), mknod(2) and the like make a name. `under_way`: to be kept until the plain call
/// has ended.
pub fn make(place: &mut Place, under_way: &mut Option<UnderWay>) -> Result<Answer<()>> {
    if is_quiet(&place.root) || place.rel().is_empty() {
        return Ok(Answer::Plain);
    }
    let is_dir_path = core::mem::replace(&mut place.is_dir_path, false);
    let entry = entry_at(place)?;
    place.is_dir_path = is_dir_path;
    match entry {
        Entry::File(_) | Entry::Symlink(_) => Err(libc::EEXIST),
        Entry::Removed => {
            unhide(place)?;
            plainly(place, under_way)
        }
        Entry::RemovedDir => {
            barrier::wait_for_all(&place.root)?;
            Ok(Answer::Plain)
        }
        // Of a clean copy, too, the PFS says whether its file is still there.
        Entry::Directory | Entry::Nothing | Entry::Clean(_) => plainly(place, under_way),
    }
}

/// The plain call makes the name, unless another process has entered it meanwhile.
fn plainly(place: &Place, under_way: &mut Option<UnderWay>) -> Result<Answer<()>> {
    *under_way = beside::making(place);
    if under_way.is_some() && matches!(tree::read(&place.root, place.rel())?, Entry::File(_) | Entry::Symlink(_)) {
        return Err(libc::EEXIST);
    }
    Ok(Answer::Plain)
}

/// Whether the PFS may have a name only because an older file of that name was published a moment
/// ago, whose removal has its turn still to come. Waits for that.
pub fn was_removed(place: &mut Place) -> Result<bool> {
    let root = place.root;
    if !root.map.may_be_overtaken() || place.rel().is_empty() {
        return Ok(false);
    }
    place.is_dir_path = false;
    match entry_at(place)? {
        // The agent hides what it publishes for a removal that is still to come.
        Entry::Removed | Entry::RemovedDir => {}
        // It is just about to.
        Entry::Nothing if root.state().publishing_len.load(Ordering::Acquire) != 0 => {
            if on_pfs(place).is_ok_and(|st| !matches!(st.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFLNK)) {
                return Ok(false);
            }
        }
        _ => return Ok(false),
    }
    barrier::wait_for_all(&root)?;
    Ok(on_pfs(place).is_err())
}

/// symlink(2). `under_way`: as for [`make`].
pub fn symlink(place: &mut Place, target: &CStr, under_way: &mut Option<UnderWay>) -> Result<Answer<()>> {
    if is_quiet(&place.root) || place.rel().is_empty() || is_through(&place.root, place.name()) {
        return make(place, under_way);
    }
    // With a letter in front, the text of a link of the overlay would be too long.
    if target.count_bytes() + 1 >= monarch_abi::PATH_MAX {
        return symlink_long(place, target, under_way);
    }
    for _ in 0..MAX_TRIES {
        match symlink_in_turn(place, target) {
            Ok(Some(Answer::Plain)) => break,
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => {}
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
    if watch.is_changed(place) {
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
    text.append(b"L").and_then(|()| text.append(target.to_bytes())).ok_or(libc::ENAMETOOLONG)?;
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

/// Before link(2) of what lies at a place: waits until it is published. A file that a process has
/// open for writing cannot be: EXDEV, as of a link to another file system. `outside`: the device
/// of the directory of the new name, if that lies outside of the output roots.
pub fn publish_for_link(place: &mut Place, follow: bool, outside: Option<u64>) -> Result<Answer<()>> {
    let found = lookup(place, follow)?;
    if matches!(found, Found::Elsewhere(_)) {
        // By a link that is not published.
        crossing::wait_for_all(place)?;
        return Ok(Answer::Plain);
    }
    if let Found::Entry(Entry::File(file)) = found {
        let is_other_device = outside.is_some_and(|dev| dev != place.root.output.dev.load(Ordering::Relaxed));
        if is_other_device || is_written(&place.root, &file) {
            return Err(libc::EXDEV);
        }
    }
    settle(place, follow)?;
    match lookup(place, follow)? {
        Found::Entry(Entry::File(_)) => Err(libc::EXDEV),
        Found::Entry(Entry::Removed | Entry::RemovedDir) => Err(libc::ENOENT),
        _ if is_quiet(&place.root) => Ok(Answer::Plain),
        // Whether there is such a file comes before what the other name is.
        _ => on_pfs(place).map(|_| Answer::Plain),
    }
}

/// Before a call that only the PFS can answer, such as link(2) or execve(2): waits until what lies
/// at a place is published.
pub fn settle(place: &mut Place, follow: bool) -> Result<Answer<()>> {
    if place.root.state().pending.load(Ordering::Acquire) == 0 && !may_cross(&place.root) {
        return Ok(Answer::Plain);
    }
    match lookup(place, follow)? {
        Found::Entry(Entry::Removed | Entry::RemovedDir) => Err(libc::ENOENT),
        // (Or a link on the way is not published.)
        Found::Entry(Entry::File(_) | Entry::Symlink(_)) | Found::Elsewhere(_) => {
            crossing::wait_for_all(place)?;
            Ok(Answer::Plain)
        }
        Found::Entry(_) => Ok(Answer::Plain),
    }
}
