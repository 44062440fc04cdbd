//! Latency and bandwidth: at least what was asked for, and slept concurrently. No test here
//! measures speed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use slowfs::{CacheMode, Settings, Time};

use crate::common::{Test, World};

#[test]
fn each_call_costs_at_least_its_latency() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 4096)?;
    let (meta, data) = (Duration::from_millis(2), Duration::from_millis(3));
    let pfs = world.builder().cache(CacheMode::Direct).meta_latency(meta).data_latency(data).spawn()?;
    let start = Instant::now();
    let file = File::open(pfs.mountpoint().join("f"))?;
    let calls = pfs.counters()?;
    assert!(start.elapsed() >= meta * u32::try_from(calls.metadata() + calls.opens()).unwrap_or(0));
    let start = Instant::now();
    for _ in 0..10 {
        file.read_exact_at(&mut [0; 100], 0)?;
    }
    assert!(start.elapsed() >= data * 10);
    Ok(())
}

#[test]
fn latency_is_slept_concurrently() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 4096)?;
    let latency = Duration::from_millis(20);
    let pfs = world.builder().cache(CacheMode::Direct).data_latency(latency).threads(2).spawn()?;
    let file = File::open(pfs.mountpoint().join("f"))?;
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                (0..5).for_each(|_| assert!(file.read_exact_at(&mut [0; 100], 0).is_ok()));
            });
        }
    });
    // One at a time would take 6.4 s, as many at a time as there are server threads 3.2 s.
    assert!(start.elapsed() >= latency * 5 && start.elapsed() < latency * 80, "{:?}", start.elapsed());
    Ok(())
}

#[test]
fn clients_share_the_bandwidth() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("a", 1 << 20)?;
    world.file("b", 1 << 20)?;
    let pfs = world.builder().cache(CacheMode::Direct).bandwidth(4 << 20).spawn()?;
    let start = Instant::now();
    thread::scope(|scope| {
        for name in ["a", "b"] {
            let path = pfs.mountpoint().join(name);
            scope.spawn(move || assert!(fs::read(path).is_ok()));
        }
    });
    assert!(start.elapsed() >= Duration::from_millis(490), "{:?}", start.elapsed());
    Ok(())
}

#[test]
fn options_change_while_mounted() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 10)?;
    let pfs = world.builder().cache(CacheMode::Direct).spawn()?;
    let latency = Time(Duration::from_millis(30));
    let now = pfs.set(Settings { data_latency: Some(latency), ..Settings::default() })?;
    assert_eq!((now.data_latency, now.cache), (Some(latency), Some(CacheMode::Direct)));
    let start = Instant::now();
    fs::read(pfs.mountpoint().join("f"))?;
    assert!(start.elapsed() >= latency.0);
    Ok(())
}
