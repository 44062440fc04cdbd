//! From a path as spelled to an entry, as the kernel would walk it.
//!
//! The spelled path is looked up first as it stands; only when that misses is it walked component
//! by component: `.`, `..`, doubled and trailing slashes, symbolic links (their targets are in the
//! index; absolute ones are matched against the spellings again). Whatever leaves the roots, meets
//! something bypassed or is not known ends in [`Miss`]: the kernel decides.

use crate::absent::Absent;
use crate::control::{ControlMap, Match, Start};
use crate::deciding::may_decide;
use crate::mem::PathBuffer;
use crate::segment::{Entry, Segment};
use crate::word::State;

/// Longest chain of symbolic links that is walked here. The kernel gives up after 40, but also
/// counts the links in front of a root when a path or a link's target comes through an alias: a
/// smaller number leaves the difference to it.
const MAX_LINKS: usize = 8;

/// Where segments come from: by root, newest live one.
pub trait Segments<'a> {
    /// The live segment of a root and its number, if there is one and the root is trusted in this
    /// process.
    fn segment(&self, root: usize) -> Option<(usize, &'a Segment<'a>)>;

    /// Whether a symbolic link on the way may be followed, or a directory left by `..`, as it was
    /// indexed: asked where what lies behind is asked about, too.
    fn may_follow(&self, _passed: &Found<'a>) -> bool {
        true
    }
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
    /// Not below any root.
    Outside,
    /// Below a root without a usable segment (not scanned yet, other mount, bypassed).
    NoSegment(usize),
    /// Below a root, but not in the index.
    Unknown(usize),
    /// The same, and the listing of a directory may answer that the name is not there.
    Absent(Absent),
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

/// A canonical path that grows and shrinks by components.
struct Canonical(PathBuffer);

impl Canonical {
    fn new() -> Self {
        Self(PathBuffer::front())
    }
    fn push(&mut self, name: &[u8]) -> Option<()> {
        if !self.0.get().is_empty() {
            self.0.append(b"/")?;
        }
        self.0.append(name)
    }
    /// Removes the last component; `None` at the root.
    fn pop(&mut self) -> Option<()> {
        let path = self.0.get();
        if path.is_empty() {
            return None;
        }
        let len = path.iter().rposition(|&c| c == b'/').unwrap_or(0);
        self.0.truncate(len);
        Some(())
    }
}

/// Path still to be walked, at the end of a buffer so that link targets can be put in front.
struct Pending(PathBuffer);

impl Pending {
    fn new(path: &[u8]) -> Option<Self> {
        let mut p = Self(PathBuffer::back());
        p.0.prepend(path)?;
        Some(p)
    }
    fn rest(&self) -> &[u8] {
        self.0.get()
    }
    /// The next component, without the slashes in front of it; `None` at the end.
    fn next(&self) -> Option<(usize, &[u8])> {
        let rest = self.rest();
        let start = rest.iter().position(|&c| c != b'/')?;
        let tail = rest.get(start..)?;
        let len = tail.iter().position(|&c| c == b'/').unwrap_or(tail.len());
        Some((start + len, tail.get(..len)?))
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
        Start::Root(m) if !follow && m.rest.is_empty() && !is_root(ctl, m.root, path) => Err(Miss::Outside),
        Start::Root(m) if m.sub.is_empty() => resolve_in(ctl, segs, m.root, m.rest, follow),
        Start::Root(m) => resolve_below(ctl, segs, &m, m.rest, follow),
        Start::Odd => resolve_odd(ctl, segs, path, follow),
        Start::Outside => Err(Miss::Outside),
    }
}

/// Whether `path` is the real path of a root. Another spelling may be a symbolic link, which lies
/// outside of the root: only the kernel knows about it when it is not followed.
#[cold]
fn is_root(ctl: &ControlMap<'_>, root: usize, path: &[u8]) -> bool {
    ctl.roots().get(root).is_some_and(|r| ctl.str(&r.path) == path)
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
    let mut path = PathBuffer::front();
    let joined = path.append(b"/").and_then(|()| path.append(m.sub)).and_then(|()| path.append(rest));
    joined.ok_or(Miss::Unknown(m.root))?;
    resolve_spelled(ctl, segs, m.root, path.get(), rest.len(), follow)
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
    resolve_spelled(ctl, segs, root, rest, rest.len(), follow)
}

/// [`resolve_in`], where only the last `spelled` bytes of the part were spelled by the application.
#[inline]
fn resolve_spelled<'a>(
    ctl: &ControlMap<'a>,
    segs: &impl Segments<'a>,
    root: usize,
    rest: &[u8],
    spelled: usize,
    follow: bool,
) -> Result<Found<'a>, Miss> {
    let (number, segment) = segs.segment(root).ok_or(Miss::NoSegment(root))?;
    let rel = rest.get(1..).unwrap_or(&[]);
    if let Some(entry) = segment.lookup(rel).filter(|entry| may_answer(ctl, number, entry, follow)) {
        return Ok(Found { root, number, segment, entry });
    }
    walk(ctl, segs, root, (rest, spelled), follow)
}

