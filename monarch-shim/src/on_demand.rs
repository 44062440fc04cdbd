//! Directories that the index does not hold (`index.distributed`): questions to the agent, and the
//! marks of what the job changes there ([`monarch_abi::marks`]).
//!
//! All of this is off the hit path: it begins where a lookup has missed. A path that leads through
//! a link, or has `.`, `..` or doubled slashes, is the kernel's. What a process asks for, the agent
//! gives as the index would have it, or not at all.

use crate::fetched_dir::Fetched;
use crate::paths::absolute;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use monarch_abi::control::Start;
use monarch_abi::deciding::is_hidden;
use monarch_abi::demand::{agent_up, is_silent};
use monarch_abi::index::DIR_INCOMPLETE;
use monarch_abi::marks::Marks;
use monarch_abi::mem::PathBuffer;
use monarch_abi::names::{self, Attributes, Head, LISTING_HEAD_LEN, Subject};
use monarch_abi::resolve::{Found, Segments};
use monarch_abi::segment::Segment;
use monarch_abi::word::State;
use monarch_guest::absolute::Absolute;
use monarch_guest::agent_socket;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::sys::{self, Fd};

/// How long the agent is waited for, in milliseconds. It answers in half of that.
const ANSWER_TIMEOUT_MS: u64 = 600;
/// The same from one part of a listing to the next.
const LISTING_TIMEOUT_MS: u64 = 2_000;
/// How long an agent that did not answer is not asked, in milliseconds.
const RETRY_PAUSE_MS: u64 = 1_000;

/// When the agent may be asked again, in milliseconds of the coarse clock.
static NOT_BEFORE_MS: AtomicU64 = AtomicU64::new(0);

/// Whether directories of any root are asked for.
#[cold]
#[inline(never)]
#[must_use]
pub fn is_on(ctx: &Ctx) -> bool {
    ctx::live(*ctx).any(|(_, _, segment)| segment.state.marks.is_on())
}

/// A path below a root whose directories are asked for.
struct Place {
    number: usize,
    root: usize,
    segment: &'static Segment<'static>,
    path: Absolute,
    /// Where the part below the root begins.
    rel_at: usize,
}

impl Place {
    fn of(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Option<Self> {
        // What is pending below an output root the agent does not know here.
        if !is_on(ctx) || ctx.map.ctl.outputs_len.load(Ordering::Acquire) != 0 || ctx::may_have_other_mounts(ctx.map) {
            return None;
        }
        let path = absolute(ctx, dirfd, path)?;
        let Start::Root(m) = ctx.map.match_root(path.get()) else { return None };
        if !m.sub.is_empty() || !m.rest.starts_with(b"/") {
            return None;
        }
        let (root, rel_at) = (m.root, path.get().len() - m.rest.len() + 1);
        let (number, segment) = ctx.segment(root)?;
        let place = Self { number, root, segment, path, rel_at };
        (segment.state.marks.is_on() && place.rel().split(|&c| c == b'/').all(is_plain)).then_some(place)
    }

    fn rel(&self) -> &[u8] {
        self.path.get().get(self.rel_at..).unwrap_or_default()
    }

    const fn marks(&self) -> &Marks<'static> {
        &self.segment.state.marks
    }

    /// Whether the index holds a part of the way to what has `rel`, and none of its names: it ends
    /// in an unchanged directory whose listing it does not hold.
    fn is_beyond_index(&self, ctx: &Ctx, rel: &[u8]) -> bool {
        let mut len = rel.len();
        loop {
            let known = rel.get(..len).and_then(|known| self.segment.lookup(known));
            if let Some(known) = known {
                let dir = self.segment.index.dir(known.record);
                return dir.is_some_and(|dir| dir.flags & DIR_INCOMPLETE != 0)
                    && known.word().state() != State::Bypass
                    && !ctx.map.in_bypassed_range(self.number, known.id);
            }
            if len == 0 {
                return false;
            }
            len = rel.get(..len).unwrap_or_default().iter().rposition(|&c| c == b'/').unwrap_or(0);
        }
    }

    /// Whether the agent may be asked for the entry.
    fn may_ask_entry(&self, ctx: &Ctx) -> bool {
        self.segment.lookup(self.rel()).is_none()
            && self.is_beyond_index(ctx, self.rel())
            && !self.marks().covers_entry(self.rel())
    }

    /// Whether the agent may be asked for the listing.
    fn may_ask_listing(&self, ctx: &Ctx) -> bool {
        self.is_beyond_index(ctx, self.rel()) && !self.marks().covers_names(self.rel())
    }
}

fn is_plain(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !is_hidden(name)
}

