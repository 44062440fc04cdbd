//! From (dirfd, path) to a name below an output root.

use super::entry;
use super::kernel::{self, Errno};
use super::roots::{self, Root};
use super::spare;
use super::walk::{is_open_file, walk};
use crate::descriptor_path::path_of_fd;
use core::ffi::c_int;
use core::ops::Range;
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::REMOVED_DIR;
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::Ctx;
use monarch_guest::{cwd, sys};

/// Most symbolic links outside of an output root that are followed one after the other.
const MAX_OUTER_LINKS: usize = 8;

/// A name at or below an output root.
pub struct Place {
    /// The output root.
    pub root: Root,
    /// Its path relative to the root, without odd components; empty for the root itself.
    rel: PathBuffer,
    /// Whether the path ends with a slash or a dot: it can only mean a directory.
    pub is_dir_path: bool,
    /// Whether the PFS has just said that it has no such name.
    pub is_missing: bool,
    /// Whether a link that is not published, or a name that is removed, was on the way: a plain
    /// call by the application's path would go elsewhere.
    pub by_overlay: bool,
    /// Whether the path was the number of a descriptor (`/proc/self/fd/N`): a plain call would
    /// reach the staged file.
    pub is_by_number: bool,
    /// Whether the path is `.`, or the name of a directory that is open and was removed: the
    /// directory itself is meant.
    pub is_held: bool,
    /// Whether a link of another output root may have led here.
    pub by_other_root: bool,
    /// Whether the last look has found that links lead out of the output roots.
    pub leads_out: bool,
}

