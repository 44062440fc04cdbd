//! Installs the filter in the command's process, and brings its listener to `run`.

use crate::{filter, packets, sys};
use rustix::fd::{AsFd, OwnedFd};
use std::io;

/// First byte of the child's message: the filter is installed.
const INSTALLED: u8 = 1;

/// Where the listener of a filter will arrive.
#[derive(Debug)]
pub struct Trap(OwnedFd);

/// A filter that is not installed yet.
#[derive(Debug)]
pub struct Installer {
    program: Vec<libc::sock_filter>,
    socket: OwnedFd,
}

/// Prepares a filter.
///
/// # Errors
/// The kernel cannot, or this process has no descriptors left.
pub fn prepare() -> io::Result<(Trap, Installer)> {
    let program = filter::program().ok_or(io::ErrorKind::Unsupported)?;
    sys::check()?;
    let (own, socket) = packets::pair()?;
    Ok((Trap(own), Installer { program, socket }))
}

impl Installer {
    /// Installs the filter in this process: a child of the one that has prepared it, between fork
    /// and exec. Async-signal-safe. Where it fails the process runs without.
    pub fn install(&self) {
        // (Nothing can be done about an error: `run` then hears nothing, and says so.)
        let _ = match sys::install(&self.program) {
            Ok(listener) => packets::send(self.socket.as_fd(), &[INSTALLED], &[listener.as_fd()]),
            Err(e) => {
                let [a, b, c, d] = e.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes();
                packets::send(self.socket.as_fd(), &[0, a, b, c, d], &[])
            }
        };
    }
}

impl Trap {
    /// Returns the listener, when the child has made its exec and the installer is dropped.
    ///
    /// # Errors
    /// Why the child could not install the filter.
    pub fn listener(self) -> io::Result<OwnedFd> {
        let mut message = [0; 5];
        let received = packets::receive(&self.0, &mut message)?;
        let (_, mut fds) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
        match (message, fds.pop()) {
            ([INSTALLED, ..], Some(listener)) => Ok(listener),
            ([_, why @ ..], _) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(why))),
        }
    }
}
