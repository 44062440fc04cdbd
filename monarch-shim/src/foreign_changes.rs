//! Reports of changes by a process that cannot open the control block, because it runs as another
//! user: it reads the PFS, and tells the agent over a socket what it is about to change (see
//! [`monarch_abi::foreign_changes`]).
//!
//! Nothing stays open in between. While the agent answers, a change is reported before the call
//! that makes it. A stopped agent delays the process by [`ANSWER_TIMEOUT_MS`] at most, once: from
//! then on messages are left in its queue, until it answers again.

use crate::descriptor_path::real_path;
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use monarch_abi::control::MAX_ROOTS;
use monarch_abi::foreign_changes::{
    FILE, HEAD_LEN, HELLO, Head, MESSAGE_MAX, MOVED, NAME, NAME_MAX, PATH_MAX, REPLY_MAX, TREE,
};
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::{split_last, split_named};
use monarch_guest::agent_socket;
use monarch_guest::ctx;
use monarch_guest::sys::{self, call};
use monarch_guest::user;

/// Age of the list of devices after which the agent is asked again, milliseconds.
const MAX_DEVICE_LIST_AGE_MS: u32 = 1_000;
/// Longest pause until an agent that cannot be reached is tried again, milliseconds.
const MAX_RETRY_PAUSE_MS: u32 = 60_000;
/// Time limit for an answer, milliseconds; and for one of an agent that did not answer before.
const ANSWER_TIMEOUT_MS: u32 = 2_000;
const SLOW_AGENT_TIMEOUT_MS: u32 = 20;

/// The socket's path, in words, and its length.
static SOCKET: [AtomicU64; PATH_MAX / 8] = [const { AtomicU64::new(0) }; PATH_MAX / 8];
static SOCKET_LEN: AtomicU32 = AtomicU32::new(0);
/// The devices on which roots lie; 0: none.
static DEVICES: [AtomicU64; MAX_ROOTS] = [const { AtomicU64::new(0) }; MAX_ROOTS];
/// When they are to be asked for again, in milliseconds of the coarse clock; 0: they never were.
static NEXT_LOOK_MS: AtomicU32 = AtomicU32::new(0);
/// The pause before that, while the agent cannot be reached.
static PAUSE_MS: AtomicU32 = AtomicU32::new(0);
/// Not zero: the agent did not answer in time.
static IS_SLOW: AtomicU32 = AtomicU32::new(0);

/// Notes the agent's socket. By the constructor of a process that could not open the control block.
/// Whether the process can report its changes.
#[must_use]
pub fn boot(socket: &[u8]) -> bool {
    if socket.len() > PATH_MAX || socket.first() != Some(&b'/') {
        return false;
    }
    for (word, part) in SOCKET.iter().zip(socket.chunks(8)) {
        let value = part.iter().rev().fold(0, |v, &byte| v << 8 | u64::from(byte));
        word.store(value, Ordering::Relaxed);
    }
    SOCKET_LEN.store(socket.len() as u32, Ordering::Relaxed);
    true
}

/// A name is about to appear, to disappear, to be replaced, or to move.
///
/// # Safety
/// That of [`user::path`].
#[inline]
pub unsafe fn name_changes(dirfd: c_int, path: *const c_char, moves: bool) {
    if ctx::is_foreign() {
        // SAFETY: by contract.
        unsafe { tell_name(dirfd, path, moves) }
    }
}

/// Content or attributes of what a path leads to are about to change.
///
/// # Safety
/// That of [`user::path`].
#[inline]
pub unsafe fn file_changes(dirfd: c_int, path: *const c_char, follow: bool) {
    if ctx::is_foreign() {
        // SAFETY: by contract.
        unsafe { tell_path(FILE, dirfd, path, follow) };
    }
}

