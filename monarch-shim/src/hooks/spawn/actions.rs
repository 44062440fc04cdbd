//! File actions of `posix_spawn` below an output root.
//!
//! The child opens what the PFS has. So this process opens in its place what is staged, or to be
//! staged, and the action becomes a duplication. It does so as long as all actions before that one
//! are sure to succeed: an action that fails ends the child, and what follows it must not be made.
//! What the child still opens itself is published first.

use crate::next::is_glibc;
use crate::outputs;
use core::ffi::{c_char, c_int, c_short, c_void};
use monarch_guest::{errno, sys, user};

const CWD: c_int = libc::AT_FDCWD;

/// `posix_spawn_file_actions_t` of the GNU C library.
#[repr(C)]
#[derive(Clone, Copy)]
struct Actions {
    room: c_int,
    len: c_int,
    list: *mut Action,
    reserved: [c_int; 16],
}

/// `struct __spawn_action` of the GNU C library, with the parts of those actions that are looked
/// at: a descriptor, and what else there is.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    kind: c_int,
    unused: c_int,
    fd: c_int,
    /// Of a duplication: the new number.
    new: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
}

const CLOSE: c_int = 0;
const DUPLICATE: c_int = 1;
const OPEN: c_int = 2;
/// By path, and by descriptor.
const CHANGE_DIRECTORY: [c_int; 2] = [3, 4];

impl Action {
    /// Whether a duplicate of what it opens is the same for the child.
    const fn may_be_duplicated(&self) -> bool {
        self.flags & libc::O_CLOEXEC == 0
    }

    /// Whether it names a descriptor.
    const fn names(&self, fd: c_int) -> bool {
        self.fd == fd || self.kind == DUPLICATE && self.new == fd
    }

    /// Highest descriptor that it names.
    fn highest(&self) -> c_int {
        if self.kind == DUPLICATE { self.fd.max(self.new) } else { self.fd }
    }

    /// The number that it opens.
    const fn opened(&self) -> Option<c_int> {
        match self.kind {
            OPEN => Some(self.fd),
            DUPLICATE => Some(self.new),
            _ => None,
        }
    }
}

/// Actions as a child gets them. Descriptors that were opened for it are closed with this value.
pub(in crate::hooks) struct Spawning {
    given: *const c_void,
    /// The same with those that were replaced, if there are any.
    own: Option<Actions>,
}

impl Spawning {
    /// Opens what is to be staged, and publishes what the child opens itself. An error is that of
    /// an action.
    ///
    /// # Safety
    /// The contract of posix_spawn(3).
    pub(in crate::hooks) unsafe fn begin(given: *const c_void, attributes: *const c_void) -> Result<Self, c_int> {
        let mut spawning = Self { given, own: None };
        if outputs::has_roots() && is_glibc() {
            // SAFETY: by contract.
            unsafe { spawning.prepare(attributes)? };
        }
        Ok(spawning)
    }

    /// What the child gets.
    pub(in crate::hooks) fn actions(&self) -> *const c_void {
        self.own.as_ref().map_or(self.given, |own| (&raw const *own).cast())
    }

    unsafe fn prepare(&mut self, attributes: *const c_void) -> Result<(), c_int> {
        // SAFETY: tested before they are read.
        let list = unsafe { list(self.given) };
        let floor = list.iter().map(Action::highest).max().unwrap_or_default().saturating_add(1);
        let (mut is_sure, mut is_here) = (!changes_user(attributes), true);
        for (n, action) in list.iter().enumerate() {
            match action.kind {
                OPEN => {
                    // SAFETY: an action of the application.
                    is_sure = unsafe { self.prepare_open(n, floor, is_sure, is_here)? };
                }
                CLOSE => {}
                DUPLICATE => {
                    let before = list.get(..n).unwrap_or_default();
                    is_sure &= before.iter().any(|earlier| earlier.opened() == Some(action.fd))
                        || sys::fcntl(action.fd, libc::F_GETFD, 0).is_some();
                }
                kind => {
                    is_sure = false;
                    is_here &= !CHANGE_DIRECTORY.contains(&kind);
                }
            }
        }
        Ok(())
    }

