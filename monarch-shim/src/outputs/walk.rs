//! Where a path leads with what is pending: component by component, as the kernel walks.
//!
//! The kernel follows the links of the PFS. One of them may lead to a link that is not published,
//! to one that the job has removed, or to one that it has replaced: the kernel's walk ends
//! elsewhere then.

use super::entry::{self, Entry};
use super::kernel;
use super::roots::{self, Root, is_same};
use crate::descriptor_names::is_below_proc;
use crate::descriptor_path::DELETED;
use monarch_abi::mem::PathBuffer;
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::Ctx;
use monarch_guest::sys;

/// Most symbolic links that a path may go through, as in the kernel.
pub const MAX_LINKS: usize = 40;

/// Where a path leads.
pub struct Walked {
    /// The absolute path there. What stands behind a missing or removed name is left as it was, but
    /// for `..`.
    pub path: Absolute,
    /// Whether a link that is not published, or a name that is removed, was on the way: the kernel
    /// walks elsewhere.
    pub by_overlay: bool,
    /// Whether the way led through more than one output root.
    pub by_other_root: bool,
    /// Whether the path is the name of an open directory (`/proc/self/fd/N`) that the job has
    /// removed.
    pub is_held: bool,
}

/// A name in place of `..` behind what is no directory. The kernel says what is wrong with the path
/// before it looks at that.
const NOWHERE: &[u8] = b".monarch-nowhere";

/// What was on the way so far.
#[derive(Default)]
struct Way {
    by_overlay: bool,
    by_other_root: bool,
    first: Option<Root>,
}

impl Way {
    /// An output root is on the way.
    fn meets(&mut self, root: &Root) {
        let first = *self.first.get_or_insert(*root);
        self.by_other_root |= !is_same(&first, root);
    }
}

/// What is at a path on the way.
enum Step {
    /// Something that is no link, or is not followed.
    On,
    /// A link with this target.
    Link(PathBuffer),
    /// Nothing, or what has no names below it.
    End,
}

/// Follows an absolute path; a link in the last component only with `follow`. `None` where it
/// cannot be followed: the kernel says why.
#[cold]
#[inline(never)]
pub fn walk(ctx: &Ctx, path: &[u8], follow: bool) -> Option<Walked> {
    let (mut real, mut rest) = (PathBuffer::front(), PathBuffer::front());
    rest.append(path)?;
    let (mut at, mut links, mut way) = (0, 0, Way::default());
    let (mut is_over, mut is_held) = (false, false);
    while let Some((name, end)) = component(rest.get(), at) {
        let behind = rest.get().get(end..)?;
        at = end;
        if name == b"." {
            continue;
        }
        is_held = false;
        let name = match name {
            b".." if is_directory(&mut real) => {
                real = parent(&real)?;
                continue;
            }
            b".." => {
                is_over = true;
                NOWHERE
            }
            name => name,
        };
        real.append(b"/")?;
        real.append(name)?;
        let step = if is_over { Step::End } else { step(ctx, &mut real, follow || !behind.is_empty(), &mut way)? };
        match step {
            Step::On => {}
            Step::Link(_) if behind.is_empty() && roots::at(ctx, real.get()).is_none() && is_open_file(real.get()) => {
                return None;
            }
            Step::Link(target) => {
                links += 1;
                if links > MAX_LINKS {
                    return None;
                }
                match removed_by_name(ctx, &mut real, target.get()) {
                    None => {}
                    Some(RemovedBy::Job) => {
                        let mut next = PathBuffer::front();
                        next.append(behind)?;
                        (real, rest, at, is_held) = (target, next, 0, true);
                        continue;
                    }
                    Some(RemovedBy::Pfs) => return None,
                }
                real = if target.get().first() == Some(&b'/') { PathBuffer::front() } else { parent(&real)? };
                let mut next = target;
                next.append(behind)?;
                (rest, at) = (next, 0);
            }
            Step::End => {
                while let Some((name, end)) = component(rest.get(), at) {
                    if name != b"." {
                        real.append(b"/")?;
                        real.append(if name == b".." { NOWHERE } else { name })?;
                    }
                    at = end;
                }
            }
        }
    }
    if real.get().is_empty() {
        real.append(b"/")?;
    }
    Some(Walked { path: Absolute(real), by_overlay: way.by_overlay, by_other_root: way.by_other_root, is_held })
}

