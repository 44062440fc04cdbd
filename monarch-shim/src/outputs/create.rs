//! Creating a staged file: a hidden part file on the PFS, whose errors are the application's, and a
//! file in the tier, whose descriptor it gets.

use super::answer::GONE;
use super::barrier;
use super::default_acl;
use super::descriptors;
use super::extended;
use super::journal::{About, Journal};
use super::kernel::{self, Errno};
use super::name_watch::NameWatch;
use super::part::{self, Owner, Part, UnderWay};
use super::place::{Place, split};
use super::roots::Root;
use super::spare;
use super::subtree;
use super::tree::{self, Counting, Entry, drop_data};
use super::whereabouts::{Whereabouts, whereabouts};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use monarch_abi::credentials::OVERFLOW_ID;
use monarch_abi::outputs::found;
use monarch_abi::outputs::names::{self, Staged};
use monarch_abi::outputs::record::{Op, flag};
use monarch_abi::outputs::state::closed;
use monarch_abi::outputs::{FIRST_RESERVATION, STAGED_MODE, is_hidden, through};
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::ids;
use monarch_guest::sys::{self, Fd, coarse_ms};

/// How long the agent has to look for room, in milliseconds.
const ANSWER_TIMEOUT_MS: u64 = 1000;
/// Flags with which a file is not staged.
const NEVER: c_int = libc::O_DIRECT | libc::O_SYNC | libc::O_DSYNC | libc::O_PATH | libc::O_DIRECTORY | libc::O_ASYNC;
/// Flags that are not passed on when the staged file is opened.
pub(super) const NOT_PASSED_ON: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;

/// How the application creates a file.
#[derive(Clone, Copy)]
pub struct Create {
    /// Flags of open(2).
    pub flags: c_int,
    /// The mode, before umask.
    pub mode: u32,
}

/// What became of an attempt to stage a file.
pub enum Created {
    /// The application's descriptor.
    Fd(Fd),
    /// A file of this kind is not staged: the PFS gets the call at once.
    Through,
    /// The file could not be staged: the PFS gets the call after what is pending, so that the file
    /// overtakes nothing.
    Unstaged,
    /// Another process was quicker: the overlay is to be looked at again.
    Again,
}

impl Create {
    const fn is_exclusive(self) -> bool {
        self.flags & libc::O_EXCL != 0
    }

    /// Whether these flags create a file in a way that can be staged.
    pub const fn can_be_staged(self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
            && self.flags & libc::O_CREAT != 0
            && self.flags & (libc::O_TRUNC | libc::O_EXCL) != 0
            && self.flags & NEVER == 0
            && self.mode & STAGED_MODE == 0
    }

    /// Whether a file of this name is staged.
    fn is_staged_name(self, place: &Place) -> bool {
        let name = place.name();
        !name.is_empty()
            && !is_hidden(name)
            && !is_through(&place.root, name)
            && (!through::is_raw_temporary(name, self.is_exclusive(), self.mode) || catches_raw_calls(place))
    }
}

/// Whether a name goes through to the PFS. A rotated file has a number behind its name.
pub fn is_through(root: &Root, name: &[u8]) -> bool {
    let name = through::without_rotation(name);
    root.map.patterns().any(|pattern| through::fits(pattern, name))
}

/// Whether a raw system call that renames the file would be seen.
fn catches_raw_calls(place: &Place) -> bool {
    place.on_pfs().is_ok_and(|mut path| path.c_str().is_some_and(kernel::catches_raw_calls))
}

/// A file of the PFS that the staged file replaces.
struct Target {
    mode: u32,
    owner: Owner,
    /// What the PFS has there; not known of a file that is pending.
    found: u64,
}

/// What the PFS has at the name.
enum Found {
    /// Nothing, or what the job has removed.
    Nothing,
    /// A file that a staged file may replace.
    File(Target),
    /// Something else.
    Another,
    /// What cannot be told.
    Unknown,
}

