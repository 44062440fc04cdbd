//! Descriptors of staged files.
//!
//! A bit for each number ([`watched`]) says that a staged file may have been opened for writing
//! there, or that a copy was mapped for it ([`crate::own_maps`]): a hint, which spares `close` a
//! question to the kernel. What a descriptor is, the kernel says: a regular
//! file on the device of a staging directory with [`STAGED_MODE`], whose path holds its name.

use super::journal::{About, Journal};
use super::kernel;
use super::roots::{self, Root};
use super::{entries, subtree};
use crate::descriptor_path::path_even_if_removed;
use crate::watched;
use core::ffi::c_int;
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::names::Staged;
use monarch_abi::outputs::record::{Op, flag};
use monarch_abi::outputs::{DATA, STAGED_MODE};
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::{errno, process, sys};

/// Whether any descriptor of this process may be of a staged file.
#[inline]
pub fn any() -> bool {
    watched::any()
}

/// Whether a descriptor may be of a staged file that was opened for writing.
#[inline]
pub fn may_be_staged(fd: c_int) -> bool {
    watched::is(fd)
}

/// What the record of an open says of its descriptor: whether a record will tell of the close.
pub fn watch(fd: c_int) -> u16 {
    if watched::can_be(fd) { 0 } else { flag::UNWATCHED }
}

/// Whether this process has a file of the PFS open for writing.
pub fn is_written_here(file: &libc::stat64) -> bool {
    let Ok(dir) = entries::open_dir(Absolute::join(b"/proc/self/fd", b"")) else { return false };
    let writes = |fd: c_int| {
        let flags = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or_default();
        let is_writer = flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
        is_writer && sys::fstat_local(fd).is_some_and(|st| (st.st_dev, st.st_ino) == (file.st_dev, file.st_ino))
    };
    let found = entries::each(dir.0, |name| {
        let fd = core::str::from_utf8(name.name).ok().and_then(|name| name.parse().ok());
        // Any error ends the search.
        if fd.is_some_and(writes) { Err(libc::EEXIST) } else { Ok(()) }
    });
    found.is_err()
}

/// A staged file was opened for writing.
pub fn opened(fd: c_int) {
    watched::begin(fd);
}

/// A descriptor was duplicated.
#[inline]
pub fn duplicated(old: c_int, new: c_int) {
    if new >= 0 && may_be_staged(old) {
        opened(new);
    }
}

/// Calls `visit` for each descriptor from `first` to `last` that may be of a staged file.
pub fn each_marked(first: c_int, last: c_int, visit: impl FnMut(c_int)) {
    watched::each(first, last, visit);
}

/// The staged file that an open file is.
pub fn staged(ctx: &Ctx, fd: c_int) -> Option<(Root, Staged)> {
    is_marked_mode(ctx, &sys::fstat_local(fd)?).then(|| named(ctx, fd))?
}

/// Whether these are attributes that staged files have.
pub fn is_marked_mode(ctx: &Ctx, st: &libc::stat64) -> bool {
    st.st_mode & (libc::S_IFMT | STAGED_MODE) == libc::S_IFREG | STAGED_MODE && roots::staged_on_device(ctx, st.st_dev)
}

/// The staged file of a descriptor with such attributes, by its path.
pub fn named(ctx: &Ctx, fd: c_int) -> Option<(Root, Staged)> {
    let mut path = PathBuffer::front();
    // SAFETY: as many bytes are written as it says.
    unsafe { path.fill(|out| path_even_if_removed(fd, out)) }?;
    let (root, rest) = roots::of_staged(ctx, path.get())?;
    let name = rest.strip_prefix(b"/")?.strip_prefix(DATA.as_bytes())?.strip_prefix(b"/")?;
    Some((root, Staged::parse(name)?))
}

/// The context, in a process with other rights, too: it has its descriptors.
fn context() -> Option<Ctx> {
    ctx::for_outputs().or_else(ctx::for_outputs_of_others)
}

/// A staged file whose descriptor is being closed.
pub struct Closing {
    root: Root,
    file: Staged,
}