/// A directory is about to become unsearchable.
///
/// # Safety
/// That of [`user::path`].
#[inline]
pub unsafe fn hides_below(dirfd: c_int, path: *const c_char) {
    if ctx::is_foreign() {
        // SAFETY: by contract.
        unsafe { tell_path(TREE, dirfd, path, true) };
    }
}

/// [`hides_below`] for an open directory.
#[inline]
pub fn hides_below_open(fd: c_int) {
    if ctx::is_foreign() {
        tell_file(TREE, fd);
    }
}

/// What an open file is has changed, or is about to.
#[inline]
pub fn descriptor_changes(fd: c_int) {
    if ctx::is_foreign() && fd >= 0 {
        tell_file(FILE, fd);
    }
}

/// A path is about to be opened. Whether it has to be looked at again once it is open: it may be
/// made only then, elsewhere than its name says.
///
/// # Safety
/// That of [`user::path`].
#[inline]
#[must_use]
pub unsafe fn opens(dirfd: c_int, path: *const c_char, flags: c_int) -> bool {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_TRUNC | libc::O_CREAT) != 0;
    if !ctx::is_foreign() || !writes || flags & libc::O_PATH != 0 {
        return false;
    }
    // SAFETY: by contract.
    unsafe {
        let is_there = tell_path(FILE, dirfd, path, flags & libc::O_NOFOLLOW == 0);
        if !is_there && flags & libc::O_CREAT != 0 {
            tell_name(dirfd, path, false);
            return true;
        }
    }
    false
}

/// Reports a change of the file that a path leads to; whether there is such a file.
#[cold]
#[inline(never)]
unsafe fn tell_path(kind: u8, dirfd: c_int, path: *const c_char, follow: bool) -> bool {
    if !wants_to_know() {
        return true;
    }
    let no = if follow { 0 } else { libc::O_NOFOLLOW };
    // SAFETY: the kernel checks the pointer.
    let fd = unsafe { sys::open_at(dirfd, path, libc::O_PATH | libc::O_CLOEXEC | no) };
    fd.as_ref().inspect(|fd| tell_file(kind, fd.0)).is_some()
}

#[cold]
#[inline(never)]
#[allow(clippy::unnecessary_cast, reason = "a count of links has 32 bits on aarch64")]
fn tell_file(kind: u8, fd: c_int) {
    let Some(st) = sys::fstat_local(fd).filter(|_| wants_to_know()) else { return };
    if !matters(st.st_dev) || !may_change(fd, st.st_uid) {
        return;
    }
    let is_dir = st.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let mut head = Head { kind, is_dir, file: [st.st_dev, st.st_ino], links: st.st_nlink as u64, parent: [0; 2] };
    let path = real_path(fd);
    if let Some((parent, name)) = path.as_ref().and_then(|path| split_last(path.get())) {
        head.parent = sys::identity_of(parent).map_or([0; 2], |(dev, ino)| [dev, ino]);
        say(&head, name);
    } else {
        say(&head, b"");
    }
}

#[cold]
#[inline(never)]
unsafe fn tell_name(dirfd: c_int, path: *const c_char, moves: bool) {
    if !wants_to_know() {
        return;
    }
    let told = || {
        // SAFETY: by contract.
        let (parent, name) = split_named(unsafe { user::path(path)? })?;
        let mut dir = PathBuffer::front();
        dir.append(if parent.is_empty() { b"." } else { parent })?;
        // SAFETY: a path of the shim.
        let fd = unsafe { sys::open_at(dirfd, dir.c_str()?.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) }?;
        let st = sys::fstat_local(fd.0)?;
        if matters(st.st_dev) && may_change(fd.0, st.st_uid) {
            let kind = if moves { MOVED } else { NAME };
            say(&Head { kind, parent: [st.st_dev, st.st_ino], ..Head::default() }, name);
        }
        Some(())
    };
    let _ = told();
}

/// Whether some root lies on a device.
fn matters(dev: u64) -> bool {
    let any = |of: u64| DEVICES.iter().any(|d| d.load(Ordering::Relaxed) == of);
    // An agent that has never answered may want to know.
    dev != 0 && (any(dev) || is_slow() && DEVICES.iter().all(|d| d.load(Ordering::Relaxed) == 0))
}