/// What a new file stands in place of.
#[derive(Clone, Copy)]
enum Instead<'a> {
    /// This pending file, of which the tier has said this.
    Pending(&'a Staged, &'a libc::stat64),
    /// What the PFS has, or nothing.
    Published(NameWatch),
}

/// Whether there is room for a file.
enum Room {
    /// The first bytes are taken.
    Taken,
    /// There is none. What was before the create is published.
    NoneInTurn,
    /// There is none.
    None,
}

/// Creates a staged file at a place of which the overlay says `entry`. `watch`: of the name, from
/// before the overlay and the PFS were asked. An error is the application's.
pub fn create(place: &mut Place, how: Create, entry: &Entry, watch: Option<NameWatch>) -> Result<Created, Errno> {
    if !how.can_be_staged() || place.is_dir_path || !how.is_staged_name(place) {
        return Ok(Created::Through);
    }
    match place.root.state().closed.load(Ordering::Acquire) {
        closed::OPEN => {}
        closed::GONE => return Err(GONE),
        _ => return Ok(Created::Unstaged),
    }
    if !place.parent().is_empty() && !tree::has_dir(&place.root, place.parent()) {
        match place.follow_parent() {
            // Another place than was looked up.
            Ok(true) => return Ok(Created::Again),
            Ok(false) => {}
            // It lies in no output root.
            Err(libc::EXDEV) => return Ok(Created::Through),
            Err(_) => return without_parent(place),
        }
    }
    if !place.parent().is_empty() && matches!(tree::read(&place.root, place.parent())?, Entry::RemovedDir) {
        return Err(libc::ENOENT);
    }
    let watch = watch.filter(|watch| watch.is_of(place));
    let is_known = watch.is_some();
    let instead = Instead::Published(watch.unwrap_or_else(|| NameWatch::exclusive(place)));
    match target(place, how, entry, is_known)? {
        Found::Nothing => admit(place, how, None, instead),
        Found::File(target) => admit(place, how, Some(&target), instead),
        Found::Another => Ok(Created::Through),
        Found::Unknown => Ok(Created::Unstaged),
    }
}

/// The answer where the directory of a place has no path: its error, which the PFS gives.
#[cold]
fn without_parent(place: &Place) -> Result<Created, Errno> {
    let mut path = place.parent_on_pfs()?;
    kernel::stat_at(libc::AT_FDCWD, path.c_str().ok_or(libc::ENAMETOOLONG)?, 0)?;
    Ok(Created::Unstaged)
}

/// Stages a file for which there is room, in place of what was seen at the name.
fn admit(place: &mut Place, how: Create, target: Option<&Target>, over: Instead<'_>) -> Result<Created, Errno> {
    refused(&place.root)?;
    match room(&place.root)? {
        Room::Taken => {}
        Room::NoneInTurn => return Ok(Created::Through),
        Room::None => return Ok(Created::Unstaged),
    }
    let made = stage(place, how, target, over);
    if !matches!(made, Ok(Created::Fd(_))) {
        place.root.state().room.fetch_add(FIRST_RESERVATION, Ordering::AcqRel);
    }
    match made {
        // Of a file that is there the application may write the content without writing the
        // directory.
        Err(libc::EACCES | libc::EPERM) if target.is_some() => Ok(Created::Unstaged),
        // The name of the part file, or the path in the overlay, is longer than that of the file.
        Err(libc::ENAMETOOLONG) => Ok(Created::Unstaged),
        made => made,
    }
}

