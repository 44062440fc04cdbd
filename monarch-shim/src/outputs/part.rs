//! Part files: hidden files on the PFS that stand for files which are being staged.

use super::began::{self, Began};
use super::kernel::{self, Errno};
use super::place::Place;
use crate::descriptor_path::real_path;
use core::ffi::CStr;
use core::sync::atomic::Ordering;
use monarch_abi::outputs::making::Making;
use monarch_abi::outputs::names;
use monarch_guest::absolute::Absolute;
use monarch_guest::sys::{self, Fd};

/// How often a part file gets another number when its name is taken, by a staging directory that
/// was restored from a backup.
const MAX_PART_TRIES: usize = 8;

/// A part file, which is removed again unless it is kept. It is open, so that the kernel knows
/// where it lies: its directory may be renamed, and of a directory that is removed the agent moves
/// part files into the output root.
pub struct Part {
    pub id: u64,
    /// Where it was made.
    path: Absolute,
    pub fd: Fd,
    pub is_kept: bool,
}

impl Part {
    /// Where it was made.
    pub fn path(&mut self) -> Option<&CStr> {
        self.path.c_str()
    }

    #[cold]
    #[inline(never)]
    fn remove(&mut self) {
        for _ in 0..MAX_PART_TRIES {
            // (Where the kernel tells no paths, it lies where it was made.)
            let now = real_path(self.fd.0);
            let is_known = now.is_some();
            let path = now.map(Absolute);
            let unlink = |path: &mut Absolute| path.c_str().map_or(Ok(()), |path| kernel::unlink(path, 0));
            let removed = path.map_or_else(|| unlink(&mut self.path), |mut now| unlink(&mut now));
            if !is_known || removed != Err(libc::ENOENT) {
                return;
            }
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_kept {
            self.remove();
        }
    }
}

/// A part file that is being made: what the agent removes if this process is killed meanwhile.
pub struct UnderWay(Option<&'static Making>);

impl UnderWay {
    /// Takes a slot, if one is free.
    pub fn begin(place: &Place) -> Self {
        let Began { pid, ticks } = began::this_process(&place.root.ctx);
        Self(place.root.state().making.iter().find(|slot| slot.claim(pid, ticks, place.parent())))
    }

    fn part_of(&self, id: u64) {
        self.0.iter().for_each(|slot| slot.begin(id));
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.iter().for_each(|slot| slot.free());
    }
}

/// User and group of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    pub const fn of(st: &libc::stat64) -> Self {
        Self { uid: st.st_uid, gid: st.st_gid }
    }
}

/// Makes the part file in the directory of the place, with the attributes that the file will have:
/// with `owner` those of the file that it replaces, without it those of a new one. `None` if all
/// names that it could have are taken.
pub fn make(
    place: &Place,
    mode: u32,
    owner: Option<Owner>,
    under_way: &UnderWay,
) -> Result<Option<(Part, libc::stat64)>, Errno> {
    let state = place.root.state();
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    for _ in 0..MAX_PART_TRIES {
        let id = state.next_id.fetch_add(1, Ordering::AcqRel);
        under_way.part_of(id);
        let mut path = place.parent_on_pfs()?;
        path.append(&names::part_name(state.instance.load(Ordering::Relaxed), id)).ok_or(libc::ENAMETOOLONG)?;
        let fd = match kernel::open(path.c_str().ok_or(libc::ENAMETOOLONG)?, flags, mode) {
            Ok(fd) => fd,
            Err(libc::EEXIST) => continue,
            Err(e) => return Err(e),
        };
        let part = Part { id, path, fd, is_kept: false };
        let mut st = sys::fstat(part.fd.0).ok_or(libc::EIO)?;
        if let Some(owner) = owner {
            let is_other = Owner::of(&st) != owner;
            if is_other {
                kernel::set_owner(part.fd.0, owner.uid, owner.gid)?;
            }
            // (A change of the owner takes bits away.)
            if is_other || st.st_mode & 0o7777 != mode {
                kernel::fchmod(part.fd.0, mode)?;
            }
            (st.st_uid, st.st_gid, st.st_mode) = (owner.uid, owner.gid, st.st_mode & libc::S_IFMT | mode);
        }
        return Ok(Some((part, st)));
    }
    Ok(None)
}