/// Whether the kernel may let this process change what a descriptor stands for: a call that fails
/// takes no copy away.
fn may_change(fd: c_int, owner: u32) -> bool {
    const SYS_FACCESSAT2: i64 = 439;
    let flags = (libc::AT_EACCESS | libc::AT_EMPTY_PATH) as usize;
    let what = [fd as usize, c"".as_ptr() as usize, libc::W_OK as usize, flags, 0, 0];
    // SAFETY: a C string.
    let done = unsafe { call(SYS_FACCESSAT2, what) };
    done != -libc::EACCES as isize || owner == sys::fsuid() || sys::capabilities() != 0
}

/// Whether there is an agent that has roots.
fn wants_to_know() -> bool {
    let (now, next) = (sys::coarse_ms() as u32, NEXT_LOOK_MS.load(Ordering::Acquire));
    if next == 0 || now.wrapping_sub(next) as i32 >= 0 {
        let done = say(&Head { kind: HELLO, ..Head::default() }, b"");
        let pause = match done {
            Some(()) => {
                PAUSE_MS.store(0, Ordering::Relaxed);
                MAX_DEVICE_LIST_AGE_MS
            }
            None => {
                let pause = (PAUSE_MS.load(Ordering::Relaxed) * 2).clamp(MAX_DEVICE_LIST_AGE_MS, MAX_RETRY_PAUSE_MS);
                PAUSE_MS.store(pause, Ordering::Relaxed);
                pause
            }
        };
        // After the answer, which may have taken long.
        NEXT_LOOK_MS.store((sys::coarse_ms() as u32).wrapping_add(pause) | 1, Ordering::Release);
    }
    is_slow() || DEVICES.iter().any(|d| d.load(Ordering::Relaxed) != 0)
}

fn is_slow() -> bool {
    IS_SLOW.load(Ordering::Relaxed) != 0
}

/// One message; `Some` when it was answered. The reply says on which devices roots lie.
fn say(head: &Head, name: &[u8]) -> Option<()> {
    let name = name.get(..name.len().min(NAME_MAX))?;
    let deadline = sys::coarse_ms() + u64::from(patience());
    let path = SOCKET.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
    let socket = agent_socket::connect(path.take(SOCKET_LEN.load(Ordering::Relaxed) as usize), deadline)?;
    let mut message = [0u8; MESSAGE_MAX];
    for (to, from) in message.iter_mut().zip(head.to_bytes(name.len() as u8).iter().chain(name)) {
        *to = *from;
    }
    let message = message.get(..HEAD_LEN + name.len())?;
    if !agent_socket::send(&socket, deadline, message) {
        return None;
    }
    let mut reply = [0u8; REPLY_MAX];
    let mut got = 0;
    loop {
        let n = agent_socket::receive(&socket, deadline, reply.get_mut(got..)?);
        IS_SLOW.store(u32::from(n == -libc::EAGAIN as isize || n == -libc::EINTR as isize), Ordering::Relaxed);
        got += usize::try_from(n).ok().filter(|&n| n > 0)?;
        let devices = usize::from(*reply.first()?);
        if let Some(told) = reply.get(1..1 + 8 * devices).filter(|told| told.len() < got) {
            let told = told.as_chunks::<8>().0;
            let all = told.iter().map(|dev| u64::from_le_bytes(*dev)).chain(core::iter::repeat(0));
            // (They change when a job comes whose root lies elsewhere, and then only grow.)
            DEVICES.iter().zip(all).for_each(|(to, dev)| to.store(dev, Ordering::Relaxed));
            return Some(());
        }
    }
}

fn patience() -> u32 {
    if is_slow() { SLOW_AGENT_TIMEOUT_MS } else { ANSWER_TIMEOUT_MS }
}