/// Looks at what the PFS has at the name, unless that `is_known` by `entry` and the last look.
fn target(place: &Place, how: Create, entry: &Entry, is_known: bool) -> Result<Found, Errno> {
    if matches!(entry, Entry::Removed) || place.is_missing && is_known {
        return Ok(Found::Nothing);
    }
    let mut path = place.on_pfs()?;
    let st = match kernel::lstat(path.c_str().ok_or(libc::ENAMETOOLONG)?) {
        Ok(st) => st,
        Err(libc::ENOENT) => return Ok(Found::Nothing),
        // What the create would give, too.
        Err(e @ (libc::EACCES | libc::ELOOP | libc::ENAMETOOLONG | libc::ENOTDIR)) => return Err(e),
        Err(_) => return Ok(Found::Unknown),
    };
    let is_plain = st.st_mode & libc::S_IFMT == libc::S_IFREG && st.st_nlink == 1;
    let is_ours = st.st_uid == sys::fsuid() && (st.st_mode & 0o200 != 0 || st.st_uid == 0);
    // What a descriptor of the old file writes would be lost.
    let is_written = || descriptors::is_written_here(&st) || is_written_through(place);
    if how.is_exclusive() || !is_plain || !is_ours || is_written() {
        return Ok(Found::Another);
    }
    if ids::may_be_unnamed(st.st_uid, st.st_gid) {
        // No call here can give a part file that group.
        return Ok(Found::Unknown);
    }
    Ok(Found::File(Target { mode: st.st_mode & 0o7777, owner: Owner::of(&st), found: kernel::found(&st) }))
}

/// Whether a process of this node, perhaps another one, has the file open for writing on the PFS
/// itself. Where a process has opened such a name so, the kernel is asked, by a descriptor.
fn is_written_through(place: &Place) -> bool {
    if !place.root.state().may_be_written_through(place.name()) {
        return false;
    }
    let open = || {
        let mut path = place.on_pfs().ok()?;
        spare::open_own(path.c_str()?, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK).ok()
    };
    open().is_none_or(|fd| kernel::has_writer(fd.0))
}

/// The error that creating a file gives, where the PFS refuses what is pending.
fn refused(root: &Root) -> Result<(), Errno> {
    match root.state().held_errno.load(Ordering::Acquire) {
        0 => Ok(()),
        held => Err(held as c_int),
    }
}

/// Takes the first bytes of a file from the room. If there is too little, the creator waits until
/// what is before it is published, so that a file which then goes through overtakes nothing, and
/// until the agent has looked for room: one that has just started has not yet. The wait ends with
/// an error when the PFS begins to refuse.
fn room(root: &Root) -> Result<Room, Errno> {
    if root.map.take_room(FIRST_RESERVATION) {
        return Ok(Room::Taken);
    }
    let state = root.state();
    state.wanted_room.fetch_add(FIRST_RESERVATION, Ordering::AcqRel);
    let before = barrier::begin(root);
    let (done, began) = (state.done.load(Ordering::Acquire), coarse_ms());
    let is_answered =
        || state.done.load(Ordering::Acquire) != done || coarse_ms().saturating_sub(began) > ANSWER_TIMEOUT_MS;
    root.map.notify_agent();
    barrier::wait_until(root, |root| {
        state.room.load(Ordering::Acquire) >= FIRST_RESERVATION
            || state.published.load(Ordering::Acquire) >= before && is_answered()
            || state.closed.load(Ordering::Acquire) != closed::OPEN
            || refused(root).is_err()
    });
    let less = |wanted: u64| Some(wanted.saturating_sub(FIRST_RESERVATION));
    let _ = state.wanted_room.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
    refused(root)?;
    Ok(match root.map.take_room(FIRST_RESERVATION) {
        true => Room::Taken,
        false if state.published.load(Ordering::Acquire) >= before => Room::NoneInTurn,
        false => Room::None,
    })
}

/// A file that is removed again unless it is kept.
struct Unfinished(Option<Absolute>);

impl Unfinished {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = self.0.as_mut().and_then(|p| p.c_str()) {
            let _ = kernel::unlink(path, 0);
        }
    }
}

