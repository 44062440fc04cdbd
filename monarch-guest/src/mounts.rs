//! The mounts that this process sees, from `/proc/thread-self/mountinfo`: is something mounted
//! below a root, and does a path lead into a root through another mount of the same file system?
//!
//! Asked on slow paths only. The table may be long, so that it is read in pieces and never held as
//! a whole.

use crate::process::process;
use crate::sys;
use core::sync::atomic::Ordering;
use monarch_abi::mem::PathBuffer;
use monarch_abi::scratch::Scratch;

/// Fields of a line, counted from 0.
const NUMBER: u32 = 0;
const DEVICE: u32 = 2;
const ROOT: u32 = 3;
const POINT: u32 = 4;

/// A line of the table.
struct Mount {
    /// By which statx(2) knows it.
    number: u64,
    /// Major and minor number.
    device: [u32; 2],
    /// Which directory of its file system is mounted.
    root: PathBuffer,
    /// Where.
    point: PathBuffer,
}

impl Mount {
    fn new() -> Self {
        Self { number: 0, device: [0; 2], root: PathBuffer::front(), point: PathBuffer::front() }
    }

    fn is_on(&self, dev: u64) -> bool {
        sys::makedev(self.device[0], self.device[1]) == dev
    }
}

/// `path` behind `base`, if it is `base` or below it: empty or with a leading slash.
fn behind<'p>(path: &'p [u8], base: &[u8]) -> Option<&'p [u8]> {
    let base = if base == b"/" { b"" } else { base };
    path.strip_prefix(base).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Takes a table byte by byte.
struct Parser {
    mount: Mount,
    field: u32,
    /// Which number of the device is being read.
    number: usize,
    /// Digits and value of an escape (`\040`) that is being read.
    escape: Option<(u8, u32)>,
}

impl Parser {
    fn new() -> Self {
        Self { mount: Mount::new(), field: 0, number: 0, escape: None }
    }

    /// Begins with another line.
    fn next_line(&mut self) {
        self.mount.number = 0;
        self.mount.device = [0; 2];
        self.mount.root.truncate(0);
        self.mount.point.truncate(0);
        (self.field, self.number, self.escape) = (0, 0, None);
    }

    /// Takes the next byte; `true` at the end of a line, which is in `mount` until the next call.
    fn take(&mut self, c: u8) -> bool {
        match c {
            b'\n' => return true,
            b' ' => self.field += 1,
            _ => match self.field {
                NUMBER => {
                    self.mount.number =
                        self.mount.number.wrapping_mul(10).wrapping_add(u64::from(c.wrapping_sub(b'0')));
                }
                DEVICE if c == b':' => self.number = 1,
                DEVICE => {
                    if let Some(n) = self.mount.device.get_mut(self.number) {
                        *n = n.wrapping_mul(10).wrapping_add(u32::from(c.wrapping_sub(b'0')));
                    }
                }
                ROOT | POINT => self.text(c),
                _ => {}
            },
        }
        false
    }

    fn text(&mut self, c: u8) {
        let c = match self.escape {
            None if c == b'\\' => {
                self.escape = Some((0, 0));
                return;
            }
            None => c,
            Some((digits, value)) => {
                let value = value << 3 | u32::from(c & 7);
                self.escape = Some((digits + 1, value));
                if digits < 2 {
                    return;
                }
                self.escape = None;
                value as u8
            }
        };
        // Longer than any path: then nothing matches it.
        let _ = if self.field == ROOT { self.mount.root.append(&[c]) } else { self.mount.point.append(&[c]) };
    }
}

/// Shows the table piece by piece. `None` when it cannot be read.
fn each_part(mut show: impl FnMut(&[u8]) -> bool) -> Option<()> {
    let fd = sys::Fd(sys::open(c"/proc/thread-self/mountinfo", libc::O_RDONLY | libc::O_CLOEXEC)?);
    let mut room = Scratch::take();
    loop {
        let part = sys::read_into(fd.0, &mut room)?;
        if part.is_empty() || show(part) {
            return Some(());
        }
    }
}

/// Shows every mount until `show` says that it has seen enough. `None` when the table cannot be
/// read.
fn each(mut show: impl FnMut(&mut Mount) -> bool) -> Option<()> {
    let mut parser = Parser::new();
    each_part(|part| {
        part.iter().any(|&c| {
            let is_line = parser.take(c);
            let stop = is_line && show(&mut parser.mount);
            if is_line {
                parser.next_line();
            }
            stop
        })
    })
}

/// A hash of the mounts that this process sees (FNV-1a, 64
/// bits). 0 when they cannot be seen.
#[must_use]
pub fn fingerprint() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let read = each_part(|part| {
        hash = part.iter().fold(hash, |h, &c| (h ^ u64::from(c)).wrapping_mul(0x0100_0000_01b3));
        false
    });
    if read.is_some() { hash | 1 } else { 0 }
}

/// Whether something is mounted below `root`; `true` if that cannot be found out.
#[must_use]
pub fn any_below(root: &[u8]) -> bool {
    let mut found = false;
    let read = each(|m| {
        found = behind(m.point.get(), root).is_some_and(|rest| !rest.is_empty());
        found
    });
    read.is_none() || found
}

/// [`Process::several`](crate::process::Process::several): whether a device of a root is mounted
/// more than once.
const NO: u32 = 1;
const YES: u32 = 2;

