//! Counters are exact, per operation and per file.

use std::fs::{self, File};
use std::io::Read;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use slowfs::{CacheMode, Settings, Time};

use crate::common::{Test, World};

const LONG_TTL: Duration = Duration::from_secs(600);

#[test]
fn each_file_counts_one_open_and_its_bytes() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    for i in 0..50 {
        world.file(&format!("d/f{i}"), 1_000 + i)?;
    }
    let pfs = world.builder().cache(CacheMode::Direct).attr_ttl(LONG_TTL).spawn()?;
    let mut buffer = vec![0; 1 << 16];
    for i in 0..50 {
        let mut file = File::open(pfs.mountpoint().join(format!("d/f{i}")))?;
        assert_eq!(file.read(&mut buffer)?, 1_000 + i);
    }
    let counters = pfs.counters()?;
    assert_eq!((counters.open, counters.read, counters.create, counters.write, counters.flush), (50, 50, 0, 0, 0));
    assert_eq!(counters.bytes_read, (0..50u64).map(|i| 1_000 + i).sum::<u64>());
    assert_eq!((counters.lookup, counters.errors, counters.faults), (51, 0, 0));
    let paths = pfs.paths()?;
    for i in 0..50 {
        let counts = paths[&format!("d/f{i}")];
        assert_eq!((counts.opens, counts.reads, counts.lookups, counts.bytes_read), (1, 1, 1, 1_000 + i));
    }
    pfs.reset()?;
    assert_eq!((pfs.counters()?.calls(), pfs.paths()?.len()), (0, 0));
    Ok(())
}

#[test]
fn counts_follow_a_rename() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("old", 10)?;
    let pfs = world.builder().cache(CacheMode::Direct).spawn()?;
    fs::rename(pfs.mountpoint().join("old"), pfs.mountpoint().join("new"))?;
    fs::read(pfs.mountpoint().join("new"))?;
    fs::write(pfs.mountpoint().join("new"), b"12345")?;
    let counts = pfs.paths()?["new"];
    assert_eq!((counts.opens, counts.bytes_read, counts.bytes_written), (2, 10, 5));
    Ok(())
}

#[test]
fn concurrent_clients_lose_no_count() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 4096)?;
    let pfs = world.builder().cache(CacheMode::Direct).attr_ttl(LONG_TTL).spawn()?;
    let path = pfs.mountpoint().join("f");
    thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| -> Test {
                    for _ in 0..200 {
                        File::open(&path)?.read_exact(&mut [0; 4096])?;
                    }
                    Ok(())
                })
            })
            .collect();
        clients.into_iter().all(|client| client.join().is_ok_and(|result| result.is_ok()))
    })
    .then_some(())
    .ok_or_else(|| std::io::Error::other("a client failed"))?;
    let counters = pfs.counters()?;
    assert_eq!((counters.open, counters.read, counters.bytes_read), (1_600, 1_600, 1_600 * 4096));
    Ok(())
}

#[test]
fn cache_modes_decide_what_a_second_reader_costs() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 100_000)?;
    let pfs = world.builder().attr_ttl(LONG_TTL).spawn()?;
    for (cache, expected) in [(CacheMode::Direct, 100_000), (CacheMode::NoKeep, 100_000), (CacheMode::Keep, 0)] {
        pfs.set(Settings { cache: Some(cache), ..Settings::default() })?;
        fs::read(pfs.mountpoint().join("f"))?;
        let before = pfs.counters()?;
        fs::read(pfs.mountpoint().join("f"))?;
        let cost = pfs.counters()? - before;
        assert_eq!((cost.open, cost.bytes_read), (1, expected), "{cache}");
    }
    Ok(())
}

#[test]
fn the_kernel_caches_attributes_for_their_ttl_only() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 1)?;
    let pfs = world.builder().attr_ttl(LONG_TTL).spawn()?;
    let path = pfs.mountpoint().join("f");
    let cost = |stat: &dyn Fn() -> Test| -> std::io::Result<u64> {
        let before = pfs.counters()?;
        stat()?;
        Ok((pfs.counters()? - before).metadata())
    };
    let plain = || fs::metadata(&path).map(drop);
    let forced = || Ok(statx(CWD, &path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).map(drop)?);
    plain()?;
    assert_eq!((cost(&plain)?, cost(&forced)?), (0, 1));
    pfs.set(Settings { attr_ttl: Some(Time(Duration::ZERO)), entry_ttl: Some(Time(LONG_TTL)), ..Settings::default() })?;
    forced()?;
    assert_eq!((cost(&plain)?, cost(&plain)?), (1, 1));
    Ok(())
}

#[test]
fn a_close_sends_flush_only_when_the_option_is_on() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 1)?;
    let pfs = world.builder().flush_latency().spawn()?;
    fs::read(pfs.mountpoint().join("f"))?;
    pfs.set(Settings { flush: Some(false), ..Settings::default() })?;
    fs::read(pfs.mountpoint().join("f"))?;
    assert_eq!(pfs.counters()?.flush, 1);
    Ok(())
}

#[test]
fn forgotten_nodes_release_their_descriptors() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let pfs = world.builder().spawn()?;
    let open = || -> std::io::Result<_> { Ok(fs::read_dir(format!("/proc/{}/fd", pfs.pid()))?.count()) };
    let before = open()?;
    for i in 0..300 {
        fs::write(pfs.mountpoint().join(format!("f{i}")), b"")?;
    }
    assert!(open()? >= before + 300);
    for i in 0..300 {
        fs::remove_file(pfs.mountpoint().join(format!("f{i}")))?;
    }
    // The kernel forgets in the background.
    for _ in 0..500 {
        if open()? < before + 20 {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{before} descriptors before, {} after", open()?);
}