/// The attributes of what has a path, and its root; `None`: the kernel is asked.
#[cold]
#[inline(never)]
#[must_use]
pub fn attributes(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<(usize, Attributes)> {
    let place = Place::of(ctx, dirfd, path).filter(|place| place.may_ask_entry(ctx))?;
    let deadline = sys::coarse_ms() + ANSWER_TIMEOUT_MS;
    let socket = ask(ctx, &place, Subject::Entry, deadline)?;
    let mut bytes = [0; names::ATTRIBUTES_LEN];
    let is_there = receive_kind(&socket, deadline) == Some(names::ENTRY)
        && agent_socket::receive_all(&socket, deadline, &mut bytes);
    let attributes = Attributes::of(bytes);
    // (What the job has changed meanwhile is the kernel's.)
    let fits = is_there && !(follow && attributes.record.is_link()) && place.may_ask_entry(ctx);
    fits.then_some((place.root, attributes))
}

/// The listing of the directory that has a path; `None`: the kernel is asked.
#[cold]
#[inline(never)]
#[must_use]
pub fn listing(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Option<Fetched> {
    let place = Place::of(ctx, dirfd, path).filter(|place| place.may_ask_listing(ctx))?;
    let deadline = sys::coarse_ms() + ANSWER_TIMEOUT_MS;
    let socket = ask(ctx, &place, Subject::Listing, deadline)?;
    let mut head = [0; LISTING_HEAD_LEN];
    if receive_kind(&socket, deadline) != Some(names::LISTING)
        || !agent_socket::receive_all(&socket, deadline, &mut head)
    {
        return None;
    }
    let (ino, parent_ino, len) = names::listing_head(&head)?;
    let mut listing = Fetched::new(place.segment, place.root, place.rel(), [ino, parent_ino], len)?;
    let is_whole = agent_socket::receive_all(&socket, sys::coarse_ms() + LISTING_TIMEOUT_MS, listing.names_mut());
    (is_whole && place.may_ask_listing(ctx)).then_some(listing)
}

/// Asks the agent; the socket on which the answer comes.
fn ask(ctx: &Ctx, place: &Place, subject: Subject, deadline: u64) -> Option<Fd> {
    let (ctl, now) = (ctx.map.ctl, sys::coarse_ms());
    let is_paused = now < NOT_BEFORE_MS.load(Ordering::Relaxed);
    if is_paused || !agent_up(ctl) || is_silent(ctl, now.saturating_mul(1000)) {
        return None;
    }
    let rel = place.rel();
    let head = Head { subject, segment: place.number as u32, len: rel.len() }.to_bytes()?;
    let path = ctx::runtime_file(names::SOCKET.as_bytes()).filter(|path| path.get().len() <= agent_socket::PATH_MAX)?;
    let asked = agent_socket::connect(path.get().iter().copied(), deadline).filter(|socket| {
        agent_socket::send(socket, deadline, &head) && (rel.is_empty() || agent_socket::send(socket, deadline, rel))
    });
    if asked.is_none() {
        pause();
    }
    asked
}

fn pause() {
    NOT_BEFORE_MS.store(sys::coarse_ms() + RETRY_PAUSE_MS, Ordering::Relaxed);
}

/// The first byte of an answer.
fn receive_kind(socket: &Fd, deadline: u64) -> Option<u8> {
    let mut kind = [0];
    if !agent_socket::receive_all(socket, deadline, &mut kind) {
        // It answers whatever it knows: this one hangs, or has ended.
        pause();
        return None;
    }
    kind.first().copied()
}

/// Calls `note` with the marks of the root below which a real path lies, if there are any, and with
/// the part of the path below that root.
fn with_marks(ctx: &Ctx, real: &[u8], note: impl FnOnce(&Marks<'static>, &[u8])) {
    let Start::Root(m) = ctx.map.match_root(real) else { return };
    let Some((_, segment)) = ctx.segment(m.root).filter(|(_, segment)| segment.state.marks.is_on()) else { return };
    let rest = m.rest.strip_prefix(b"/").unwrap_or(m.rest);
    let mut rel = PathBuffer::front();
    let glue: &[u8] = if m.sub.is_empty() || rest.is_empty() { b"" } else { b"/" };
    match rel.append(m.sub).and_then(|()| rel.append(glue)).and_then(|()| rel.append(rest)) {
        Some(()) => note(&segment.state.marks, rel.get()),
        None => segment.state.marks.close(),
    }
}

/// Content or attributes of what has this real path are about to change, or were opened for that.
pub fn entry_changes(ctx: &Ctx, real: &[u8]) {
    if is_on(ctx) {
        note_entry(ctx, real);
    }
}

#[cold]
#[inline(never)]
fn note_entry(ctx: &Ctx, real: &[u8]) {
    with_marks(ctx, real, Marks::note_entry);
}

/// The name at the end of this real path, which the index does not have, is about to be made,
/// removed or replaced, or, with all that may lie below it, moved.
pub fn name_changes(ctx: &Ctx, real: &[u8], moves: bool) {
    if is_on(ctx) {
        note_name(ctx, real, moves);
    }
}

#[cold]
#[inline(never)]
fn note_name(ctx: &Ctx, real: &[u8], moves: bool) {
    with_marks(ctx, real, |marks, rel| {
        marks.note_name(rel);
        if moves && is_directory(real) {
            marks.close();
        }
    });
}

/// [`name_changes`] in a directory that the index has.
pub fn name_in_changes(ctx: &Ctx, dir: &Found<'static>, name: &[u8], moves: bool) {
    if !dir.segment.state.marks.is_on() {
        return;
    }
    let path = monarch_guest::absolute::pfs_path(ctx, dir).and_then(|mut path| path.append(name).map(|()| path));
    match path {
        Some(path) => name_changes(ctx, path.get(), moves),
        None => dir.segment.state.marks.close(),
    }
}

fn is_directory(path: &[u8]) -> bool {
    let found = sys::stat_bytes(path, libc::AT_SYMLINK_NOFOLLOW);
    found.is_some_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

/// Something on this device has changed, at a path that is not known, or with all below it.
pub fn close(ctx: &Ctx, dev: u64) {
    for (root, _, segment) in ctx::live(*ctx) {
        if ctx.map.roots().get(root).is_some_and(|r| r.dev.load(Ordering::Relaxed) == dev) {
            segment.state.marks.close();
        }
    }
}
