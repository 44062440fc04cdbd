//! Each kind of fault hits what its rule names, as often as it says.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use slowfs::{CacheMode, FaultKind, FaultSpec, Op};

use crate::common::{Test, World, errno};

#[test]
fn errors_hit_the_named_calls() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let content = world.file("d/f", 1_000)?;
    world.file("d/g", 1_000)?;
    let pfs = world.builder().cache(CacheMode::Direct).attr_ttl(Duration::ZERO).spawn()?;
    let path = pfs.mountpoint().join("d/f");

    pfs.fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Read]).path("d/f").count(1))?;
    assert_eq!(errno(fs::read(&path)), Some(libc::EIO));
    assert!(fs::read(&path)? == content);

    pfs.fault(FaultSpec::new(FaultKind::ESTALE).ops(&[Op::Open]).path("d/*"))?;
    assert_eq!(errno(File::open(&path)), Some(libc::ESTALE));
    assert_eq!(errno(File::open(pfs.mountpoint().join("d/g"))), Some(libc::ESTALE));
    pfs.clear()?;

    pfs.fault(FaultSpec::new(FaultKind::Errno(libc::ENOSPC)).ops(&[Op::Create]))?;
    assert_eq!(errno(File::create(pfs.mountpoint().join("new"))), Some(libc::ENOSPC));
    assert!(!world.src().join("new").exists());
    pfs.fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Lookup, Op::Getattr]).path("d/f").after(1))?;
    let stats = [fs::metadata(&path), fs::metadata(&path)].map(errno);
    assert_eq!(stats[1], Some(libc::EIO));

    let rules = pfs.faults()?;
    assert_eq!(rules.iter().map(|rule| rule.hit > 0).collect::<Vec<_>>(), [true, true]);
    assert!(pfs.counters()?.faults >= 5);
    pfs.clear()?;
    assert!(pfs.faults()?.is_empty() && fs::read(&path)? == content);
    Ok(())
}

#[test]
fn a_short_read_is_short() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let content = world.file("f", 1_000)?;
    let pfs = world.builder().cache(CacheMode::Direct).spawn()?;
    pfs.fault(FaultSpec::new(FaultKind::ShortRead(100)))?;
    let mut file = File::open(pfs.mountpoint().join("f"))?;
    assert_eq!(file.read(&mut [0; 1_000])?, 100);
    assert!(fs::read(pfs.mountpoint().join("f"))? == content, "a patient reader gets everything");
    assert_eq!(pfs.counters()?.bytes_read, 1_100);
    Ok(())
}

#[test]
fn zeros_replace_bytes_but_not_attributes() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let content = world.file("d/f", 5_000)?;
    let other = world.file("g", 1_000)?;
    std::os::unix::fs::symlink("d/f", world.src().join("link"))?;
    let pfs = world.builder().attr_ttl(Duration::ZERO).spawn()?;
    let path = pfs.mountpoint().join("d/f");
    let identity = || fs::metadata(&path).map(|m| (m.len(), m.ino(), m.mtime_nsec(), m.ctime_nsec()));
    let before = identity()?;
    assert!(fs::read(&path)? == content);

    pfs.fault(FaultSpec::new(FaultKind::Zeros).path("d/*"))?;
    assert!(fs::read(pfs.mountpoint().join("link"))? == [0; 5_000], "through a link, which is not blanked");
    assert!(fs::read(pfs.mountpoint().join("g"))? == other);
    assert_eq!(identity()?, before);
    assert_eq!(pfs.paths()?["d/f"].bytes_read, 10_000);

    pfs.clear()?;
    assert!(fs::read(&path)? == content);
    Ok(())
}

#[test]
fn a_stalled_call_delays_no_other_call_until_it_is_released() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let content = world.file("stuck", 1_000)?;
    world.file("free", 1_000)?;
    let pfs = world.builder().cache(CacheMode::Direct).threads(2).spawn()?;
    pfs.fault(FaultSpec::new(FaultKind::STALL).ops(&[Op::Read]).path("stuck"))?;
    thread::scope(|scope| -> Test {
        let (tx, rx) = mpsc::channel();
        for _ in 0..8 {
            let (tx, path) = (tx.clone(), pfs.mountpoint().join("stuck"));
            scope.spawn(move || tx.send(fs::read(path)));
        }
        for _ in 0..50 {
            fs::read(pfs.mountpoint().join("free"))?;
        }
        assert!(rx.recv_timeout(Duration::from_millis(50)).is_err());
        pfs.clear()?;
        for _ in 0..8 {
            let read = rx.recv_timeout(Duration::from_secs(20)).map_err(std::io::Error::other)??;
            assert!(read == content);
        }
        Ok(())
    })
}

#[test]
fn a_timed_stall_ends_by_itself() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 1_000)?;
    let pfs = world.builder().cache(CacheMode::Direct).spawn()?;
    let stall = Duration::from_millis(200);
    pfs.fault(FaultSpec::new(FaultKind::Stall(Some(stall))).ops(&[Op::Open]).count(1))?;
    let start = Instant::now();
    fs::read(pfs.mountpoint().join("f"))?;
    assert!(start.elapsed() >= stall);
    Ok(())
}

#[test]
fn unmounting_ends_stalls() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 1_000)?;
    let pfs = world.builder().cache(CacheMode::Direct).spawn()?;
    pfs.fault(FaultSpec::new(FaultKind::STALL).ops(&[Op::Open]))?;
    let path = pfs.mountpoint().join("f");
    let reader = thread::spawn(move || fs::read(path));
    while pfs.counters()?.open == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    pfs.unmount()?;
    assert!(reader.join().is_ok(), "the reader came back");
    Ok(())
}
