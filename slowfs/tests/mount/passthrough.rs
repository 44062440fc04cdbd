//! What is read through the mount is what lies in the source.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;

use rustix::fs::XattrFlags;

use crate::common::{Test, World};

/// Everything that `lstat` reports and that must be the same on both sides, by path.
fn tree(root: &Path, at: &Path, found: &mut BTreeMap<String, Vec<String>>) -> Test {
    for entry in fs::read_dir(at)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        let mut facts = vec![format!(
            "{:o} {} {} {} {} {} {}.{} {}.{} {}",
            meta.mode(),
            meta.ino(),
            meta.nlink(),
            meta.size(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
            meta.rdev(),
        )];
        if meta.is_symlink() {
            facts.push(fs::read_link(&path)?.display().to_string());
        } else if meta.is_file() {
            facts.push(format!("{:?}", fs::read(&path)?));
        } else if meta.is_dir() {
            tree(root, &path, found)?;
        }
        let relative = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        found.insert(relative, facts);
    }
    Ok(())
}

#[test]
fn the_mount_shows_what_the_source_holds() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    for (name, size) in [("empty", 0), ("a/small", 1), ("a/b/medium", 100_000), ("a/b/big", 3_000_001)] {
        world.file(name, size)?;
    }
    fs::hard_link(world.src().join("a/small"), world.src().join("a/b/hard"))?;
    symlink("a/b/medium", world.src().join("link"))?;
    symlink("nowhere", world.src().join("dangling"))?;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        world.src().join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )?;
    for builder in [world.builder(), world.builder().no_readdirplus()] {
        let pfs = builder.spawn()?;
        let (mut there, mut here) = (BTreeMap::new(), BTreeMap::new());
        tree(pfs.mountpoint(), pfs.mountpoint(), &mut here)?;
        tree(&world.src(), &world.src(), &mut there)?;
        assert_eq!(here, there);
        assert!(fs::symlink_metadata(world.mnt().join("fifo"))?.file_type().is_fifo());
        assert_eq!(fs::metadata(world.mnt())?.ino(), fs::metadata(world.src())?.ino());
        let (ours, theirs) = (rustix::fs::statvfs(world.mnt())?, rustix::fs::statvfs(world.src())?);
        assert_eq!((ours.f_blocks, ours.f_frsize), (theirs.f_blocks, theirs.f_frsize));
    }
    Ok(())
}

#[test]
fn a_large_directory_is_listed_completely_and_once() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let mut expected: Vec<_> = (0..3_000).map(|i| format!("file-with-a-long-name-{i:05}.jpg")).collect();
    for name in &expected {
        fs::write(world.src().join(name), b"")?;
    }
    expected.sort();
    for builder in [world.builder(), world.builder().no_readdirplus()] {
        let pfs = builder.spawn()?;
        for _ in 0..2 {
            let names = fs::read_dir(pfs.mountpoint())?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned()));
            let mut names = names.collect::<std::io::Result<Vec<_>>>()?;
            names.sort();
            assert!(names == expected, "{} names", names.len());
        }
    }
    Ok(())
}

#[test]
fn extended_attributes_pass() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 1)?;
    if rustix::fs::setxattr(world.src().join("f"), "user.a", b"1", XattrFlags::empty()).is_err() {
        println!("skipped: the temporary directory has no user attributes");
        return Ok(());
    }
    let pfs = world.builder().spawn()?;
    let file = pfs.mountpoint().join("f");
    rustix::fs::setxattr(&file, "user.b", b"twenty-two", XattrFlags::CREATE)?;
    assert_eq!(rustix::fs::setxattr(&file, "user.b", b"", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    let mut buffer = [0; 100];
    let length = rustix::fs::getxattr(&file, "user.b", &mut buffer)?;
    assert_eq!(&buffer[..length], b"twenty-two");
    assert_eq!(rustix::fs::getxattr(&file, "user.b", &mut [0; 3]), Err(rustix::io::Errno::RANGE));
    let length = rustix::fs::listxattr(&file, &mut buffer)?;
    let names = String::from_utf8_lossy(&buffer[..length]).into_owned();
    assert!(names.contains("user.a\0") && names.contains("user.b\0"), "{names:?}");
    rustix::fs::removexattr(&file, "user.a")?;
    assert!(rustix::fs::getxattr(world.src().join("f"), "user.a", &mut buffer).is_err());
    Ok(())
}

#[test]
fn files_can_be_mapped_shared_in_every_cache_mode() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let content = world.file("f", 100_000)?;
    for cache in ["direct", "nokeep", "keep"] {
        let cache = cache.parse().map_err(std::io::Error::other)?;
        let pfs = world.builder().cache(cache).spawn()?;
        let file = fs::File::open(pfs.mountpoint().join("f"))?;
        // SAFETY: a fresh read-only mapping of a whole file that no process shortens while it is
        // mapped.
        let mapped = unsafe {
            let address =
                libc::mmap(std::ptr::null_mut(), content.len(), libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
            if address == libc::MAP_FAILED {
                println!("skipped: {cache} needs Linux 6.6 for shared mappings");
                continue;
            }
            let copy = std::slice::from_raw_parts(address.cast::<u8>(), content.len()).to_vec();
            libc::munmap(address, content.len());
            copy
        };
        assert!(mapped == content, "{cache}");
    }
    Ok(())
}
