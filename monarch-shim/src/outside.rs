//! A process that cannot open the control block, because it runs as another user or in another root
//! directory: it reads the PFS, and tells the agent by a socket what it is about to change, as those
//! that can do in shared memory (see [`monarch_abi::outside`]).
//!
//! Nothing stays open in between. What lies on no device of a root costs one `fstat` of its
//! directory, and one connection a second by which the agent tells which devices these are.

use crate::ctx;
use crate::sys::{self, Fd, call};
use crate::user;
use core::ffi::{c_char, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use monarch_abi::control::MAX_ROOTS;
use monarch_abi::mem::PathBuffer;
use monarch_abi::outside::{
    FILE, HELLO, MESSAGE_MAX, MOVED, NAME, NAME_MAX, PATIENCE_MS, REPLY_MAX, SOCKET_NAME_LEN, socket_name,
};

/// How old what is known of devices may be, milliseconds.
const LOOK_MS: u32 = 1_000;

/// The socket's name, in words.
static SOCKET: [AtomicU64; SOCKET_NAME_LEN / 8] = [const { AtomicU64::new(0) }; SOCKET_NAME_LEN / 8];
/// The user whose agent it is.
static AGENT: AtomicU32 = AtomicU32::new(0);
/// The devices on which roots lie; 0: none.
static DEVICES: [AtomicU64; MAX_ROOTS] = [const { AtomicU64::new(0) }; MAX_ROOTS];
/// When they were told, in milliseconds of the coarse clock, of which the last bit is set; 0: never.
static LOOKED_MS: AtomicU32 = AtomicU32::new(0);

/// By the constructor of a process that could not open the control block at this path.
pub fn boot(control: &[u8]) {
    let name = socket_name(control);
    for (word, part) in SOCKET.iter().zip(name.as_chunks::<8>().0) {
        word.store(u64::from_ne_bytes(*part), Ordering::Relaxed);
    }
    // Whose directory it lies in; where that cannot be seen, the agent is one of this user.
    let end = control.iter().rposition(|&c| c == b'/').unwrap_or(0);
    let dir = control.get(..end).and_then(|dir| sys::stat_bytes(dir, 0));
    let above = || {
        let end = control.get(..end)?.iter().rposition(|&c| c == b'/')?;
        sys::stat_bytes(control.get(..end)?, libc::AT_SYMLINK_NOFOLLOW)
    };
    // The runtime directory lies in a directory of the user's, which others may not search.
    let agent = dir.or_else(above).map_or_else(sys::euid, |st| st.st_uid);
    AGENT.store(agent, Ordering::Relaxed);
}

/// A name is about to appear, to disappear, to be replaced, or to move.
///
/// # Safety
/// That of [`user::path`].
#[inline]
pub unsafe fn name_changes(dirfd: c_int, path: *const c_char, moves: bool) {
    if ctx::is_outside() {
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
    if ctx::is_outside() {
        // SAFETY: by contract.
        unsafe { tell_file(dirfd, path, follow) };
    }
}

/// What an open file is has changed, or is about to.
#[inline]
pub fn descriptor_changes(fd: c_int) {
    if ctx::is_outside() && fd >= 0 {
        tell(FILE, fd, b"");
    }
}

/// A path is about to be opened. Whether it has to be looked at again once it is open: it may be made only then.
///
/// # Safety
/// That of [`user::path`].
#[inline]
pub unsafe fn opens(dirfd: c_int, path: *const c_char, flags: c_int) -> bool {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_TRUNC | libc::O_CREAT) != 0;
    // SAFETY: by contract.
    ctx::is_outside()
        && writes
        && flags & libc::O_PATH == 0
        && unsafe { !tell_file(dirfd, path, flags & libc::O_NOFOLLOW == 0) && flags & libc::O_CREAT != 0 }
}

/// Whether there was a file to tell of.
#[cold]
#[inline(never)]
unsafe fn tell_file(dirfd: c_int, path: *const c_char, follow: bool) -> bool {
    let no = if follow { 0 } else { libc::O_NOFOLLOW };
    // SAFETY: the kernel checks the pointer.
    let fd = unsafe { sys::open_at(dirfd, path, libc::O_PATH | libc::O_CLOEXEC | no) };
    fd.as_ref().inspect(|fd| tell(FILE, fd.0, b"")).is_some()
}

#[cold]
#[inline(never)]
unsafe fn tell_name(dirfd: c_int, path: *const c_char, moves: bool) {
    let told = || {
        // SAFETY: by contract.
        let (parent, name) = monarch_abi::resolve::split_named(unsafe { user::path(path)? })?;
        let mut dir = PathBuffer::front();
        dir.append(if parent.is_empty() { b"." } else { parent })?;
        // SAFETY: a path of ours.
        let fd = unsafe { sys::open_at(dirfd, dir.c_str()?.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) }?;
        tell(if moves { MOVED } else { NAME }, fd.0, name);
        Some(())
    };
    let _ = told();
}

/// Tells the agent, if it wants to know: returns when it has taken it in.
#[cold]
#[inline(never)]
fn tell(kind: u8, fd: c_int, name: &[u8]) {
    let now = sys::coarse_ms() as u32 | 1;
    let looked = LOOKED_MS.load(Ordering::Acquire);
    if looked == 0 || now.wrapping_sub(looked) >= LOOK_MS {
        if say(HELLO, None, b"").is_none() {
            DEVICES.iter().for_each(|d| d.store(0, Ordering::Relaxed));
        }
        LOOKED_MS.store(now, Ordering::Release);
    }
    let Some(st) = sys::fstat(fd) else { return };
    if DEVICES.iter().any(|d| d.load(Ordering::Relaxed) == st.st_dev && st.st_dev != 0) && name.len() <= NAME_MAX {
        let _ = say(kind, Some(fd), name);
    }
}

/// One message and its reply, which says on which devices roots lie.
fn say(kind: u8, fd: Option<c_int>, name: &[u8]) -> Option<()> {
    let socket = connect()?;
    let mut message = [0u8; MESSAGE_MAX];
    let len = 2 + name.len();
    for (to, from) in message.iter_mut().zip([kind, name.len() as u8].iter().chain(name)) {
        *to = *from;
    }
    send(&socket, message.get(..len)?, fd)?;
    let mut reply = [0u8; REPLY_MAX];
    let mut got = 0;
    loop {
        let room = reply.get_mut(got..)?;
        let n = again(|| {
            // SAFETY: the buffer is as long as said.
            unsafe { call(libc::SYS_read, [socket.0 as usize, room.as_mut_ptr() as usize, room.len(), 0, 0, 0]) }
        });
        got += usize::try_from(n).ok().filter(|&n| n > 0)?;
        let devices = usize::from(*reply.first()?);
        if let Some(told) = reply.get(1..1 + 8 * devices).filter(|told| told.len() < got) {
            let told = told.as_chunks::<8>().0;
            let all = told.iter().map(|dev| u64::from_le_bytes(*dev)).chain(core::iter::repeat(0));
            DEVICES.iter().zip(all).for_each(|(to, dev)| to.store(dev, Ordering::Relaxed));
            return Some(());
        }
    }
}

/// A connection to the agent: nobody else gets a descriptor.
fn connect() -> Option<Fd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer; gives a descriptor.
    let fd = unsafe { call(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0]) };
    let socket = Fd(c_int::try_from(fd).ok().filter(|&fd| fd >= 0)?);
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let name = SOCKET.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
    for (to, from) in address.sun_path.iter_mut().skip(1).zip(name) {
        *to = from as c_char;
    }
    let len = core::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + SOCKET_NAME_LEN;
    // An agent that is overrun or stopped holds nobody up for long.
    let patience = libc::timeval { tv_sec: PATIENCE_MS as i64 / 1000, tv_usec: 0 };
    let size = size_of::<libc::timeval>();
    for which in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let p = &raw const patience as usize;
        // SAFETY: the value outlives the call.
        unsafe {
            call(libc::SYS_setsockopt, [socket.0 as usize, libc::SOL_SOCKET as usize, which as usize, p, size, 0])
        };
    }
    let p = &raw const address as usize;
    // SAFETY: the address outlives the call.
    if again(|| unsafe { call(libc::SYS_connect, [socket.0 as usize, p, len, 0, 0, 0]) }) != 0 {
        return None;
    }
    let mut peer = MaybeUninit::<libc::ucred>::zeroed();
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let (p, n) = (peer.as_mut_ptr() as usize, &raw mut size as usize);
    let what = [socket.0 as usize, libc::SOL_SOCKET as usize, libc::SO_PEERCRED as usize, p, n, 0];
    // SAFETY: the buffer is as long as said; zero is a value of every field.
    let uid = unsafe { (call(libc::SYS_getsockopt, what) == 0).then(|| peer.assume_init().uid) };
    (uid? == AGENT.load(Ordering::Relaxed)).then_some(socket)
}

