//! Extended attributes of files: those that a job sets on a staged file are its published file's.

use super::Extended;
use rustix::fd::BorrowedFd;
use rustix::fs::XattrFlags;
use rustix::io::{Errno, Result};

/// Classes of attributes that a job may set. The rest belongs to the file system.
const CLASSES: [&[u8]; 2] = [b"user.", b"security.capability"];
/// The access list.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// Most bytes of the list of names, and of a value: the kernel's own bound.
const MAX_BYTES: usize = 65536;

/// The names of the extended attributes of an open file that a job may have set; none where the
/// file system has no such attributes.
fn names(fd: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>> {
    let mut list = vec![0_u8; MAX_BYTES];
    let len = match rustix::fs::flistxattr(fd, &mut list) {
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
        other => other?,
    };
    let all = list[..len].split(|&c| c == 0);
    let is_job = |name: &&[u8]| CLASSES.iter().any(|class| name.starts_with(class)) || *name == ACCESS_LIST;
    Ok(all.filter(is_job).map(<[u8]>::to_vec).collect())
}

/// The extended attributes of an open file that a job may have set.
///
/// # Errors
/// What the kernel said.
pub fn extended_of(fd: BorrowedFd<'_>) -> Result<Vec<Extended>> {
    let mut out = Vec::new();
    for name in names(fd)? {
        let mut value = vec![0_u8; MAX_BYTES];
        match rustix::fs::fgetxattr(fd, name.as_slice(), &mut value) {
            Ok(len) => {
                value.truncate(len);
                out.push(Extended { name, value });
            }
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(out)
}

/// That a file has no access list, if it could have one.
///
/// # Errors
/// What the kernel said.
pub fn no_list_of(fd: BorrowedFd<'_>) -> Result<Option<Extended>> {
    match rustix::fs::fgetxattr(fd, ACCESS_LIST, &mut [0_u8; 0]) {
        Err(Errno::NODATA) => Ok(Some(Extended { name: ACCESS_LIST.to_vec(), value: Vec::new() })),
        Err(Errno::NOTSUP | Errno::NOSYS) | Ok(_) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Gives an open file these extended attributes, and no others that a job may set. Its access list
/// stays if there is none among them: it may be its directory's. An empty one removes it.
///
/// # Errors
/// What the kernel said.
pub(super) fn set(fd: BorrowedFd<'_>, extended: &[Extended]) -> Result<()> {
    for name in names(fd)? {
        if name != ACCESS_LIST && extended.iter().all(|attribute| attribute.name != name) {
            match rustix::fs::fremovexattr(fd, name.as_slice()) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    // One that is not taken hinders no other.
    let set = |attribute: &Extended| {
        if attribute.name == ACCESS_LIST && attribute.value.is_empty() {
            return match rustix::fs::fremovexattr(fd, ACCESS_LIST) {
                Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS) => Ok(()),
                done => done,
            };
        }
        rustix::fs::fsetxattr(fd, attribute.name.as_slice(), &attribute.value, XattrFlags::empty())
    };
    extended.iter().map(set).fold(Ok(()), Result::and)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn a_file_gets_the_attributes_of_another_and_loses_its_own() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let make = |name| std::fs::File::create(dir.path().join(name)).unwrap();
        let (a, b) = (make("a"), make("b"));
        let put = |file: &std::fs::File, name: &str, value: &[u8]| {
            rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())
        };
        if put(&a, "user.note", b"a").is_err() {
            println!("skipped: no extended attributes on this file system");
            return;
        }
        put(&b, "user.other", b"b").unwrap();
        set(b.as_fd(), &extended_of(a.as_fd()).unwrap()).unwrap();
        assert_eq!(extended_of(b.as_fd()).unwrap(), [Extended { name: b"user.note".into(), value: b"a".into() }]);
    }

    #[test]
    fn an_access_list_goes_only_if_it_is_known_that_there_is_none() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let make = |name| std::fs::File::create(dir.path().join(name)).unwrap();
        let (with, without) = (make("with"), make("without"));
        let entry = |tag: u16, perm: u16, who: u32| {
            [&tag.to_le_bytes()[..], &perm.to_le_bytes()[..], &who.to_le_bytes()[..]].concat()
        };
        let entries = [(1, 6, u32::MAX), (2, 4, 1), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
        let list =
            entries.into_iter().fold(vec![2, 0, 0, 0], |list, (tag, perm, who)| [list, entry(tag, perm, who)].concat());
        if rustix::fs::fsetxattr(&with, ACCESS_LIST, &list, XattrFlags::empty()).is_err() {
            println!("skipped: no access lists on this file system");
            return;
        }
        let has_list = || !names(with.as_fd()).unwrap().is_empty();
        assert_eq!(no_list_of(with.as_fd()).unwrap(), None);
        set(with.as_fd(), &extended_of(without.as_fd()).unwrap()).unwrap();
        assert!(has_list(), "it may be its directory's");
        let none = no_list_of(without.as_fd()).unwrap().unwrap();
        for _ in 0..2 {
            set(with.as_fd(), std::slice::from_ref(&none)).unwrap();
            assert!(!has_list());
        }
    }
}
