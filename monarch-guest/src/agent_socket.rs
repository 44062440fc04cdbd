//! Talking to the agent over a stream socket, by bare system calls with a deadline.

use crate::sys::{self, Fd, call};
use core::ffi::{c_char, c_int};

/// Bytes of the longest path of a socket.
pub const PATH_MAX: usize = 107;

/// Connects to the socket at a path of [`PATH_MAX`] bytes at most, until a time of the coarse
/// clock.
pub fn connect(path: impl Iterator<Item = u8>, deadline: u64) -> Option<Fd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer; gives a descriptor.
    let fd = unsafe { call(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0]) };
    let socket = Fd(c_int::try_from(fd).ok().filter(|&fd| fd >= 0)?);
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let mut len = 0;
    for (to, from) in address.sun_path.iter_mut().take(PATH_MAX).zip(path) {
        *to = from as c_char;
        len += 1;
    }
    let len = core::mem::offset_of!(libc::sockaddr_un, sun_path) + len + 1;
    let what = [socket.0 as usize, &raw const address as usize, len, 0, 0, 0];
    // SAFETY: the address outlives the call.
    (within(&socket, deadline, || unsafe { call(libc::SYS_connect, what) }) == 0).then_some(socket)
}

/// Sends all bytes; whether that worked.
pub fn send(socket: &Fd, deadline: u64, bytes: &[u8]) -> bool {
    let what = [socket.0 as usize, bytes.as_ptr() as usize, bytes.len(), libc::MSG_NOSIGNAL as usize, 0, 0];
    // SAFETY: the message is as long as said.
    let sent = within(socket, deadline, || unsafe { call(libc::SYS_sendto, what) });
    usize::try_from(sent) == Ok(bytes.len())
}

/// Reads what has come; what read(2) gave.
pub fn receive(socket: &Fd, deadline: u64, room: &mut [u8]) -> isize {
    let what = [socket.0 as usize, room.as_mut_ptr() as usize, room.len(), 0, 0, 0];
    // SAFETY: the buffer is as long as said.
    within(socket, deadline, || unsafe { call(libc::SYS_read, what) })
}

/// Reads until the room is full; whether it is.
pub fn receive_all(socket: &Fd, deadline: u64, mut room: &mut [u8]) -> bool {
    while !room.is_empty() {
        let got = receive(socket, deadline, room);
        let Some(rest) = usize::try_from(got).ok().filter(|&n| n > 0).and_then(|n| room.get_mut(n..)) else {
            return false;
        };
        room = rest;
    }
    true
}

/// A call on a socket that blocks until the deadline at most. A signal that interrupts it does not
/// make it longer.
fn within(socket: &Fd, deadline: u64, mut call_once: impl FnMut() -> isize) -> isize {
    loop {
        let left = deadline.saturating_sub(sys::coarse_ms());
        if left == 0 {
            return -libc::EAGAIN as isize;
        }
        let patience = libc::timeval { tv_sec: left as i64 / 1000, tv_usec: left as i64 % 1000 * 1000 };
        let (p, size) = (&raw const patience as usize, size_of::<libc::timeval>());
        for which in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let what = [socket.0 as usize, libc::SOL_SOCKET as usize, which as usize, p, size, 0];
            // SAFETY: the value outlives the call.
            unsafe { call(libc::SYS_setsockopt, what) };
        }
        let done = call_once();
        if done != -libc::EINTR as isize {
            return done;
        }
    }
}