/// Whether an entry with exactly the spelled path may answer.
#[inline]
fn may_answer(ctl: &ControlMap<'_>, segment: usize, entry: &Entry<'_>, follow: bool) -> bool {
    let leads_on = follow && entry.record.is_link();
    !leads_on && !ctl.in_bypassed_range(segment, entry.id)
}

/// [`resolve_in`] where one lookup of the path as it is spelled answers; otherwise `None`. In the
/// code of its caller, for calls of which each instruction counts.
#[must_use]
#[inline(always)]
pub fn resolve_as_spelled<'a>(
    ctl: &ControlMap<'a>,
    segs: &impl Segments<'a>,
    root: usize,
    rest: &[u8],
    follow: bool,
) -> Option<Found<'a>> {
    let (number, segment) = segs.segment(root)?;
    let entry = segment.lookup_inlined(rest.get(1..)?)?;
    may_answer(ctl, number, &entry, follow).then_some(Found { root, number, segment, entry })
}

/// Absolute paths with `//`, `/./` or `/../` in front of a root. `..` is undone by spelling only
/// while the path in front of it is an ancestor of a root's real path (which has no links in it);
/// otherwise the kernel is asked.
#[cold]
fn resolve_odd<'a>(
    ctl: &ControlMap<'a>,
    segs: &impl Segments<'a>,
    path: &[u8],
    follow: bool,
) -> Result<Found<'a>, Miss> {
    let mut abs = Canonical::new();
    let mut pending = Pending::new(path).ok_or(Miss::Outside)?;
    while let Some((used, name)) = pending.next() {
        match name {
            b"." => {}
            b".." => {
                if !abs.0.get().is_empty() && !is_ancestor_of_root(ctl, abs.0.get()) {
                    return Err(Miss::Outside);
                }
                let _ = abs.pop();
            }
            name => {
                abs.0.append(b"/").ok_or(Miss::Outside)?;
                abs.0.append(name).ok_or(Miss::Outside)?;
            }
        }
        pending.0.skip(used);
        if let Start::Root(m) = ctl.match_root(abs.0.get())
            && m.rest.is_empty()
        {
            if !follow && pending.rest().is_empty() && !is_root(ctl, m.root, abs.0.get()) {
                return Err(Miss::Outside);
            }
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
    (rest, mut spelled): (&[u8], usize),
    follow: bool,
) -> Result<Found<'a>, Miss> {
    let mut root = root;
    let (mut number, mut segment) = segs.segment(root).ok_or(Miss::NoSegment(root))?;
    let mut out = Canonical::new();
    let mut pending = Pending::new(rest).ok_or(Miss::Unknown(root))?;
    let mut must_be_dir = rest.len() > 1 && ends_like_dir(rest);
    let mut links = 0;
    // The directory and the name by which the walk came to what is here, as spelled.
    let mut came: Option<(u32, usize)> = None;
    loop {
        let here = segment.lookup(out.0.get()).ok_or(Miss::Unknown(root))?;
        if ctl.in_bypassed_range(number, here.id) {
            return Err(Miss::Changed(root));
        }
        let Some((used, name)) = pending.next() else {
            return if must_be_dir && !here.record.is_dir() {
                Err(below_file(ctl, segment, (root, number), &here, came))
            } else {
                Ok(Found { root, number, segment, entry: here })
            };
        };
        if !here.record.is_dir() {
            return Err(below_file(ctl, segment, (root, number), &here, came));
        }
        let left = pending.rest().len();
        // What stands in front comes from the target of a link.
        let tail = Some(left - (used - name.len())).filter(|_| left <= spelled);
        if (name == b"." || name == b"..") && !may_search(ctl, segment, &here) {
            return Err(Miss::Changed(root));
        }
        match name {
            b"." => {}
            // Above the root the tree is not known, except for the way to another root.
            b".." => {
                // What was a directory may be a link by now: then its parent is another one.
                if !segs.may_follow(&Found { root, number, segment, entry: here }) {
                    return Err(Miss::Changed(root));
                }
                if out.pop().is_none() {
                    pending.0.skip(used);
                    root = leave(ctl, root, &mut pending, follow)?;
                    (number, segment) = segs.segment(root).ok_or(Miss::NoSegment(root))?;
                    (out, came, spelled) = (Canonical::new(), None, 0);
                    continue;
                }
            }
            name => out.push(name).ok_or(Miss::Unknown(root))?,
        }
        let named = name != b"." && name != b"..";
        let decides = named && tail.is_some() && may_decide(ctl, segment, &here, name);
        pending.0.skip(used);
        spelled = spelled.min(pending.rest().len());
        if !named {
            came = None;
            continue;
        }
        let last = pending.only_slashes_left();
        let Some(entry) = segment.lookup(out.0.get()) else {
            return Err(match tail {
                Some(tail) if decides => {
                    Miss::Absent(Absent { root, segment: number, dir: here.id, tail, below_file: false })
                }
                _ => Miss::Unknown(root),
            });
        };
        came = tail.map(|tail| (here.id, tail));
        let changed = entry.word().state() == State::Bypass || ctl.in_bypassed_range(number, entry.id);
        let walked_through = entry.record.is_link() && (follow || !pending.rest().is_empty());
        let link = Found { root, number, segment, entry };
        // A name that the job replaced may be anything by now.
        if changed && (walked_through || (!last && !entry.record.is_dir())) {
            return Err(Miss::Changed(root));
        }
        if walked_through && !segs.may_follow(&link) {
            return Err(Miss::Changed(root));
        }
        if walked_through {
            links += 1;
            if links > MAX_LINKS {
                return Err(Miss::Unknown(root));
            }
            let target = segment.index.link_target(entry.record).ok_or(Miss::Unknown(root))?;
            must_be_dir |= last && ends_like_dir(target);
            // What is left is empty or starts with a slash, so that it can simply follow the
            // target.
            pending.0.prepend(target).ok_or(Miss::Unknown(root))?;
            came = None;
            if target.first() == Some(&b'/') {
                root = go_to_root(ctl, &mut pending, follow)?;
                (number, segment) = segs.segment(root).ok_or(Miss::NoSegment(root))?;
                out = Canonical::new();
            } else if out.pop().is_none() {
                return Err(Miss::Outside);
            }
        }
    }
}