    /// Prepares an action that opens a file; whether it is sure to succeed. `is_sure`: all before
    /// it are. `is_here`: the child's working directory is that of this process.
    unsafe fn prepare_open(&mut self, n: usize, floor: c_int, is_sure: bool, is_here: bool) -> Result<bool, c_int> {
        // SAFETY: tested before they are read.
        let list = unsafe { list(self.given) };
        let Some(&action) = list.get(n) else { return Ok(false) };
        // SAFETY: an action of the application.
        unsafe {
            if is_sure && action.may_be_duplicated() {
                match outputs::open_beyond(CWD, action.path, action.flags | libc::O_CLOEXEC, action.mode) {
                    Some(fd @ 0..) => return self.replace(n, moved(fd, floor, list)?).map(|()| true),
                    Some(_) => return Err(errno::errno()),
                    None => {}
                }
            }
            let path = user::path(action.path).unwrap_or_default();
            if (is_here || path.first() == Some(&b'/'))
                && outputs::settle_for_child(action.path, action.flags).is_some()
            {
                return Err(errno::errno());
            }
            Ok(is_sure && path == b"/dev/null")
        }
    }

    /// The child duplicates a descriptor in place of an action that opens a file.
    unsafe fn replace(&mut self, n: usize, fd: c_int) -> Result<(), c_int> {
        // SAFETY: a copy of the application's list, as long as that.
        unsafe {
            if self.own.is_none() {
                let mut own = self.given.cast::<Actions>().read();
                let bytes = (own.len as usize).saturating_mul(size_of::<Action>());
                let copy = libc::malloc(bytes).cast::<Action>();
                if copy.is_null() {
                    libc::close(fd);
                    return Err(libc::ENOMEM);
                }
                core::ptr::copy_nonoverlapping(own.list, copy, own.len as usize);
                own.list = copy;
                self.own = Some(own);
            }
            if let Some(own) = &self.own {
                let action = own.list.add(n);
                let new = (*action).fd;
                ((*action).kind, (*action).fd, (*action).new) = (DUPLICATE, fd, new);
            }
        }
        Ok(())
    }
}

impl Drop for Spawning {
    fn drop(&mut self) {
        let Some(own) = &self.own else { return };
        let saved = errno::errno();
        // SAFETY: the list that the application still has, and the copy of it.
        unsafe {
            for (n, given) in list(self.given).iter().enumerate() {
                let now = own.list.add(n).read();
                if given.kind == OPEN && now.kind == DUPLICATE {
                    libc::close(now.fd);
                }
            }
            libc::free(own.list.cast());
        }
        errno::set_errno(saved);
    }
}

/// The application's actions.
unsafe fn list<'a>(actions: *const c_void) -> &'a [Action] {
    // SAFETY: tested before they are read.
    unsafe {
        let Some([actions]) = user::slice(actions.cast::<Actions>(), 1) else { return &[] };
        let len = usize::try_from(actions.len).unwrap_or_default();
        user::slice(actions.list.cast_const(), len).unwrap_or_default()
    }
}

/// The same descriptor with a number that no action names, closed when a program is executed.
unsafe fn moved(fd: c_int, floor: c_int, list: &[Action]) -> Result<c_int, c_int> {
    if !list.iter().any(|action| action.names(fd)) {
        return Ok(fd);
    }
    // SAFETY: a descriptor of this process.
    unsafe {
        let moved = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor);
        let failed = errno::errno();
        libc::close(fd);
        if moved < 0 { Err(failed) } else { Ok(moved) }
    }
}

/// Whether the child opens files as another user than this process.
fn changes_user(attributes: *const c_void) -> bool {
    /// `POSIX_SPAWN_RESETIDS`.
    const RESETS_IDS: c_short = 0x01;
    // SAFETY: tested before it is read: `posix_spawnattr_t` begins with its flags.
    let flags = unsafe { user::slice(attributes.cast::<c_short>(), 1) };
    // SAFETY: plain calls.
    let is_other = || unsafe { libc::geteuid() != libc::getuid() || libc::getegid() != libc::getgid() };
    flags.is_some_and(|flags| flags.iter().any(|flags| flags & RESETS_IDS != 0)) && is_other()
}

const _: () = assert!(size_of::<Action>() == 32 && core::mem::offset_of!(Action, path) == 16);
const _: () = assert!(core::mem::offset_of!(Actions, list) == 8);
