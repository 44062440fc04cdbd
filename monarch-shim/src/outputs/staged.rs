//! Opening staged files, while the agent may publish them.

use super::answer::Result;
use super::barrier;
use super::create::NOT_PASSED_ON;
use super::descriptors;
use super::journal::{About, Journal};
use super::kernel;
use super::place::Place;
use super::roots::Root;
use super::spare;
use super::tree::{self, Entry};
use core::ffi::c_int;
use monarch_abi::outputs::names::Staged;
use monarch_abi::outputs::record::Op;
use monarch_guest::sys::{self, Fd};

/// Opens a staged file. `O_NONBLOCK` is set afterwards: with it an open fails while the agent holds
/// a lease for its copy.
pub fn open_data(root: &Root, file: &Staged, flags: c_int) -> Result<Fd> {
    let mut path = root.data(&file.name()).ok_or(libc::ENAMETOOLONG)?;
    let open_flags = flags & !NOT_PASSED_ON & !libc::O_NONBLOCK;
    let fd = kernel::open(path.c_str().ok_or(libc::ENAMETOOLONG)?, open_flags, 0)?;
    if flags & libc::O_NONBLOCK != 0
        && let Some(now) = sys::fcntl(fd.0, libc::F_GETFL, 0)
    {
        let _ = sys::fcntl(fd.0, libc::F_SETFL, now | libc::O_NONBLOCK);
    }
    Ok(fd)
}

/// [`open_data`] for a descriptor that the application never sees.
fn open_own_data(root: &Root, file: &Staged, flags: c_int) -> Result<Fd> {
    let mut path = root.data(&file.name()).ok_or(libc::ENAMETOOLONG)?;
    spare::open_own(path.c_str().ok_or(libc::ENAMETOOLONG)?, flags)
}

/// Whether some process has a staged file open for writing.
pub fn is_written(root: &Root, file: &Staged) -> bool {
    open_own_data(root, file, libc::O_RDONLY).is_ok_and(|fd| kernel::has_writer(fd.0))
}

/// Locks the journal when the agent is not publishing a file: what is written to it after that
/// would be published as another file, with an inode that `stat` has never told. The agent ends
/// soon; where the PFS does not answer, the job does not wait for it.
pub fn lock_unpublished<'a>(root: &'a Root, file: &Staged) -> Result<Journal<'a>> {
    let journal = Journal::lock(root)?;
    if !root.state().is_publishing(file.id) {
        return Ok(journal);
    }
    drop(journal);
    barrier::wait_until_published(root, file.id);
    Journal::lock(root)
}

/// Opens a pending file for writing, so that the agent does not publish it; `None` if it is no
/// longer pending. The caller appends the record of the close.
pub fn hold(place: &Place, file: &Staged) -> Result<Option<Fd>> {
    enter(place, file, |root| open_own_data(root, file, libc::O_WRONLY))
}

/// Opens a pending file again for the application; `None` if it is no longer pending.
pub fn reopen(place: &Place, file: &Staged, flags: c_int) -> Result<Option<Fd>> {
    enter(place, file, |root| open_data(root, file, flags))
}

fn enter(place: &Place, file: &Staged, open: impl FnOnce(&Root) -> Result<Fd>) -> Result<Option<Fd>> {
    let root = &place.root;
    let journal = lock_unpublished(root, file)?;
    if !matches!(tree::read(root, place.rel())?, Entry::File(now) if now.id == file.id) {
        return Ok(None);
    }
    let fd = open(root)?;
    let about = About { id: file.id, flags: descriptors::watch(fd.0), ..About::default() };
    journal.append(Op::Open, about, place.rel(), &file.name())?;
    Ok(Some(fd))
}