/// Whether some device of `is_root` is mounted at more than one place. Asked once.
fn several(is_root: impl Fn(u64) -> bool) -> bool {
    let known = process().several.load(Ordering::Relaxed);
    if known != 0 {
        return known == YES;
    }
    let mut count = 0;
    let read = each(|m| {
        count += u32::from(is_root(sys::makedev(m.device[0], m.device[1])));
        false
    });
    let yes = read.is_none() || count > 1;
    process().several.store(if yes { YES } else { NO }, Ordering::Relaxed);
    yes
}

/// Whether a device of some root is mounted at more than one place.
#[must_use]
pub fn any_twice(ctx: &crate::ctx::Ctx) -> bool {
    several(|dev| ctx.is_root_device(dev))
}

/// Where a path lies within its file system.
struct Within {
    /// The path from the top of the file system.
    path: PathBuffer,
    /// Which directory of the file system is mounted by the mount that holds it.
    root: PathBuffer,
    /// Where.
    point: PathBuffer,
}

/// Where `path` on `dev` lies, by the last of the innermost mounts that hold it and are `wanted`.
fn within(path: &[u8], dev: u64, wanted: impl Fn(&Mount) -> bool) -> Option<Within> {
    let (mut root, mut point, mut best) = (PathBuffer::front(), PathBuffer::front(), None);
    each(|m| {
        let len = if m.point.get() == b"/" { 0 } else { m.point.get().len() };
        let holds = m.is_on(dev) && behind(path, m.point.get()).is_some() && wanted(m);
        if holds && best.is_none_or(|best| best <= len) {
            best = Some(len);
            root.truncate(0);
            point.truncate(0);
            let _ = root.append(m.root.get()).and_then(|()| point.append(m.point.get()));
        }
        false
    })?;
    let mut out = PathBuffer::front();
    if root.get() != b"/" {
        out.append(root.get())?;
    }
    out.append(path.get(best?..)?)?;
    Some(Within { path: out, root, point })
}

/// The part of `path` below `root` (empty, or with a leading slash) if it leads there through
/// another mount of `dev`. `is_root` recognises the devices of all roots.
#[must_use]
pub fn through_another(path: &[u8], root: &[u8], dev: u64, is_root: impl Fn(u64) -> bool) -> Option<PathBuffer> {
    if !several(is_root) {
        return None;
    }
    let (path, root) = (path_within(path, dev)?, path_within(root, dev)?);
    let mut rest = PathBuffer::front();
    rest.append(behind(path.get(), root.get())?)?;
    Some(rest)
}

#[inline(never)]
fn path_within(path: &[u8], dev: u64) -> Option<PathBuffer> {
    within(path, dev, |_| true).map(|within| within.path)
}

/// A path that the kernel gives an open file, and the mount that holds it.
#[derive(Clone, Copy)]
pub struct Opened<'a> {
    /// The path.
    pub path: &'a [u8],
    /// The number of the mount.
    pub mount: u64,
}

/// Where a path leads, seen from a root on the same device.
pub enum Seen {
    /// Below the root: the part behind it, empty or with a leading slash.
    Below(PathBuffer),
    /// Not below it, nor is the root below it.
    Elsewhere,
    /// The table of mounts does not tell.
    Unknown,
}

/// Where an open file on `dev` lies, seen from an open root there. The table of mounts is the
/// agent's: what it has mounted below the root, the root has.
#[cold]
#[inline(never)]
#[must_use]
pub fn seen_from(root: Opened<'_>, file: Opened<'_>, dev: u64) -> Seen {
    let find = |of: Opened<'_>| within(of.path, dev, |m| m.number == of.mount);
    let (Some(mut file), Some(mut top)) = (find(file), find(root)) else { return Seen::Unknown };
    // (NFS says of each mount that it is the top of its file system.)
    let place = |within: &mut Within| sys::identity_at(libc::AT_FDCWD, within.point.c_str()?);
    let are_told_apart = file.root.get() != top.root.get()
        || file.point.get() == top.point.get()
        || place(&mut file).is_some_and(|at| Some(at) == place(&mut top));
    if !are_told_apart || any_below(root.path) {
        return Seen::Unknown;
    }
    let mut rest = PathBuffer::front();
    match behind(file.path.get(), top.path.get()).map(|behind| rest.append(behind)) {
        Some(Some(())) => Seen::Below(rest),
        None if behind(top.path.get(), file.path.get()).is_none() => Seen::Elsewhere,
        _ => Seen::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::Parser;

    #[test]
    fn a_line_is_taken_apart() {
        let line = b"36 35 98:123 /mnt1 /mnt\\0402/x\\134 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n";
        let mut p = Parser::new();
        let ends: Vec<bool> = line.iter().map(|&c| p.take(c)).collect();
        assert!(ends.iter().rposition(|&e| e) == Some(line.len() - 1) && ends.iter().filter(|&&e| e).count() == 1);
        assert_eq!((p.mount.number, p.mount.device), (36, [98, 123]));
        assert_eq!(p.mount.root.get(), b"/mnt1");
        assert_eq!(p.mount.point.get(), b"/mnt 2/x\\");
    }

    #[test]
    fn below_means_by_components() {
        assert_eq!(super::behind(b"/data/x", b"/data"), Some(&b"/x"[..]));
        assert_eq!(super::behind(b"/database", b"/data"), None);
        assert_eq!(super::behind(b"/data", b"/"), Some(&b"/data"[..]));
    }
}
