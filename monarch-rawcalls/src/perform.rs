//! Makes a change by the functions of the C library, so that the hooks of the preload library do
//! all that a change means.

use crate::calls::Kind;
use crate::request::{Path, Request};
use crate::sys::{self, Function};
use monarch_abi::raw_calls::PROBE_ANSWER;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::Mode;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

/// Directories of relative paths.
pub(crate) type Directories = [Option<OwnedFd>; 2];

/// Makes the change. Returns what the system call would: a negative errno where it fails. The
/// caller's thread has a umask of its own ([`sys::unshare_directories`]).
pub(crate) fn perform(request: &Request, directories: &Directories) -> i64 {
    let at = |n: usize| directories[n].as_ref().map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    let (first, second) = ((at(0), request.first.text.as_c_str()), (at(1), request.second.text.as_c_str()));
    let [x, y, z] = request.numbers.map(|number| number as i32);
    let whole;
    let function = match request.kind {
        Kind::Rename => Function::Rename(first, second, x as u32),
        Kind::Link => Function::Link(first, second, x),
        Kind::Unlink => Function::Unlink(first, x),
        Kind::Symlink => Function::Symlink(second.1, first),
        Kind::Truncate => {
            let Some(path) = absolute(&request.first, directories[0].as_ref()) else {
                return -i64::from(libc::ENOENT);
            };
            whole = path;
            Function::Truncate(&whole, request.numbers[0])
        }
        Kind::Mode => Function::Mode(first, x as u32, y),
        Kind::Owner => Function::Owner(first, x as u32, y as u32, z),
        Kind::Times => Function::Times(first, request.times, x),
        Kind::MakeDir | Kind::MakeNode => {
            rustix::process::umask(Mode::from_raw_mode(request.umask));
            if request.kind == Kind::MakeDir {
                Function::MakeDir(first, x as u32)
            } else {
                Function::MakeNode(first, x as u32, y as u32)
            }
        }
        Kind::Probe => return PROBE_ANSWER as i64,
        Kind::Restrict => return -i64::from(libc::EINVAL),
    };
    let result = sys::change(function);
    if request.is_retry && was_made(request.kind, result) { 0 } else { result }
}

/// Whether the second try of a change fails as it does when the first one was made.
fn was_made(kind: Kind, result: i64) -> bool {
    let expected = match kind {
        Kind::Rename | Kind::Unlink => libc::ENOENT,
        Kind::Link | Kind::Symlink | Kind::MakeDir | Kind::MakeNode => libc::EEXIST,
        _ => return false,
    };
    result == -i64::from(expected)
}

/// truncate(2) has no form with a directory.
fn absolute(path: &Path, directory: Option<&OwnedFd>) -> Option<CString> {
    let Some(directory) = directory else { return Some(path.text.clone()) };
    let dir = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).ok()?;
    CString::new(dir.join(std::ffi::OsStr::from_bytes(path.text.as_bytes())).into_os_string().into_encoded_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// Makes changes in a directory, by relative paths.
    struct Place {
        dir: tempfile::TempDir,
    }

    impl Place {
        fn request(&self, kind: Kind, first: &str, second: &str, numbers: [i64; 3]) -> Request {
            let path = |text: &str| Path { text: CString::new(text).unwrap(), is_relative: true };
            let (first, second) = (path(first), path(second));
            Request { id: 1, kind, numbers, times: None, umask: 0o27, is_retry: false, first, second }
        }

        fn make(&self, request: &Request) -> i64 {
            let open = || Some(OwnedFd::from(fs::File::open(self.dir.path()).unwrap()));
            perform(request, &[open(), open()])
        }

        fn change(&self, kind: Kind, first: &str, second: &str, numbers: [i64; 3]) -> i64 {
            self.make(&self.request(kind, first, second, numbers))
        }
    }

    #[test]
    fn each_kind_does_what_its_call_does() {
        let p = Place { dir: tempfile::tempdir().unwrap() };
        assert!(std::thread::scope(|s| s.spawn(|| changes(&p)).join().is_ok()));
    }

    fn changes(p: &Place) {
        assert!(sys::unshare_directories());
        let path = |name: &str| p.dir.path().join(name);
        fs::write(path("a"), "text").unwrap();
        assert_eq!(p.change(Kind::Rename, "a", "b", [0; 3]), 0);
        assert_eq!(p.change(Kind::Link, "b", "c", [0; 3]), 0);
        assert_eq!(fs::metadata(path("c")).unwrap().nlink(), 2);
        let noreplace = i64::from(libc::RENAME_NOREPLACE);
        assert_eq!(p.change(Kind::Rename, "b", "c", [noreplace, 0, 0]), -i64::from(libc::EEXIST));
        assert_eq!(p.change(Kind::Symlink, "l", "some/where", [0; 3]), 0);
        assert_eq!(fs::read_link(path("l")).unwrap().to_str(), Some("some/where"));
        assert_eq!(p.change(Kind::Truncate, "c", "", [2, 0, 0]), 0);
        assert_eq!(fs::read_to_string(path("b")).unwrap(), "te");
        assert_eq!(p.change(Kind::Mode, "b", "", [0o640, 0, 0]), 0);
        assert_eq!(fs::metadata(path("b")).unwrap().permissions().mode() & 0o7777, 0o640);
        assert_eq!(p.change(Kind::Owner, "l", "", [-1, -1, i64::from(libc::AT_SYMLINK_NOFOLLOW)]), 0);
        let times = Some([(1, 2), (3, 4)]);
        assert_eq!(p.make(&Request { times, ..p.request(Kind::Times, "b", "", [0; 3]) }), 0);
        let meta = fs::metadata(path("b")).unwrap();
        assert_eq!((meta.atime(), meta.mtime(), meta.mtime_nsec()), (1, 3, 4));
        assert_eq!(p.change(Kind::MakeDir, "d", "", [0o777, 0, 0]), 0);
        assert_eq!(fs::metadata(path("d")).unwrap().permissions().mode() & 0o7777, 0o750);
        assert_eq!(p.change(Kind::MakeNode, "n", "", [i64::from(libc::S_IFIFO) | 0o666, 0, 0]), 0);
        assert_eq!(fs::metadata(path("n")).unwrap().permissions().mode() & 0o7777, 0o640);
        assert_eq!(p.change(Kind::Unlink, "d", "", [0; 3]), -i64::from(libc::EISDIR));
        assert_eq!(p.change(Kind::Unlink, "d", "", [i64::from(libc::AT_REMOVEDIR), 0, 0]), 0);
        assert_eq!(p.change(Kind::Probe, "x", "", [0; 3]), PROBE_ANSWER as i64);
    }

    #[test]
    fn a_change_that_a_dead_helper_may_have_made_is_done() {
        let p = Place { dir: tempfile::tempdir().unwrap() };
        let gone = p.request(Kind::Unlink, "none", "", [0; 3]);
        assert_eq!(p.make(&gone), -i64::from(libc::ENOENT));
        assert_eq!(p.make(&Request { is_retry: true, ..gone }), 0);
        let mode = Request { is_retry: true, ..p.request(Kind::Mode, "none", "", [0; 3]) };
        assert_eq!(p.make(&mode), -i64::from(libc::ENOENT));
    }
}
