//! From a path as spelled to an entry, as the kernel would walk it.
//!
//! The spelled path is looked up first as it stands; only when that misses is it walked component by component: `.`,
//! `..`, doubled and trailing slashes, symbolic links (their targets are in the index; absolute ones are matched against
//! the spellings again). Whatever leaves the roots, meets something bypassed or is not known ends in [`Miss`]: the
//! kernel decides.

use crate::PATH_MAX;
use crate::control::{ControlMap, Match};
use crate::segment::{Entry, Segment};
use crate::word::State;

/// Longest chain of symbolic links, as in the kernel.
const MAX_LINKS: usize = 40;

/// Where segments come from: by root, newest live one.
pub trait Segments<'a> {
    /// The live segment of a root and its number, if there is one and the root is trusted in this process.
    fn segment(&self, root: usize) -> Option<(usize, &'a Segment<'a>)>;
}

/// An entry and where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Which root.
    pub root: usize,
    /// Number of its segment.
    pub number: usize,
    /// The segment.
    pub segment: &'a Segment<'a>,
    /// The entry.
    pub entry: Entry<'a>,
}

/// Why a path is not answered from the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Not below any root: none of our business.
    Outside,
    /// Below a root without a usable segment (not scanned yet, other mount, bypassed).
    NoSegment(usize),
    /// Below a root, but not in the index.
    Unknown(usize),
    /// On the way or at its end lies something that the job changed.
    Changed(usize),
}

/// The directory in which a path's last component lies, for calls that create or remove names.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'a> {
    /// The directory, if it is in the index.
    pub dir: Found<'a>,
    /// The name itself, if it is in the index (symbolic links not followed).
    pub entry: Option<Found<'a>>,
}

/// A path buffer that refuses to overflow.
struct Buf {
    bytes: [u8; PATH_MAX],
    len: usize,
}

impl Buf {
    const fn new() -> Self {
        Self { bytes: [0; PATH_MAX], len: 0 }
    }
    fn get(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
    fn append(&mut self, text: &[u8]) -> Option<()> {
        let end = self.len.checked_add(text.len())?;
        self.bytes.get_mut(self.len..end)?.copy_from_slice(text);
        self.len = end;
        Some(())
    }
    fn push_name(&mut self, name: &[u8]) -> Option<()> {
        if self.len > 0 {
            *self.bytes.get_mut(self.len)? = b'/';
            self.len += 1;
        }
        self.bytes.get_mut(self.len..self.len.checked_add(name.len())?)?.copy_from_slice(name);
        self.len += name.len();
        Some(())
    }
    /// Removes the last component; `None` at the root.
    fn pop(&mut self) -> Option<()> {
        if self.len == 0 {
            return None;
        }
        self.len = self.get().iter().rposition(|&c| c == b'/').unwrap_or(0);
        Some(())
    }
}

/// Path still to be walked, kept at the end of a buffer so that link targets can be put in front.
struct Pending {
    bytes: [u8; PATH_MAX],
    start: usize,
}

impl Pending {
    fn new(path: &[u8]) -> Option<Self> {
        let mut p = Self { bytes: [0; PATH_MAX], start: PATH_MAX };
        p.prepend(path)?;
        Some(p)
    }
    fn prepend(&mut self, path: &[u8]) -> Option<()> {
        let start = self.start.checked_sub(path.len())?;
        self.bytes.get_mut(start..self.start)?.copy_from_slice(path);
        self.start = start;
        Some(())
    }
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or(&[])
    }
    /// Next component and whether anything but slashes follows it; skips leading slashes.
    fn next(&mut self) -> Option<(usize, usize)> {
        while self.rest().first() == Some(&b'/') {
            self.start += 1;
        }
        let rest = self.rest();
        if rest.is_empty() {
            return None;
        }
        let len = rest.iter().position(|&c| c == b'/').unwrap_or(rest.len());
        let at = self.start;
        self.start += len;
        Some((at, len))
    }
    fn component(&self, at: (usize, usize)) -> &[u8] {
        self.bytes.get(at.0..at.0 + at.1).unwrap_or(&[])
    }
    fn only_slashes_left(&self) -> bool {
        self.rest().iter().all(|&c| c == b'/')
    }
}