/// How an open directory was removed.
enum RemovedBy {
    /// The job has removed it, and the PFS still has it.
    Job,
    /// The PFS has it no more: the kernel alone knows what is open.
    Pfs,
}

/// How the directory was removed that has the name of a descriptor (or `/proc/self/cwd`) with this
/// target; `None` if it was not, or for other links.
fn removed_by_name(ctx: &Ctx, name: &mut PathBuffer, target: &[u8]) -> Option<RemovedBy> {
    let is_gone = target.ends_with(DELETED);
    if roots::at(ctx, name.get()).is_some() || roots::at(ctx, target).is_none() || !is_below_proc(name.get()) {
        return None;
    }
    // (Names may end like that, too.)
    if is_gone && kernel::stat_at(libc::AT_FDCWD, name.c_str()?, 0).is_ok_and(|st| st.st_nlink == 0) {
        return Some(RemovedBy::Pfs);
    }
    let (root, below) = roots::at(ctx, target)?;
    let rel = below.strip_prefix(b"/").filter(|rel| !rel.is_empty())?;
    matches!(entry::read(&root, rel), Ok(Entry::RemovedDir)).then_some(RemovedBy::Job)
}

/// Whether a path that was followed is a directory's: nothing else has a directory above it.
fn is_directory(real: &mut PathBuffer) -> bool {
    let is_dir = |st: libc::stat64| st.st_mode & libc::S_IFMT == libc::S_IFDIR;
    real.get().is_empty()
        || real.c_str().and_then(|real| kernel::stat_at(libc::AT_FDCWD, real, 0).ok()).is_some_and(is_dir)
}

/// The component of a path that begins at or behind a place, and where it ends.
fn component(path: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let begin = at + path.get(at..)?.iter().position(|&c| c != b'/')?;
    let len = path.get(begin..)?.iter().position(|&c| c == b'/');
    let end = len.map_or(path.len(), |len| begin + len);
    Some((path.get(begin..end)?, end))
}

/// The directory of a path; that of the root directory is itself.
fn parent(real: &PathBuffer) -> Option<PathBuffer> {
    let end = real.get().iter().rposition(|&c| c == b'/').unwrap_or(0);
    let mut up = PathBuffer::front();
    up.append(real.get().get(..end)?)?;
    Some(up)
}

#[inline(never)]
fn step(ctx: &Ctx, real: &mut PathBuffer, follow: bool, way: &mut Way) -> Option<Step> {
    if let Some((root, below)) = roots::at(ctx, real.get())
        && let Some(rel) = below.strip_prefix(b"/").filter(|rel| !rel.is_empty())
    {
        way.meets(&root);
        match entry::read(&root, rel).ok()? {
            Entry::Symlink(_) if !follow => return Some(Step::On),
            Entry::Symlink(target) => {
                way.by_overlay = true;
                return Some(Step::Link(target));
            }
            Entry::Removed | Entry::RemovedDir => {
                way.by_overlay = true;
                return Some(Step::End);
            }
            Entry::File(_) => return Some(Step::End),
            Entry::Directory => return Some(Step::On),
            Entry::Nothing | Entry::Clean(_) => {}
        }
    }
    if !follow {
        return Some(Step::On);
    }
    match kernel::read_link(real.c_str()?) {
        Ok(target) => Some(Step::Link(target)),
        Err(libc::EINVAL) => Some(Step::On),
        Err(libc::ENOENT | libc::ENOTDIR) => Some(Step::End),
        Err(_) => None,
    }
}

/// Whether a path is the name of an open file (`/proc/self/fd/N`), which the kernel follows to the
/// file itself, whatever has its name by now.
pub fn is_open_file(path: &[u8]) -> bool {
    is_below_proc(path) && sys::stat_bytes(path, 0).is_none_or(|st| st.st_mode & libc::S_IFMT != libc::S_IFDIR)
}
