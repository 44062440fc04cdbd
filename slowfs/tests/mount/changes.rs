//! What is changed through the mount is changed in the source.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FallocateFlags, RenameFlags, renameat_with};
use slowfs::CacheMode;

use crate::common::{Test, World, errno};

#[test]
fn file_changes_reach_the_source() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    for cache in [CacheMode::Direct, CacheMode::NoKeep, CacheMode::Keep] {
        let _pfs = world.builder().cache(cache).spawn()?;
        let (src, mnt) = (world.src().join("f"), world.mnt().join("f"));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&mnt)?;
        file.write_all(b"0123456789")?;
        file.write_all_at(b"AB", 3)?;
        file.sync_all()?;
        assert_eq!(fs::read(&src)?, b"012AB56789");
        assert_eq!(fs::metadata(&src)?.mode() & 0o777, 0o640);
        assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(&mnt)), Some(libc::EEXIST));

        // The second appender grew the file behind the first one's idea of the size.
        let mut first = OpenOptions::new().append(true).open(&mnt)?;
        let mut second = OpenOptions::new().append(true).open(&src)?;
        first.write_all(b"1")?;
        second.write_all(b"2")?;
        first.write_all(b"3")?;
        assert_eq!(fs::read(&src)?, b"012AB56789123");

        file.set_len(4)?;
        assert_eq!((fs::read(&src)?, fs::metadata(&mnt)?.len()), (b"012A".to_vec(), 4));
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 8192)?;
        assert_eq!(fs::metadata(&src)?.len(), 8192);
        drop(OpenOptions::new().write(true).truncate(true).open(&mnt)?);
        assert_eq!((fs::metadata(&src)?.len(), fs::metadata(&mnt)?.len()), (0, 0));

        fs::set_permissions(&mnt, fs::Permissions::from_mode(0o600))?;
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        file.set_modified(time)?;
        let meta = fs::metadata(&src)?;
        assert_eq!((meta.mode() & 0o777, meta.modified()?), (0o600, time));
        fs::remove_file(&mnt)?;
        assert!(!src.exists());
    }
    Ok(())
}

#[test]
fn tree_changes_reach_the_source() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("a", 1)?;
    world.file("b", 2)?;
    let _pfs = world.builder().spawn()?;
    let (src, mnt) = (world.src(), world.mnt());
    let sizes =
        || -> std::io::Result<_> { Ok((fs::metadata(src.join("a"))?.len(), fs::metadata(mnt.join("a"))?.len())) };
    let rename = |from: &str, to: &str, flags| renameat_with(CWD, mnt.join(from), CWD, mnt.join(to), flags);

    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE)?;
    assert_eq!(sizes()?, (2, 2));
    rename("b", "a", RenameFlags::empty())?;
    assert_eq!(sizes()?, (1, 1));
    assert!(!src.join("b").exists() && !mnt.join("b").exists());

    fs::create_dir_all(mnt.join("d/e"))?;
    fs::rename(mnt.join("a"), mnt.join("d/e/a"))?;
    fs::rename(mnt.join("d"), mnt.join("x"))?;
    assert_eq!(fs::read(mnt.join("x/e/a"))?, fs::read(src.join("x/e/a"))?);
    assert_eq!(errno(fs::remove_dir(mnt.join("x"))), Some(libc::ENOTEMPTY));

    fs::hard_link(mnt.join("x/e/a"), mnt.join("hard"))?;
    let (one, other) = (fs::metadata(mnt.join("hard"))?, fs::metadata(mnt.join("x/e/a"))?);
    assert_eq!((one.ino(), one.nlink(), other.ino()), (other.ino(), 2, fs::metadata(src.join("hard"))?.ino()));
    symlink("hard", mnt.join("soft"))?;
    assert_eq!(fs::read(mnt.join("soft"))?, fs::read(src.join("hard"))?);
    for name in ["soft", "hard", "x/e/a"] {
        fs::remove_file(mnt.join(name))?;
    }
    fs::remove_dir_all(mnt.join("x"))?;
    assert_eq!(fs::read_dir(&src)?.count(), 0);
    Ok(())
}

#[test]
fn open_files_survive_unlink_and_rename() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let content = world.file("f", 10_000)?;
    let pfs = world.builder().cache(CacheMode::Direct).attr_ttl(Duration::ZERO).spawn()?;
    let mut file = File::options().read(true).write(true).open(pfs.mountpoint().join("f"))?;
    fs::rename(pfs.mountpoint().join("f"), pfs.mountpoint().join("g"))?;
    let mut read = Vec::new();
    file.read_to_end(&mut read)?;
    assert!(read == content);
    fs::remove_file(pfs.mountpoint().join("g"))?;
    file.write_all(b"more")?;
    file.seek(SeekFrom::Start(0))?;
    read.clear();
    file.read_to_end(&mut read)?;
    assert_eq!((read.len(), file.metadata()?.nlink()), (10_004, 0));
    // Removed through this mount: re-opening the descriptor is no stale name.
    let again = fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)))?;
    assert!(again == read);
    Ok(())
}

#[test]
fn other_users_own_what_they_make_and_get_no_more_than_modes_allow() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return Ok(());
    }
    world.file("secret", 1)?;
    for path in [world.root().to_path_buf(), world.src()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
    }
    fs::set_permissions(world.src().join("secret"), fs::Permissions::from_mode(0o600))?;
    let pfs = world.builder().allow_other().spawn()?;
    let sh = |script: &str| {
        Command::new("sh").args(["-c", script]).current_dir(pfs.mountpoint()).uid(65534).gid(65534).status()
    };
    assert!(sh("echo x > made && mkdir dir && ln -s made soft")?.success());
    for name in ["made", "dir", "soft"] {
        let meta = fs::symlink_metadata(world.src().join(name))?;
        assert_eq!((meta.uid(), meta.gid()), (65534, 65534), "{name}");
    }
    assert!(!sh("cat secret 2>/dev/null")?.success());
    Ok(())
}