/// The miss of a path that goes on behind what is no directory. `came`: the directory that has it,
/// and the bytes of the path from its name on.
#[cold]
#[inline(never)]
fn below_file(
    ctl: &ControlMap<'_>,
    segment: &Segment<'_>,
    (root, number): (usize, usize),
    here: &Entry<'_>,
    came: Option<(u32, usize)>,
) -> Miss {
    let is_there = here.word().state() != State::Bypass && !here.record.is_link();
    let decides = |(dir, _): &(u32, usize)| {
        is_there && segment.by_id(*dir).is_some_and(|dir| may_decide(ctl, segment, &dir, b""))
    };
    let absent = |(dir, tail)| Miss::Absent(Absent { root, segment: number, dir, tail, below_file: true });
    came.filter(decides).map_or(Miss::Unknown(root), absent)
}

/// Goes on in the directory above a root, which is known by name: the real path of a root has no
/// links in it, and every spelling of the root leads to that path. Only another root can be
/// reached.
fn leave(ctl: &ControlMap<'_>, root: usize, pending: &mut Pending, follow: bool) -> Result<usize, Miss> {
    let parent = |path: &[u8]| path.iter().rposition(|&c| c == b'/').unwrap_or(0);
    let path = ctl.roots().get(root).map(|r| ctl.str(&r.path)).unwrap_or_default();
    let mut len = parent(path);
    while let Some((used, name)) = pending.next() {
        match name {
            b"." => {}
            b".." => len = parent(path.get(..len).unwrap_or_default()),
            _ => break,
        }
        pending.0.skip(used);
    }
    pending.0.prepend(path.get(..len).unwrap_or_default()).ok_or(Miss::Outside)?;
    go_to_root(ctl, pending, follow)
}

/// Whether a path may certainly go on from a directory without naming anything in it. (What is in
/// the index below it was found by searching it.)
fn may_search(ctl: &ControlMap<'_>, segment: &Segment<'_>, dir: &Entry<'_>) -> bool {
    let uid = ctl.ctl.uid;
    if uid == 0 {
        return true;
    }
    let mode = dir.record.mode;
    match segment.index.owner(dir.record) {
        _ if dir.word().state() == State::Bypass => false,
        Some((owner, _)) if owner == uid => mode & 0o100 != 0,
        _ => mode & 0o011 == 0o011,
    }
}

/// Takes the root off an absolute path that is still to be walked.
fn go_to_root(ctl: &ControlMap<'_>, pending: &mut Pending, follow: bool) -> Result<usize, Miss> {
    let (root, used, sub) = {
        let Start::Root(m) = ctl.match_root(pending.rest()) else { return Err(Miss::Outside) };
        if !follow && m.rest.is_empty() && !is_root(ctl, m.root, pending.rest()) {
            return Err(Miss::Outside);
        }
        (m.root, pending.rest().len() - m.rest.len(), m.sub)
    };
    pending.0.skip(used);
    pending.0.prepend(sub).ok_or(Miss::Unknown(root))?;
    Ok(root)
}

/// Whether a path can only mean a directory: trailing slash, `/.` or `/..`.
fn ends_like_dir(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.") || path.ends_with(b"/..")
}

/// The directory of a path (empty: the working directory) and its last component.
#[must_use]
pub fn split_named(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|&c| c != b'/')? + 1;
    let path = path.get(..end)?;
    let start = path.iter().rposition(|&c| c == b'/').map_or(0, |at| at + 1);
    let name = path.get(start..).filter(|name| *name != b"." && *name != b"..")?;
    Some((path.get(..start)?, name))
}

/// Splits an absolute path into its parent and its last component; `None` for paths that end in
/// `.`, `..` or are `/`.
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
    let parent = dir.segment.index.path_of(dir.entry.id)?;
    let mut path = Canonical::new();
    path.push(parent.get())?;
    drop(parent);
    path.push(name)?;
    let entry = dir.segment.lookup(path.0.get())?;
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
