//! The calling process: what it has in its memory, which directories it means, and whether a change
//! made for it here is the change that it would have made itself.

use crate::calls::{Text, Times};
use crate::sys;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::collections::HashSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Longest path, with its final NUL.
const PATH_MAX: usize = libc::PATH_MAX as usize;
const PAGE: u64 = 4096;

/// Reads a C string. `None` where the kernel would refuse it, or only the kernel can read it.
pub(crate) fn text(thread: u32, mut address: u64) -> Option<CString> {
    let mut all = Vec::new();
    while address != 0 && all.len() < PATH_MAX {
        // To the end of a page: the next one may not be there.
        let mut piece = [0; PAGE as usize];
        let len = (PAGE - address % PAGE) as usize;
        let read = sys::read_memory(thread, address, &mut piece[..len]).ok()?;
        let piece = piece.get(..read).filter(|piece| !piece.is_empty())?;
        if let Some(end) = piece.iter().position(|&c| c == 0) {
            all.extend_from_slice(&piece[..end]);
            return (!all.is_empty() && all.len() < PATH_MAX).then(|| CString::new(all).ok())?;
        }
        all.extend_from_slice(piece);
        address += read as u64;
    }
    None
}

/// Reads the times of a file, in seconds and nanoseconds; `Some(None)` where there are none.
/// `None`: only the kernel can answer.
pub(crate) fn times(thread: u32, at: Times) -> Option<Option<[(i64, i64); 2]>> {
    let words = |address, count: usize| {
        let mut bytes = [0; 32];
        let bytes = bytes.get_mut(..8 * count)?;
        (sys::read_memory(thread, address, bytes).ok()? == bytes.len()).then_some(())?;
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = i64::from_ne_bytes(*bytes.first_chunk()?);
        }
        Some(words)
    };
    Some(match at {
        Times::None => None,
        Times::Nanoseconds(address) => {
            let [a, b, c, d] = words(address, 4)?;
            Some([(a, b), (c, d)])
        }
        Times::Microseconds(address) => {
            let [a, b, c, d] = words(address, 4)?;
            // The kernel refuses others.
            let is_valid = (0..1_000_000).contains(&b) && (0..1_000_000).contains(&d);
            is_valid.then_some(Some([(a, b * 1000), (c, d * 1000)]))?
        }
        Times::Seconds(address) => {
            let [a, b, ..] = words(address, 2)?;
            Some([(a, 0), (b, 0)])
        }
    })
}

/// The name in `/proc` of the directory that a relative path of a thread begins at.
fn directory(thread: u32, dir: i32) -> PathBuf {
    let of = PathBuf::from(format!("/proc/{thread}"));
    if dir == libc::AT_FDCWD { of.join("cwd") } else { of.join(format!("fd/{dir}")) }
}

/// A path as an absolute one, by the names that the kernel gives directories now.
pub(crate) fn absolute(thread: u32, text: Text, path: &[u8]) -> Option<Vec<u8>> {
    let dir = match (path.first(), text.dir) {
        (Some(b'/'), _) => return Some(path.to_vec()),
        (_, Some(dir)) => std::fs::read_link(directory(thread, dir)).ok()?,
        (_, None) => return None,
    };
    let dir = dir.as_os_str().as_bytes();
    (dir.first() == Some(&b'/')).then(|| [dir, b"/", path].concat())
}

/// Opens the very directory that a relative path begins at.
pub(crate) fn open_directory(thread: u32, dir: i32) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(directory(thread, dir), flags, Mode::empty()).ok()
}

/// What decides which files a process means and may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Lines of `status`: users, groups, capabilities.
    rights: Vec<String>,
    /// Root directory, namespaces of mounts and users.
    places: Vec<PathBuf>,
    /// What a security module calls it, where there is one.
    label: Option<Vec<u8>>,
}

/// A thread that calls.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    /// Its process.
    pub(crate) process: u32,
    pub(crate) umask: u32,
}

impl Caller {
    /// Asks the kernel about a thread.
    pub(crate) fn of(thread: u32) -> Option<Self> {
        let at = format!("/proc/{thread}");
        let status = std::fs::read_to_string(format!("{at}/status")).ok()?;
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let rights = ["Uid:", "Gid:", "Groups:", "CapEff:"].map(|name| value(name).map(str::to_owned));
        let places = ["root", "ns/mnt", "ns/user"].map(|name| std::fs::read_link(format!("{at}/{name}")).ok());
        let identity = Identity {
            rights: rights.into_iter().collect::<Option<_>>()?,
            places: places.into_iter().collect::<Option<_>>()?,
            label: std::fs::read(format!("{at}/attr/current")).ok(),
        };
        let process = value("Tgid:")?.parse().ok()?;
        let umask = u32::from_str_radix(value("Umask:")?, 8).ok()?;
        Some(Self { identity, process, umask })
    }