fn stage(place: &mut Place, how: Create, target: Option<&Target>, over: Instead<'_>) -> Result<Created, Errno> {
    let root = place.root;
    let under_way = UnderWay::begin(place);
    let (mode, owner) = target.map_or((how.mode & 0o7777, None), |target| (target.mode, Some(target.owner)));
    let Some((mut part, st)) = part::make(place, mode, owner, &under_way)? else { return Ok(Created::Unstaged) };
    let file = Staged { id: part.id, dev: st.st_dev, ino: st.st_ino, uid: st.st_uid, gid: st.st_gid };
    let mut path = root.data(&file.name()).ok_or(libc::ENAMETOOLONG)?;
    let flags = how.flags & !NOT_PASSED_ON | libc::O_CREAT | libc::O_EXCL;
    // The tier's own errors are not the application's.
    let Ok(fd) = path.c_str().ok_or(libc::ENAMETOOLONG).and_then(|path| kernel::open(path, flags, 0o600)) else {
        return Ok(Created::Unstaged);
    };
    let data = Unfinished(Some(path));
    // (What the agent changes of the part's owner is what differs from this later.)
    if set_owner(&fd, &st).is_err() || kernel::fchmod(fd.0, st.st_mode & 0o7777 | STAGED_MODE).is_err() {
        return Ok(Created::Unstaged);
    }
    if target.is_some() {
        // Where they do not fit, the file itself is truncated.
        let mut from = match over {
            Instead::Pending(old, _) => root.data(&old.name()).ok_or(libc::ENAMETOOLONG)?,
            Instead::Published(_) => place.on_pfs()?,
        };
        if extended::keep(from.c_str().ok_or(libc::ENAMETOOLONG)?, fd.0).is_err() {
            return Ok(Created::Unstaged);
        }
    } else if default_acl::may_have(place)
        && let Some(part) = part.path()
    {
        // (Where the tier has no access lists, the part file alone has it.)
        let _ = extended::keep(part, fd.0);
    }
    let flags = flag::NEW | descriptors::watch(fd.0) | if target.is_some() { flag::PUBLISHED } else { 0 };
    let about = About { id: file.id, flags, found: target.map_or(found::NOTHING, |target| target.found) };
    match enter(place, &file, &part, about, over) {
        Ok(Entered::Yes) => {}
        Ok(Entered::Changed) => return Ok(Created::Again),
        Ok(Entered::Elsewhere) => return Ok(Created::Unstaged),
        Ok(Entered::NoDirectory) => return Err(libc::ENOENT),
        Err(GONE) => return Err(GONE),
        Err(_) => return Ok(Created::Unstaged),
    }
    data.keep();
    part.is_kept = true;
    descriptors::opened(fd.0);
    Ok(Created::Fd(fd))
}

/// Gives a staged file the owner of its part file, if that has a number here.
fn set_owner(fd: &Fd, part: &libc::stat64) -> Result<(), Errno> {
    let st = sys::fstat_local(fd.0).ok_or(libc::EIO)?;
    if (st.st_uid, st.st_gid) == (part.st_uid, part.st_gid) || ids::may_be_unnamed(part.st_uid, part.st_gid) {
        return Ok(());
    }
    kernel::set_owner(fd.0, part.st_uid, part.st_gid)
}

/// What became of entering a file.
enum Entered {
    /// It is entered.
    Yes,
    /// Another process has changed what was seen before.
    Changed,
    /// Its directory lies in no output root any more.
    Elsewhere,
    /// The job has removed its directory.
    NoDirectory,
}

/// Makes the directory of a place the one where its part file lies by now. With the lock held:
/// `Yes` if the file may be entered there.
fn follow_part(place: &mut Place, part: &Part) -> Result<Entered, Errno> {
    if place.parent().is_empty() {
        return Ok(Entered::Yes);
    }
    let root = place.root;
    match whereabouts(&root, part.fd.0) {
        Whereabouts::At(rel) => {
            let (dir, name) = split(rel.get());
            if dir != place.parent() && names::parse_part(name).is_some() {
                // Into the output root the agent moves part files of a directory that is removed.
                // What else is known of the name moves along soon.
                if dir.is_empty() || !matches!(tree::read(&root, place.rel())?, Entry::Nothing) {
                    return Ok(Entered::Changed);
                }
                place.move_to_dir(dir)?;
            }
        }
        Whereabouts::Removed => return Ok(Entered::Changed),
        Whereabouts::Outside => return Ok(Entered::Elsewhere),
        Whereabouts::Unknown => {}
    }
    let is_removed = matches!(tree::read(&root, place.parent())?, Entry::RemovedDir);
    Ok(if is_removed { Entered::NoDirectory } else { Entered::Yes })
}

