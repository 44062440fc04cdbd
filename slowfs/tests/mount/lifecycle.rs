//! Mounts appear, are controlled from the command line, and are gone however they end.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;

use slowfs::{FaultKind, FaultSpec};

use crate::common::{Test, World};

fn is_mounted(path: &Path) -> io::Result<bool> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table.lines().any(|line| line.contains("fuse.slowfs") && line.contains(&format!(" {} ", path.display()))))
}

#[test]
fn a_mount_is_in_the_table_until_dropped() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let pfs = world.builder().spawn()?;
    assert!(is_mounted(&world.mnt())?);
    let socket = pfs.socket().to_path_buf();
    drop(pfs);
    assert!(!is_mounted(&world.mnt())? && !socket.exists());
    Ok(())
}

#[test]
fn a_busy_mount_goes_lazily_and_a_stuck_server_is_killed() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 10)?;
    let pfs = world.builder().spawn()?;
    let file = File::open(world.mnt().join("f"))?;
    pfs.unmount()?;
    assert!(!is_mounted(&world.mnt())?);
    drop(file);

    let pfs = world.builder().spawn()?;
    let pid = pfs.pid().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status()?.success());
    assert!(pfs.unmount().is_err(), "it had to be killed");
    assert!(!is_mounted(&world.mnt())? && !Path::new("/proc").join(pid).exists());
    Ok(())
}

#[test]
fn signals_and_unmounts_by_other_processes_end_a_mount_cleanly() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    for stop in ["kill -TERM $PID", "kill -INT $PID", "umount $MNT || fusermount3 -u $MNT"] {
        let pfs = world.builder().spawn()?;
        let status =
            Command::new("sh").args(["-c", stop]).env("PID", pfs.pid().to_string()).env("MNT", world.mnt()).status()?;
        assert!(status.success(), "{stop}");
        pfs.unmount()?;
        assert!(!is_mounted(&world.mnt())?, "{stop}");
    }
    Ok(())
}

#[test]
fn the_command_line_controls_a_mount() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    world.file("f", 10)?;
    let slowfs = env!("CARGO_BIN_EXE_slowfs");
    let socket = world.root().join("control");
    let mounted = Command::new(slowfs)
        .args([world.src(), world.mnt()])
        .arg("--daemonize")
        .arg("--control")
        .arg(&socket)
        .output()?;
    assert!(String::from_utf8_lossy(&mounted.stdout).starts_with("mounted "), "{mounted:?}");
    let ctl = |args: &[&str]| -> io::Result<(bool, String)> {
        let output = Command::new(slowfs).arg("ctl").arg(&socket).args(args).output()?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    fs::read(world.mnt().join("f"))?;
    assert!(ctl(&["counters"])?.1.contains(r#""open":1"#));
    assert!(ctl(&["paths"])?.1.contains(r#""f":{"#));
    assert!(ctl(&["set", "meta_latency=2ms", "flush=true"])?.1.contains(r#""meta_latency":"2ms""#));
    assert!(ctl(&["fault", "kind=eio", "ops=read,open", "path=*", "count=1"])?.0);
    assert!(ctl(&["faults"])?.1.contains(r#""ops":["read","open"]"#));
    assert!(ctl(&["mutate", "path=f", "kind=shrink", "when=after_read:1"])?.0);
    assert!(!ctl(&["mutate", "path=g", "kind=shrink"])?.0, "no such file");
    assert!(!ctl(&["fault", "kind=nonsense"])?.0);
    assert!(ctl(&["clear"])?.0 && ctl(&["reset"])?.0 && ctl(&["options"])?.0);
    assert!(ctl(&["unmount"])?.0);
    for _ in 0..500 {
        if !is_mounted(&world.mnt())? && !socket.exists() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("still mounted");
}

#[test]
fn errors_are_reported() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    assert!(slowfs::Slowfs::builder(world.root().join("missing"), world.mnt()).spawn().is_err());
    assert!(!is_mounted(&world.mnt())?);
    let pfs = world.builder().spawn()?;
    assert!(pfs.fault(FaultSpec::new(FaultKind::EIO).path("x")).is_ok());
    Ok(())
}
