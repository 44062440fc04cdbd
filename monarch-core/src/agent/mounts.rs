//! Mounts that come to be below a root, at one, or on the way to one, while jobs run.
//!
//! A process with the preload library tells of what it mounts itself. `mount` and `fusermount` are setuid programs, for which the loader
//! leaves the library out; so the agent has the kernel say when the table of mounts has changed (proc(5)). A job that reads within the
//! milliseconds until then sees what was there before.

use super::driver::Driver;
use super::{early, upkeep};
use crate::config::mount_points;
use monarch_abi::control::Root;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Watches until `stop`, on a thread of its own.
pub(super) fn watch(driver: &Arc<Driver>, stop: Arc<AtomicBool>) {
    let driver = driver.clone();
    let work = move || {
        let Ok(table) = File::open("/proc/self/mountinfo") else { return };
        let mut known = mount_points();
        let period = Timespec { tv_sec: 0, tv_nsec: i64::from(upkeep::PERIOD.subsec_nanos()) };
        while !stop.load(Ordering::Relaxed) {
            match poll(&mut [PollFd::new(&table, PollFlags::PRI)], Some(&period)) {
                Ok(0) => continue,
                Ok(_) => {}
                Err(_) => std::thread::sleep(upkeep::PERIOD),
            }
            let now = mount_points();
            now.difference(&known).for_each(|(_, point)| is_mounted(&driver, point));
            known = now;
        }
    };
    let _ = std::thread::Builder::new().name("mounts".to_owned()).stack_size(256 * 1024).spawn(work);
}

/// Something was mounted there.
fn is_mounted(driver: &Driver, point: &Path) {
    for (number, root) in driver.ctl.roots().iter().enumerate() {
        let path = Path::new(OsStr::from_bytes(driver.ctl.str(&root.path)));
        if path.starts_with(point) {
            if leads_elsewhere(root, path) {
                root.bypassed.store(1, Ordering::Release);
                tracing::warn!(root = %path.display(), at = %point.display(), "something was mounted over a root: it is read as it is there");
            }
        } else if let Ok(rel) = point.strip_prefix(path) {
            tracing::info!(root = %path.display(), at = %point.display(), "something was mounted below a root: it is read as it is there");
            cover(driver, number, rel.as_os_str().as_bytes());
        }
    }
}

fn leads_elsewhere(root: &Root, path: &Path) -> bool {
    let (dev, ino) = (root.dev.load(Ordering::Relaxed), root.ino.load(Ordering::Relaxed));
    !path.metadata().is_ok_and(|m| (m.dev(), m.ino()) == (dev, ino))
}

/// Leaves a directory and all below it to the kernel.
fn cover(driver: &Driver, root: usize, rel: &[u8]) {
    let enter = || {
        let served = driver.served();
        let mut its = served.iter().filter(|(_, live)| live.root() == root).peekable();
        let any = its.peek().is_some();
        its.for_each(|(number, live)| early::enter(&driver.ctl, *number, &live.segment, rel, true));
        any
    };
    // As for a job's own changes: either the index finds it when it comes, or it is found here.
    if !enter() && driver.ctl.ctl.early.leave(root, rel, true) {
        enter();
    }
}