/// Finds the entry of `path` (absolute). `follow`: whether a symbolic link at its end is followed.
///
/// # Errors
/// [`Miss`] says why the kernel has to answer.
#[inline]
pub fn resolve<'a>(
    ctl: &ControlMap<'a>,
    segs: &impl Segments<'a>,
    path: &[u8],
    follow: bool,
) -> Result<Found<'a>, Miss> {
    match ctl.match_root(path) {
        Some(m) if m.sub.is_empty() => resolve_in(ctl, segs, m.root, m.rest, follow),
        Some(m) => resolve_below(ctl, segs, &m, m.rest, follow),
        None if is_odd(ctl, path) => resolve_odd(ctl, segs, path, follow),
        None => Err(Miss::Outside),
    }
}

/// [`resolve_in`] for a spelling that leads below its root: what it stands for is put in front.
#[inline(never)]
fn resolve_below<'a>(
    ctl: &ControlMap<'a>,
    segs: &impl Segments<'a>,
    m: &Match<'_, '_>,
    rest: &[u8],
    follow: bool,
) -> Result<Found<'a>, Miss> {
    let mut path = Buf::new();
    let joined = path.append(b"/").and_then(|()| path.append(m.sub)).and_then(|()| path.append(rest));
    joined.ok_or(Miss::Unknown(m.root))?;
    resolve_in(ctl, segs, m.root, path.get(), follow)
}

/// [`resolve`] for the part of a path behind a root.
///
/// # Errors
/// [`Miss`] says why the kernel has to answer.
#[inline]
pub fn resolve_in<'a>(
    ctl: &ControlMap<'a>,
    segs: &impl Segments<'a>,
    root: usize,
    rest: &[u8],
    follow: bool,
) -> Result<Found<'a>, Miss> {
    let (number, segment) = segs.segment(root).ok_or(Miss::NoSegment(root))?;
    let rel = rest.get(1..).unwrap_or(&[]);
    if let Some(entry) = segment.lookup(rel)
        && !(follow && entry.record.is_link())
        && !ctl.in_bypassed_range(number, entry.id)
    {
        return Ok(Found { root, number, segment, entry });
    }
    walk(ctl, segs, root, rest, follow)
}

/// Whether a path leaves the way to a root just where it has a doubled slash or a dot component: only then can it lead into
/// the root without starting like it. Looks at no more bytes than the comparison with the root needed.
#[inline]
fn is_odd(ctl: &ControlMap<'_>, path: &[u8]) -> bool {
    ctl.spellings().iter().any(|s| {
        let same = ctl.str(&s.path).iter().zip(path).take_while(|(a, b)| a == b).count();
        same > 0 && path.get(same - 1) == Some(&b'/') && matches!(path.get(same), Some(b'/' | b'.'))
    })
}

/// Absolute paths with `//`, `/./` or `/../` in front of a root. `..` is undone by spelling only while the path in front of
/// it is an ancestor of a root's real path (which has no links in it); otherwise the kernel is asked.
#[cold]
fn resolve_odd<'a>(
    ctl: &ControlMap<'a>,
    segs: &impl Segments<'a>,
    path: &[u8],
    follow: bool,
) -> Result<Found<'a>, Miss> {
    let mut out = Buf::new();
    let mut pending = Pending::new(path).ok_or(Miss::Outside)?;
    let mut abs = Buf::new();
    while let Some(at) = pending.next() {
        match pending.component(at) {
            b"." => {}
            b".." => {
                if out.len != 0 && !is_ancestor_of_root(ctl, abs.get()) {
                    return Err(Miss::Outside);
                }
                let _ = out.pop();
            }
            name => out.push_name(name).ok_or(Miss::Outside)?,
        }
        abs.len = 0;
        abs.bytes[0] = b'/';
        abs.len = 1;
        let n = out.len;
        abs.bytes.get_mut(1..=n).ok_or(Miss::Outside)?.copy_from_slice(out.get());
        abs.len += n;
        if let Some(m) = ctl.match_root(abs.get())
            && m.rest.is_empty()
        {
            return resolve_below(ctl, segs, &m, pending.rest(), follow);
        }
    }
    Err(Miss::Outside)
}

/// Whether `path` lies on the way to the real path of a root.
fn is_ancestor_of_root(ctl: &ControlMap<'_>, path: &[u8]) -> bool {
    ctl.roots().iter().any(|r| ctl.str(&r.path).strip_prefix(path).is_some_and(|rest| rest.first() == Some(&b'/')))
}