/// sendmsg(2) with a descriptor beside the first byte.
fn send(socket: &Fd, message: &[u8], fd: Option<c_int>) -> Option<()> {
    #[repr(C)]
    struct Beside {
        header: libc::cmsghdr,
        fd: c_int,
    }
    // SAFETY: zero is a value of every field.
    let (mut beside, mut header) = unsafe { core::mem::zeroed::<(Beside, libc::msghdr)>() };
    let mut bytes = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut bytes, 1);
    if let Some(fd) = fd {
        beside.header.cmsg_len = core::mem::offset_of!(Beside, fd) + size_of::<c_int>();
        (beside.header.cmsg_level, beside.header.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        beside.fd = fd;
        (header.msg_control, header.msg_controllen) = ((&raw mut beside).cast(), size_of::<Beside>());
    }
    let what = [socket.0 as usize, &raw const header as usize, libc::MSG_NOSIGNAL as usize, 0, 0, 0];
    // SAFETY: all that the header names outlives the call.
    let sent = again(|| unsafe { call(libc::SYS_sendmsg, what) });
    (usize::try_from(sent) == Ok(message.len())).then_some(())
}

/// A call that a signal interrupts is made again.
fn again(mut call: impl FnMut() -> isize) -> isize {
    loop {
        let done = call();
        if done != -libc::EINTR as isize {
            return done;
        }
    }
}
