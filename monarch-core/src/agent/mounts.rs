//! Mounts that appear below a root, at one, or on the way to one, while jobs run.
//!
//! A process with the preload library reports what it mounts itself. `mount` and `fusermount` are
//! setuid programs, for which the loader leaves the library out; so the agent has the kernel say
//! when the table of mounts has changed (proc(5)). A job that reads within the milliseconds until
//! then sees the files that were there before. An index whose service begins meanwhile is looked at
//! then ([`look`]).

use super::maintenance;
use super::stop::Stop;
use crate::config::{MountPoints, mount_points};
use crate::tiering::{LiveSegment, TieringEngine};
use monarch_abi::control::{NO_ROOT, Root, Spelling};
use monarch_abi::demand;
use monarch_abi::index::OWNER_KERNEL;
use monarch_abi::resolve::Found;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the thread looks whether the agent ends, while nothing is mounted.
const POLL_PERIOD: Duration = Duration::from_secs(5);

/// Watches until `stop`, on a thread of its own.
pub(super) fn watch(tiering: &Arc<TieringEngine>, stop: Stop) {
    let tiering = Arc::downgrade(tiering);
    let work = move || {
        let (Ok(table), Some(mut known)) = (File::open("/proc/self/mountinfo"), mount_points()) else { return };
        let mut again = false;
        while !stop.is_set() {
            let period = if again { maintenance::PERIOD } else { POLL_PERIOD };
            let period = Timespec { tv_sec: period.as_secs() as i64, tv_nsec: i64::from(period.subsec_nanos()) };
            match poll(&mut [PollFd::new(&table, PollFlags::PRI)], Some(&period)) {
                Ok(0) if !again => continue,
                Ok(_) => {}
                Err(_) => _ = stop.sleep(maintenance::PERIOD),
            }
            let Some(tiering) = tiering.upgrade() else { return };
            let Some(mut now) = mount_points() else {
                again = true;
                continue;
            };
            let new: Vec<_> = now.difference(&known).cloned().collect();
            let later: Vec<_> = new.into_iter().filter(|(_, point)| !is_mounted(&tiering, point)).collect();
            again = !later.is_empty();
            now.retain(|point| !later.contains(point));
            known = now;
        }
    };
    let _ = std::thread::Builder::new().name("mounts".to_owned()).stack_size(256 * 1024).spawn(work);
}

/// Leaves to the kernel what is mounted below the root of an index that is served from now on, and
/// was not mounted `before` the index was made.
pub(super) fn look(tiering: &TieringEngine, number: usize, live: &LiveSegment, before: Option<&MountPoints>) {
    let (Some(root), Some(now)) = (tiering.shared.cx.ctl.roots().get(live.root()), mount_points()) else { return };
    let path = path_of(tiering.shared.cx.ctl.str(&root.path));
    for (_, point) in now.iter().filter(|point| before.is_none_or(|known| !known.contains(*point))) {
        if let Some(rel) = below(point, path) {
            cover(tiering, number, live, rel);
        }
    }
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Where it is below a root, if it is; not at the root itself.
fn below<'a>(point: &'a Path, root: &Path) -> Option<&'a [u8]> {
    let rel = point.strip_prefix(root).ok()?.as_os_str().as_bytes();
    (!rel.is_empty()).then_some(rel)
}

/// Notes that something was mounted there; `false` if what that means is not known now.
fn is_mounted(tiering: &TieringEngine, point: &Path) -> bool {
    let (ctl, mut is_told) = (&tiering.shared.cx.ctl, true);
    for s in ctl.spellings() {
        let path = path_of(ctl.str(&s.path));
        let Some(root) = ctl.roots().get(s.root.load(Ordering::Relaxed) as usize) else { continue };
        if !path.starts_with(point) {
            continue;
        }
        match leads_elsewhere(tiering, s, root) {
            Err(_) => is_told = false,
            Ok(false) => {}
            Ok(true) if ctl.str(&root.path) == ctl.str(&s.path) => {
                root.bypassed.store(1, Ordering::Release);
                tracing::warn!(root = %path.display(), at = %point.display(), "something was mounted over a root: it is read as it is there");
            }
            Ok(true) => s.root.store(NO_ROOT, Ordering::Release),
        }
    }
    for (number, live) in tiering.shared.segments.served() {
        let Some(root) = ctl.roots().get(live.root()) else { continue };
        let path = path_of(ctl.str(&root.path));
        if let Some(rel) = below(point, path) {
            tracing::info!(root = %path.display(), at = %point.display(), "something was mounted below a root: it is read as it is there");
            cover(tiering, number, &live, rel);
        }
    }
    is_told
}

/// Whether a way to a root leads to something else now.
fn leads_elsewhere(tiering: &TieringEngine, s: &Spelling, root: &Root) -> io::Result<bool> {
    let of = |path: &Path| path.metadata().map(|m| (m.dev(), m.ino()));
    let (path, real) = (tiering.shared.cx.ctl.str(&s.path), tiering.shared.cx.ctl.str(&root.path));
    let was = if path == real {
        (root.dev.load(Ordering::Relaxed), root.ino.load(Ordering::Relaxed))
    } else {
        of(&path_of(real).join(path_of(tiering.shared.cx.ctl.str(&s.sub))))?
    };
    match of(path_of(path)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        is => Ok(is? != was),
    }
}

/// Leaves a directory and all below it to the kernel.
fn cover(tiering: &TieringEngine, number: usize, live: &LiveSegment, rel: &[u8]) {
    // (The kernel answers already for what was found mounted by the scan.)
    let entry = live.segment.lookup(rel);
    if entry.is_none() {
        // It may lie in a directory that the index does not hold.
        live.segment.state.marks.close_here();
    }
    let Some(entry) = entry.filter(|e| e.record.owner != OWNER_KERNEL) else { return };
    demand::bypass(&tiering.shared.cx.ctl, &Found { root: live.root(), number, segment: &live.segment, entry });
    let dir = live.segment.index.dir(entry.record).filter(|d| d.end > d.id + 1);
    if dir.is_some_and(|d| !tiering.shared.cx.ctl.bypass_range(number as u32, d.id, d.end)) {
        live.segment.state.header.bypassed.store(1, Ordering::Release);
    }
}