/// Before a descriptor is closed that may be of a staged file.
#[cold]
#[inline(never)]
pub fn closing(fd: c_int) -> Option<Closing> {
    // A child of `vfork` shares this memory, and its descriptors are its own.
    if process::number() != 0 && process::number() != sys::pid() {
        return None;
    }
    let saved = errno::errno();
    let file = context().and_then(|ctx| {
        let writes = sys::fcntl(fd, libc::F_GETFL, 0)? & libc::O_ACCMODE != libc::O_RDONLY;
        if writes && !has_duplicate(fd) { staged(&ctx, fd) } else { None }
    });
    watched::end(fd);
    crate::own_maps::closed(fd);
    errno::set_errno(saved);
    file.map(|(root, file)| Closing { root, file })
}

/// Whether this process has the same file open by another number, too: it has not closed it then.
fn has_duplicate(fd: c_int) -> bool {
    let Some(this) = sys::fstat_local(fd) else { return false };
    let mut has = false;
    each_marked(0, c_int::MAX, |other| {
        has |= other != fd
            && sys::fstat_local(other).is_some_and(|st| (st.st_dev, st.st_ino) == (this.st_dev, this.st_ino));
    });
    has
}

impl Closing {
    /// After it was closed.
    pub fn done(self) {
        let saved = errno::errno();
        if let Ok(journal) = Journal::lock(&self.root) {
            let _ = journal.append(Op::Close, About { id: self.file.id, ..About::default() }, b"", b"");
        }
        errno::set_errno(saved);
    }
}

/// Closes a descriptor by `call`.
#[inline]
pub fn close<T>(fd: c_int, call: impl FnOnce() -> T) -> T {
    if !may_be_staged(fd) {
        return call();
    }
    let closing = closing(fd);
    let result = call();
    if let Some(closing) = closing {
        closing.done();
    }
    result
}

/// This process is about to become another program. What is to be closed then is closed by the
/// kernel; what stays open is that program's, whose end leaves no record. A call that fails leaves
/// all open: the agent finds that out.
pub fn executing() {
    each_marked(0, c_int::MAX, |fd| {
        if let Some(closing) = closing(fd) {
            closing.done();
        }
    });
}

/// This process is about to end in order: what it has open is closed by the kernel.
pub fn ending() {
    each_marked(0, c_int::MAX, |fd| {
        if let Some(closing) = closing(fd) {
            closing.done();
        }
    });
}

/// The path on the PFS of the published file whose clean copy an open file is. (A file that is open
/// for writing is not published.)
#[cold]
#[inline(never)]
pub fn published(fd: c_int) -> Option<Absolute> {
    let saved = errno::errno();
    let path = ctx::for_outputs().and_then(|ctx| {
        let (root, file) = staged(&ctx, fd)?;
        // (One that only names a file changes nothing of it.)
        if sys::fcntl(fd, libc::F_GETFL, 0)? & (libc::O_ACCMODE | libc::O_PATH) != libc::O_RDONLY {
            return None;
        }
        let (rel, true) = subtree::find_file(&root, b"", file.id)? else { return None };
        let mut path = root.on_pfs(rel.get())?;
        let st = kernel::lstat(path.c_str()?).ok()?;
        ((st.st_dev, st.st_ino) == (file.dev, file.ino)).then_some(path)
    });
    errno::set_errno(saved);
    path
}

/// Sets times or mode of a descriptor by `set`. Meanwhile the agent allocates no space for a staged
/// file, which would set its times to now. (`set` may be a function of another library that makes
/// the call by one that is asked about here, too.)
pub fn without_agent(fd: c_int, set: impl FnOnce() -> c_int) -> c_int {
    let saved = errno::errno();
    let staged = context().and_then(|ctx| staged(&ctx, fd));
    let journal = staged.as_ref().and_then(|(root, _)| Journal::lock_soon(root).ok());
    errno::set_errno(saved);
    let result = set();
    let said = errno::errno();
    drop(journal);
    errno::set_errno(said);
    result
}

/// User and group of an open staged file; of any other file, perhaps nothing.
pub fn owner(fd: c_int) -> Option<(u32, u32)> {
    sys::fstat_local(fd).map(|st| (st.st_uid, st.st_gid))
}

/// Attributes of a staged file change by a descriptor: the agent has to know if it has published
/// the file already. `flags` are those of the record.
pub fn attributes_changed(fd: c_int, result: c_int, flags: u16) {
    let saved = errno::errno();
    if result == 0
        && let Some(ctx) = context()
        && let Some((root, file)) = staged(&ctx, fd)
        && let Ok(journal) = Journal::lock(&root)
    {
        let _ = journal.append(Op::Attributes, About { id: file.id, flags, ..About::default() }, b"", b"");
    }
    errno::set_errno(saved);
}