    /// This process.
    pub(crate) fn own() -> Option<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get().cast_unsigned())
    }
}

/// Processes that may have given up rights which no other process can see (Landlock): a change made
/// for them here might be one that they must not make.
///
/// The children of such a process are restricted, too, and the kernel does not say which these are.
/// So from the first such call on, every process that started later counts as restricted.
#[derive(Debug, Default)]
pub(crate) struct Restricted {
    since: Option<u64>,
    processes: HashSet<u32>,
}

impl Restricted {
    /// Takes all processes for restricted.
    pub(crate) fn all() -> Self {
        Self { since: Some(0), processes: HashSet::new() }
    }

    /// A thread gives up rights.
    pub(crate) fn add(&mut self, thread: u32) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // `stat` gives starts in hundredths of a second, on all machines. (One less: it rounds.)
        let now = now.tv_sec.cast_unsigned() * 100 + now.tv_nsec.cast_unsigned() / 10_000_000;
        self.since.get_or_insert(now.saturating_sub(1));
        self.processes.extend(Caller::of(thread).map(|caller| caller.process));
    }

    /// Whether a process may be restricted.
    pub(crate) fn holds(&self, process: u32) -> bool {
        let Some(since) = self.since else { return false };
        self.processes.contains(&process) || started(process).is_none_or(|start| start >= since)
    }
}

/// When a process started, in hundredths of a second after the boot.
fn started(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which may hold anything, there are 19 fields before it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_thread() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
    }

    #[test]
    fn texts_are_read_across_pages_and_only_whole() {
        let mut room = vec![0u8; 3 * PATH_MAX];
        let base = room.as_ptr() as u64;
        let edge = (base.next_multiple_of(PAGE) - base) as usize;
        let place = edge + PAGE as usize - 3;
        room[place..place + 7].copy_from_slice(b"/a/b/cd");
        let read = |at: usize| text(own_thread(), base + at as u64);
        assert_eq!(read(place).unwrap().as_bytes(), b"/a/b/cd");
        // Empty, and too long.
        assert_eq!(read(place + 7), None);
        room[..2 * PATH_MAX].fill(b'x');
        assert_eq!(text(own_thread(), room.as_ptr() as u64), None);
        assert_eq!(text(own_thread(), 0), None);
        assert_eq!(text(own_thread(), 8), None);
    }

    #[test]
    fn times_of_all_forms_are_read() {
        let words: [i64; 4] = [1, 2, 3, 4];
        let (thread, at) = (own_thread(), words.as_ptr() as u64);
        assert_eq!(times(thread, Times::None), Some(None));
        assert_eq!(times(thread, Times::Nanoseconds(at)), Some(Some([(1, 2), (3, 4)])));
        assert_eq!(times(thread, Times::Microseconds(at)), Some(Some([(1, 2000), (3, 4000)])));
        assert_eq!(times(thread, Times::Seconds(at)), Some(Some([(1, 0), (2, 0)])));
        assert_eq!(times(thread, Times::Seconds(8)), None);
        let wrong: [i64; 4] = [1, 1_000_000, 3, 4];
        assert_eq!(times(thread, Times::Microseconds(wrong.as_ptr() as u64)), None);
    }

    #[test]
    fn relative_paths_begin_at_their_directory() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        let open = std::fs::File::open(dir.path()).unwrap();
        let at = Text { dir: Some(std::os::fd::AsRawFd::as_raw_fd(&open)), address: 0 };
        let found = absolute(own_thread(), at, b"x/y").unwrap();
        assert_eq!(found, real.join("x/y").as_os_str().as_bytes());
        assert_eq!(absolute(own_thread(), at, b"/x").unwrap(), b"/x");
        assert_eq!(absolute(own_thread(), Text { dir: Some(-7), address: 0 }, b"x"), None);
        let again = open_directory(own_thread(), at.dir.unwrap()).unwrap();
        let inode = |fd: &dyn std::os::fd::AsFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(inode(&again), inode(&open));
    }

    #[test]
    fn a_process_is_itself_and_differs_in_another_root() {
        let (own, same) = (Caller::own().unwrap(), Caller::of(own_thread()).unwrap());
        assert_eq!(own.identity, same.identity);
        assert_eq!(own.process, std::process::id());
        let other = Identity { places: vec!["/other".into()], ..own.identity.clone() };
        assert_ne!(own.identity, other);
    }

    #[test]
    fn after_a_restriction_only_older_processes_count_as_free() {
        let own = std::process::id();
        assert!(!Restricted::default().holds(own));
        assert!(Restricted::all().holds(own));
        // This process is older; its own call restricts it.
        let mut restricted = Restricted { since: Some(started(own).unwrap() + 1), processes: HashSet::new() };
        assert!(!restricted.holds(own));
        restricted.add(own_thread());
        assert!(restricted.holds(own));
    }
}