/// The slow way: component by component.
#[cold]
#[inline(never)]
fn walk<'a>(
    ctl: &ControlMap<'a>,
    segs: &impl Segments<'a>,
    root: usize,
    rest: &[u8],
    follow: bool,
) -> Result<Found<'a>, Miss> {
    let mut root = root;
    let (mut number, mut segment) = segs.segment(root).ok_or(Miss::NoSegment(root))?;
    let mut out = Buf::new();
    let mut pending = Pending::new(rest).ok_or(Miss::Unknown(root))?;
    let must_be_dir = rest.len() > 1 && ends_like_dir(rest);
    let mut links = 0;
    loop {
        let here = segment.lookup(out.get()).ok_or(Miss::Unknown(root))?;
        if ctl.in_bypassed_range(number, here.id) {
            return Err(Miss::Changed(root));
        }
        let Some(at) = pending.next() else {
            return if must_be_dir && !here.record.is_dir() {
                Err(Miss::Unknown(root))
            } else {
                Ok(Found { root, number, segment, entry: here })
            };
        };
        if !here.record.is_dir() {
            return Err(Miss::Unknown(root));
        }
        match pending.component(at) {
            b"." => {}
            // Above the root we do not know the tree; a root that is a mount point would also need the parent mount.
            b".." => out.pop().ok_or(Miss::Outside)?,
            name => {
                out.push_name(name).ok_or(Miss::Unknown(root))?;
                let last = pending.only_slashes_left();
                let entry = segment.lookup(out.get()).ok_or(Miss::Unknown(root))?;
                // A name that the job replaced may be a link by now, also in the middle of a path.
                if entry.record.is_link() && (!last || follow || !pending.rest().is_empty()) {
                    if entry.word().state() == State::Bypass || ctl.in_bypassed_range(number, entry.id) {
                        return Err(Miss::Changed(root));
                    }
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Miss::Unknown(root));
                    }
                    let target = segment.index.link_target(entry.record).ok_or(Miss::Unknown(root))?;
                    // What is left is empty or starts with a slash, so that it can simply follow the target.
                    pending.prepend(target).ok_or(Miss::Unknown(root))?;
                    if target.first() == Some(&b'/') {
                        let (r, behind, sub) = {
                            let m = ctl.match_root(pending.rest()).ok_or(Miss::Outside)?;
                            (m.root, m.rest.len(), m.sub)
                        };
                        pending.start = PATH_MAX - behind;
                        pending.prepend(sub).ok_or(Miss::Unknown(r))?;
                        root = r;
                        (number, segment) = segs.segment(root).ok_or(Miss::NoSegment(root))?;
                        out.len = 0;
                    } else {
                        out.pop();
                    }
                } else if !last && entry.word().state() == State::Bypass && !entry.record.is_dir() {
                    return Err(Miss::Changed(root));
                }
            }
        }
    }
}

/// Whether a path can only mean a directory: trailing slash, `/.` or `/..`.
fn ends_like_dir(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.") || path.ends_with(b"/..")
}

/// Splits an absolute path into its parent and its last component; `None` for paths that end in `.`, `..` or are `/`.
#[must_use]
pub fn split_last(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|&c| c != b'/')? + 1;
    let path = path.get(..end)?;
    let start = path.iter().rposition(|&c| c == b'/')? + 1;
    let name = path.get(start..)?;
    if name == b"." || name == b".." {
        return None;
    }
    Some((path.get(..start)?, name))
}

/// The entry called `name` in directory `dir`, links not followed.
#[must_use]
pub fn child<'a>(dir: &Found<'a>, name: &[u8]) -> Option<Found<'a>> {
    let mut path = Buf::new();
    path.len = dir.segment.index.path(dir.entry.id, &mut path.bytes)?;
    path.push_name(name)?;
    let entry = dir.segment.lookup(path.get())?;
    Some(Found { entry, ..*dir })
}

/// The directory that holds the last component of `path` (absolute), and that component's entry.
///
/// # Errors
/// [`Miss`] when the parent is not in the index.
pub fn resolve_parent<'a>(ctl: &ControlMap<'a>, segs: &impl Segments<'a>, path: &[u8]) -> Result<Parent<'a>, Miss> {
    let (parent, name) = split_last(path).ok_or(Miss::Outside)?;
    let dir = resolve(ctl, segs, parent, true)?;
    Ok(Parent { dir, entry: child(&dir, name) })
}