impl Place {
    /// The place that a path of the application names; `None` if it does not lie below an output
    /// root.
    pub fn find(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Option<Self> {
        match path.first() {
            None => None,
            Some(b'/') => Self::absolute(ctx, path),
            Some(_) => Self::relative(ctx, dirfd, path),
        }
    }

    /// [`Place::find`] for an absolute path.
    pub fn absolute(ctx: &Ctx, path: &[u8]) -> Option<Self> {
        if is_odd(path) {
            return Self::odd(ctx, path, true);
        }
        if let Some((root, rest)) = roots::at(ctx, path) {
            return Self::at(root, rest).map(crossed);
        }
        if !roots::is_behind_known_link(ctx, path) {
            return None;
        }
        Self::behind_links(ctx, libc::AT_FDCWD, path, false)
    }

    /// [`Place::absolute`] for a path with doubled slashes or dots, which `follows` known links.
    #[cold]
    fn odd(ctx: &Ctx, path: &[u8], follows: bool) -> Option<Self> {
        if has_parent_component(path) {
            return Self::by_parent(ctx, path);
        }
        let mut plain = PathBuffer::front();
        plain.append(b"/")?;
        append_plain(&mut plain, path)?;
        let Some((root, rest)) = roots::at(ctx, plain.get()) else {
            let is_behind_link = follows && roots::is_behind_known_link(ctx, plain.get());
            return if is_behind_link { Self::behind_links(ctx, libc::AT_FDCWD, path, false) } else { None };
        };
        let mut place = Self::at(root, rest)?;
        place.is_dir_path = ends_like_dir(path);
        Some(if follows { crossed(place) } else { place })
    }

    /// [`Place::absolute`] by the real path of an output root.
    fn without_links(ctx: &Ctx, path: &[u8]) -> Option<Self> {
        if is_odd(path) {
            return Self::odd(ctx, path, false);
        }
        let (root, rest) = roots::at(ctx, path)?;
        Self::at(root, rest)
    }

    fn relative(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Option<Self> {
        let mut base = PathBuffer::front();
        // SAFETY: as many bytes are written as each says.
        let found = unsafe {
            if dirfd == libc::AT_FDCWD {
                if cwd::is_outside(ctx.map) && !path.starts_with(b"..") {
                    return None;
                }
                base.fill(|out| cwd::get(ctx.map, out))
            } else {
                let st = sys::fstat_local(dirfd)?;
                if st.st_mode & libc::S_IFMT != libc::S_IFDIR || !roots::on_device(ctx, st.st_dev) {
                    return None;
                }
                base.fill(|out| path_of_fd(dirfd, out))
            }
        };
        let mut rest = path;
        if found.is_none() {
            (base, rest) = above_removed(dirfd, path)?;
        }
        while let Some((ups, behind)) = leading_dots(rest) {
            rest = behind;
            if ups {
                let mut up = PathBuffer::front();
                up.append(split(base.get()).0)?;
                base = up;
            }
        }
        base.append(b"/")?;
        base.append(rest)?;
        let mut place = Self::absolute(ctx, base.get())?;
        place.is_held |=
            path.first() == Some(&b'.') && path.split(|&c| c == b'/').all(|part| matches!(part, b"" | b"." | b".."));
        Some(place)
    }

    /// The place below an output root to which symbolic links outside of it lead.
    #[cold]
    pub fn behind_links(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Self> {
        match Self::behind(ctx, dirfd, path, follow)? {
            Behind::Inside(place) => Some(place),
            Behind::Outside(_) => None,
        }
    }

    /// Where symbolic links outside of the output roots lead to one. With `follow` a link in the
    /// last component is followed, too. Asks the kernel, and is called only while something is
    /// pending, or for paths through links that the agent has heard of.
    pub fn behind(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Behind> {
        let mut full = PathBuffer::front();
        if path.first() != Some(&b'/') {
            // (A descriptor of a link leads nowhere.)
            if dirfd != libc::AT_FDCWD && sys::fstat_local(dirfd)?.st_mode & libc::S_IFMT != libc::S_IFDIR {
                return None;
            }
            // SAFETY: as many bytes are written as each says.
            unsafe {
                if dirfd == libc::AT_FDCWD {
                    full.fill(|out| cwd::get(ctx.map, out))?;
                } else {
                    full.fill(|out| path_of_fd(dirfd, out))?;
                }
            }
            full.append(b"/")?;
        }
        full.append(path)?;
        if roots::any_pending(ctx) {
            return walked(ctx, full.get(), follow);
        }
        for _ in 0..MAX_OUTER_LINKS {
            if let Some(place) = Self::without_links(ctx, full.get()) {
                return Some(Behind::Inside(place));
            }
            let mut known = Known::of(full.get())?;
            append_plain(&mut known.real, full.get().get(known.next.clone())?)?;
            let rest = full.get().get(known.next.end..)?;
            let mut whole = PathBuffer::front();
            whole.append(known.real.get())?;
            append_plain(&mut whole, rest)?;
            if !has_parent_component(rest)
                && let Some((root, below)) = roots::at(ctx, whole.get())
            {
                let mut place = Self::at(root, below)?;
                place.is_dir_path = ends_like_dir(full.get());
                return Some(Behind::Inside(place));
            }
            if rest.is_empty() && !follow || is_open_file(known.real.get()) {
                return None;
            }
            let target = kernel::read_link(known.real.c_str()?).ok()?;
            let mut next = PathBuffer::front();
            if target.get().first() != Some(&b'/') {
                next.append(split(known.real.get()).0)?;
                next.append(b"/")?;
            }
            next.append(target.get())?;
            next.append(rest)?;
            full = next;
        }
        None
    }

    /// The place below an output root to which an absolute path leads with what is pending.
    #[cold]
    fn walked(ctx: &Ctx, path: &[u8], follow: bool) -> Option<Self> {
        match walked(ctx, path, follow)? {
            Behind::Inside(place) => Some(place),
            Behind::Outside(_) => None,
        }
    }

    /// A path with `..`: only the kernel knows where that leads, and what is pending.
    #[cold]
    fn by_parent(ctx: &Ctx, path: &[u8]) -> Option<Self> {
        if roots::any_pending(ctx) {
            return Self::walked(ctx, path, false);
        }
        let is_dir_path = ends_like_dir(path);
        let end = path.iter().rposition(|&c| c != b'/')? + 1;
        let path = path.get(..end)?;
        let slash = path.iter().rposition(|&c| c == b'/')?;
        let (parent, name) = (path.get(..=slash)?, path.get(slash + 1..)?);
        let whole = matches!(name, b"." | b"..");
        let mut real = real_path(if whole { path } else { parent })?;
        if !whole {
            real.append(b"/")?;
            real.append(name)?;
        }
        let (root, rest) = roots::at(ctx, real.get())?;
        let mut place = Self::at(root, rest)?;
        place.is_dir_path |= is_dir_path && !whole;
        Some(place)
    }

    /// The place at the rest of a path behind a root. `None` at and below a name by which the
    /// overlay says that a directory is removed: it can say nothing else of that.
    pub fn at(root: Root, rest: &[u8]) -> Option<Self> {
        Self::in_overlay(root, rest).filter(|place| !is_marked(place.rel()))
    }

    /// [`Place::at`] for any name that the overlay has.
    pub fn in_overlay(root: Root, rest: &[u8]) -> Option<Self> {
        let mut rel = PathBuffer::front();
        append_plain(&mut rel, rest)?;
        Some(Self {
            root,
            rel,
            is_dir_path: ends_like_dir(rest),
            is_missing: false,
            by_overlay: false,
            is_by_number: false,
            is_held: false,
            by_other_root: false,
            leads_out: false,
        })
    }

    /// Its path relative to the root.
    pub const fn rel(&self) -> &[u8] {
        self.rel.get()
    }

    /// The last component.
    pub fn name(&self) -> &[u8] {
        split(self.rel()).1
    }

    /// The relative path of its directory.
    pub fn parent(&self) -> &[u8] {
        split(self.rel()).0
    }

    /// Its path on the PFS.
    pub fn on_pfs(&self) -> Result<Absolute, Errno> {
        self.root.on_pfs(self.rel()).ok_or(libc::ENAMETOOLONG)
    }

    /// The same as the application has named it: with a slash at its end, if it can only mean a
    /// directory.
    pub fn as_named(&self) -> Result<Absolute, Errno> {
        let mut path = self.on_pfs()?;
        if self.is_dir_path {
            path.0.append(b"/").ok_or(libc::ENAMETOOLONG)?;
        }
        Ok(path)
    }

    /// Goes on at another place, where a link leads: what only means a directory still does.
    pub fn lead_to(&mut self, next: Self) {
        let is_dir_path = self.is_dir_path || next.is_dir_path;
        let by_other_root = self.by_other_root || next.by_other_root || !roots::is_same(&self.root, &next.root);
        *self = Self { is_dir_path, by_other_root, ..next };
    }

    /// Its path in the overlay.
    pub fn in_tree(&self) -> Result<Absolute, Errno> {
        self.root.in_tree(self.rel()).ok_or(libc::ENAMETOOLONG)
    }

    /// The path of its directory on the PFS.
    pub fn parent_on_pfs(&self) -> Result<Absolute, Errno> {
        self.root.on_pfs(self.parent()).ok_or(libc::ENAMETOOLONG)
    }

    /// The same name in another directory of its output root.
    pub fn move_to_dir(&mut self, dir: &[u8]) -> Result<(), Errno> {
        let mut rel = PathBuffer::front();
        let all = || {
            rel.append(dir)?;
            if !dir.is_empty() {
                rel.append(b"/")?;
            }
            rel.append(self.name())?;
            Some(rel)
        };
        self.rel = all().ok_or(libc::ENAMETOOLONG)?;
        Ok(())
    }

    /// Whether the kernel finds the directory, and follows no links on the way there.
    pub fn has_real_parent(&self) -> bool {
        let Ok(mut dir) = self.parent_on_pfs() else { return false };
        let real = dir.c_str().and_then(|dir| canonical(dir).ok());
        real.is_some_and(|real| real.get() == dir.get())
    }

    /// After the kernel has followed links on the way from a directory, or has not found it: the
    /// place becomes the one to which the way leads with what is pending. `None` if that changes
    /// nothing; the path, if it leads out of the output roots.
    #[cold]
    pub fn follow_pending(&mut self, dir: &Absolute) -> Result<Option<Absolute>, Errno> {
        let Some(mut walked) = walk(&self.root.ctx, dir.get(), true).filter(|walked| walked.by_overlay) else {
            return Ok(None);
        };
        walked.path.append(self.name()).ok_or(libc::ENAMETOOLONG)?;
        let path = walked.path;
        if let Some((root, rel)) = beneath(&self.root.ctx, path.get()) {
            self.by_other_root |= !roots::is_same(&self.root, &root);
            (self.root, self.rel) = (root, rel);
        }
        Ok(Some(path))
    }

    /// Makes the path of its directory that of the kernel, which follows links: whether that is
    /// another one than before. An error is that of the directory.
    pub fn follow_parent(&mut self) -> Result<bool, Errno> {
        let mut real = self.parent_on_pfs().and_then(|mut p| Ok(canonical(p.c_str().ok_or(libc::ENAMETOOLONG)?)))??;
        real.append(b"/").and_then(|()| real.append(self.name())).ok_or(libc::ENAMETOOLONG)?;
        let Some((root, rel)) = beneath(&self.root.ctx, real.get()) else { return Err(libc::EXDEV) };
        let changed = rel.get() != self.rel() || !roots::is_same(&self.root, &root);
        self.rel = rel;
        self.root = root;
        Ok(changed)
    }
}

/// The output root in which an absolute path without links lies, and its path there. `None` where
/// [`Place::at`] is.
pub fn beneath(ctx: &Ctx, path: &[u8]) -> Option<(Root, PathBuffer)> {
    let (root, rest) = roots::at(ctx, path)?;
    let mut rel = PathBuffer::front();
    append_plain(&mut rel, rest)?;
    if is_marked(rel.get()) { None } else { Some((root, rel)) }
}

/// Whether a relative path has a name by which the overlay says that a directory is removed.
fn is_marked(rel: &[u8]) -> bool {
    rel.split(|&c| c == b'/').any(|name| name == REMOVED_DIR.as_bytes())
}

/// Where links outside of the output roots lead.
pub enum Behind {
    /// To this place.
    Inside(Place),
    /// Into an output root, and by a link there that is not published out of it again, to this
    /// path.
    Outside(Absolute),
}

#[cold]
fn walked(ctx: &Ctx, path: &[u8], follow: bool) -> Option<Behind> {
    let mut walked = walk(ctx, path, follow)?;
    let inside = roots::at(ctx, walked.path.get()).and_then(|(root, rest)| Place::at(root, rest));
    let Some(mut place) = inside else {
        if ends_like_dir(path) {
            walked.path.0.append(b"/")?;
        }
        return walked.by_overlay.then_some(Behind::Outside(walked.path));
    };
    place.is_dir_path = ends_like_dir(path);
    place.by_overlay = walked.by_overlay;
    place.by_other_root = walked.by_overlay && walked.by_other_root;
    place.is_held = walked.is_held;
    Some(Behind::Inside(place))
}

/// The directory above a removed one, and the rest of a path that begins with `..` there. The
/// kernel knows which directory that is: another one may have its name by now.
#[cold]
fn above_removed(dirfd: c_int, path: &[u8]) -> Option<(PathBuffer, &[u8])> {
    let rest = path.strip_prefix(b"..").filter(|rest| rest.is_empty() || rest.starts_with(b"/"))?;
    // SAFETY: a C string.
    let fd = unsafe { sys::open_at(dirfd, c"..".as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) }?;
    let mut above = PathBuffer::front();
    // SAFETY: as many bytes are written as it says.
    unsafe { above.fill(|out| path_of_fd(fd.0, out)) }?;
    Some((above, rest.strip_prefix(b"/").unwrap_or(rest)))
}

/// The directory and the last component of a relative path.
pub fn split(rel: &[u8]) -> (&[u8], &[u8]) {
    match rel.iter().rposition(|&c| c == b'/') {
        Some(at) => (rel.get(..at).unwrap_or_default(), rel.get(at + 1..).unwrap_or_default()),
        None => (b"", rel),
    }
}

/// The path that the kernel gives a directory or file.
pub fn canonical(path: &core::ffi::CStr) -> Result<PathBuffer, Errno> {
    let fd = spare::open_own(path, libc::O_PATH)?;
    let mut real = PathBuffer::front();
    // SAFETY: as many bytes are written as it says.
    unsafe { real.fill(|out| path_of_fd(fd.0, out)) }.ok_or(libc::ENOENT)?;
    Ok(real)
}

/// [`canonical`] for a path without a final NUL.
pub fn real_path(path: &[u8]) -> Option<PathBuffer> {
    let mut copy = PathBuffer::front();
    copy.append(path)?;
    canonical(copy.c_str()?).ok()
}

/// How far the kernel finds the directories of an absolute path.
struct Known {
    /// The path that it gives the last one.
    real: PathBuffer,
    /// Where in the path the component behind that stands, which may be the last one of all.
    next: Range<usize>,
}

impl Known {
    fn of(path: &[u8]) -> Option<Self> {
        let mut end = path.iter().rposition(|&c| c != b'/')? + 1;
        loop {
            let begin = path.get(..end)?.iter().rposition(|&c| c == b'/')? + 1;
            if let Some(real) = real_path(path.get(..begin)?) {
                return Some(Self { real, next: begin..end });
            }
            end = path.get(..begin)?.iter().rposition(|&c| c != b'/')? + 1;
        }
    }
}

/// Appends the components of a path without doubled slashes and dots; separated by slashes from
/// each other, and from what is there unless that is empty or ends with one.
pub fn append_plain(out: &mut PathBuffer, path: &[u8]) -> Option<()> {
    for part in path.split(|&c| c == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if !matches!(out.get().last(), None | Some(b'/')) {
            out.append(b"/")?;
        }
        out.append(part)?;
    }
    Some(())
}

/// The first component of a relative path, if it is `.` or `..`: whether it leads up, and what
/// follows. A slash stays where nothing else does: the path can only mean a directory.
fn leading_dots(path: &[u8]) -> Option<(bool, &[u8])> {
    let (ups, rest) = match path {
        [b'.', b'.', rest @ ..] => (true, rest),
        [b'.', rest @ ..] => (false, rest),
        _ => return None,
    };
    let behind = rest.iter().position(|&c| c != b'/');
    match (rest.first(), behind) {
        (None, _) => Some((ups, rest)),
        (Some(b'/'), Some(at)) => Some((ups, rest.get(at..)?)),
        (Some(b'/'), None) => Some((ups, rest)),
        _ => None,
    }
}

fn ends_like_dir(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.")
}

/// Whether the last component is `.` or `..`: no directory is removed by such a path.
pub fn ends_in_dots(path: &[u8]) -> bool {
    let end = path.iter().rposition(|&c| c != b'/').map_or(0, |at| at + 1);
    matches!(path.get(..end).and_then(|path| path.rsplit(|&c| c == b'/').next()), Some(b"." | b".."))
}

fn pairs(path: &[u8]) -> impl Iterator<Item = (u8, u8)> + '_ {
    path.iter().copied().zip(path.iter().copied().skip(1))
}

/// Whether a path has doubled slashes or components that begin with a dot.
fn is_odd(path: &[u8]) -> bool {
    pairs(path).any(|pair| matches!(pair, (b'/', b'/' | b'.')))
}

/// Whether a path has a component `..`.
fn has_parent_component(path: &[u8]) -> bool {
    is_odd(path) && path.split(|&c| c == b'/').any(|part| part == b"..")
}

/// The same name as one of the output root where its directory lies. Where links on the way there
/// lead into another root, the kernel, which follows those of the PFS only, is not enough.
#[inline]
pub fn crossed(place: Place) -> Place {
    if place.parent().is_empty() || !roots::may_cross(&place.root) { place } else { follow(place) }
}

#[cold]
#[inline(never)]
fn follow(place: Place) -> Place {
    let root = place.root;
    if entry::has_dir(&root, place.parent()) || place.has_real_parent() {
        return place;
    }
    let Some(walked) = place.on_pfs().ok().and_then(|path| walk(&root.ctx, path.get(), false)) else { return place };
    let Some((now, rest)) = roots::at(&root.ctx, walked.path.get()) else { return place };
    // (Of links of its own the root knows.)
    if !walked.by_other_root {
        return place;
    }
    let Some(mut next) = Place::at(now, rest) else { return place };
    next.is_dir_path = place.is_dir_path;
    next.by_overlay = walked.by_overlay;
    next.by_other_root = walked.by_overlay;
    next
}