/// Enters a new file in journal and overlay, in place of a pending file or of none. A process that
/// is killed between record and link leaves an empty file without writers, which the agent
/// publishes as the record says.
fn enter(place: &mut Place, file: &Staged, part: &Part, about: About, over: Instead<'_>) -> Result<Entered, Errno> {
    let root = &{ place.root };
    let journal = Journal::lock(root)?;
    // Before the kernel is asked where the part file lies: a process that renames its directory
    // after that finds the output root not quiet.
    let _unquiet = Counting::unquiet(root);
    match follow_part(place, part)? {
        Entered::Yes => {}
        other => return Ok(other),
    }
    let mut before = tree::read(root, place.rel())?;
    if matches!(before, Entry::Directory) && subtree::remove_empty(root, place.rel()) {
        // It was left where the PFS has none any more: the part file lies beside it.
        before = Entry::Nothing;
    }
    let is_as_seen = match (&before, over) {
        (Entry::File(now), Instead::Pending(old, seen)) => {
            old.id == now.id && has_same_attributes(root, Version { file: old, seen }, file)
        }
        (Entry::File(_) | Entry::Symlink(_) | Entry::Directory | Entry::RemovedDir, _) => false,
        (_, Instead::Pending(..)) => false,
        (_, Instead::Published(watch)) => !watch.is_changed(place, &journal),
    };
    if !is_as_seen {
        return Ok(Entered::Changed);
    }
    let flags = about.flags | if matches!(before, Entry::Removed) { flag::PUBLISHED } else { 0 };
    let link = tree::prepare(place, &tree::file_text(file))?;
    journal.append(Op::Open, About { flags, ..about }, place.rel(), &file.name())?;
    link.put(&before)?;
    if let Entry::Clean(clean) = before {
        drop_data(root, &clean.file);
    }
    Ok(Entered::Yes)
}

/// A pending file, of which the tier has said this.
#[derive(Clone, Copy)]
struct Version<'a> {
    file: &'a Staged,
    seen: &'a libc::stat64,
}

/// Whether the old version of a pending file still has the attributes that the new one has got.
fn has_same_attributes(root: &Root, old: Version<'_>, new: &Staged) -> bool {
    let of = |st: &libc::stat64| (st.st_mode, st.st_uid, st.st_gid);
    let is_same = || {
        let (mut before, mut after) = (root.data(&old.file.name())?, root.data(&new.name())?);
        let (before, after) = (before.c_str()?, after.c_str()?);
        let now = kernel::lstat(before).ok()?;
        Some(of(&now) == of(old.seen) && extended::are_same(before, after))
    };
    is_same() == Some(true)
}

/// Replaces a pending file that is closed, and behind which other entries stand, by a new one of
/// the same name.
pub fn replace(place: &mut Place, how: Create, old: &Staged) -> Result<Created, Errno> {
    let mut data = place.root.data(&old.name()).ok_or(libc::ENAMETOOLONG)?;
    let st = match kernel::lstat(data.c_str().ok_or(libc::ENAMETOOLONG)?) {
        // It was published and dropped a moment ago.
        Err(libc::ENOENT) => return Ok(Created::Again),
        st => st?,
    };
    let (part, now) = ((old.uid, old.gid), (st.st_uid, st.st_gid));
    let was_unnamed = part != now && [part.0, part.1].contains(&OVERFLOW_ID);
    if was_unnamed || ids::may_be_unnamed(now.0, now.1) {
        // No call here can give a part file that owner.
        return Ok(Created::Unstaged);
    }
    // (The job may have given it another owner.)
    let mode = st.st_mode & 0o7777 & !STAGED_MODE;
    let target = Target { mode, owner: Owner::of(&st), found: found::UNKNOWN };
    admit(place, how, Some(&target), Instead::Pending(old, &st))
}
