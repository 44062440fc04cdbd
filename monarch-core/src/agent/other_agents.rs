//! Other agents of this user on this node: those of jobs with other tiers. An output root has one
//! journal and so one agent at a time, or its jobs would have no common view and no common order.

use super::client::{Client, agent_alive};
use super::runtime_dir;
use crate::held_dir::HeldDir;
use crate::shm;
use monarch_abi::control::ControlMap;
use rustix::fd::OwnedFd;
use rustix::fs::FlockOperation;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long another agent may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the turn of another agent is waited for: it asks others in it.
const MAX_TURN_WAIT: Duration = Duration::from_secs(5);
/// How often it is looked whether that turn is over.
const TURN_POLL: Duration = Duration::from_millis(5);

/// Takes the lock under which agents begin to stage output roots: of the directory that holds their
/// runtime directories. `None` where there is none, or another agent has it for too long.
pub(super) fn take_turn(own: &HeldDir) -> Option<OwnedFd> {
    let (private, _) = own.parent()?;
    let turn = private.open_dir(".").ok()?;
    let began = Instant::now();
    while rustix::fs::flock(&turn, FlockOperation::NonBlockingLockExclusive).is_err() {
        if began.elapsed() > MAX_TURN_WAIT {
            return None;
        }
        std::thread::sleep(TURN_POLL);
    }
    Some(turn)
}

/// Returns what is to be said of an agent other than that in `own` whose jobs write to this output
/// root, to one around it or to one below it, or that has something pending there.
pub(super) fn with_outputs_at(bases: &[PathBuf], own: &HeldDir, root: &Path) -> Option<String> {
    let others = runtime_dir::all(bases).into_iter().filter(|dir| !is_same(dir, own) && agent_alive(dir));
    others.into_iter().find_map(|dir| {
        let declared = declared(&dir, root);
        let status = Client::connect(&dir).and_then(|mut agent| {
            agent.set_patience(ANSWER_TIMEOUT)?;
            agent.status()
        });
        let staging = match status {
            Ok(status) => {
                let pending = status.outputs.iter().find(|s| s.is_pending() && overlap(&s.path, root));
                declared.filter(|_| status.jobs > 0).or_else(|| pending.map(|s| s.staging.clone()))
            }
            // One that does not answer now may go on later.
            Err(_) => declared,
        };
        let staging = staging?;
        Some(format!(
            "another agent of yours on this node ({}) stages them in {}; jobs with one output root need the same tiers",
            dir.display(),
            staging.display()
        ))
    })
}

/// The staging directory of the output root that the jobs of an agent have declared and that is,
/// holds or lies below this one.
fn declared(dir: &Path, root: &Path) -> Option<PathBuf> {
    let ctl: ControlMap<'static> = shm::open_control(&HeldDir::at(dir).ok()?, runtime_dir::CONTROL).ok()?;
    let used = ctl.outputs().iter().filter(|slot| slot.is_on.load(Ordering::Acquire) != 0);
    let path = |text| PathBuf::from(OsStr::from_bytes(ctl.str(text)));
    used.into_iter().find(|slot| overlap(&path(&slot.path), root)).map(|slot| path(&slot.staging))
}

fn is_same(dir: &Path, own: &HeldDir) -> bool {
    HeldDir::at(dir).is_ok_and(|dir| dir.id() == own.id())
}

/// Whether one of two directories is the other one or lies below it.
pub(super) fn overlap(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_overlap_when_one_holds_the_other() {
        for (a, b, wanted) in [("/a", "/a", true), ("/a", "/a/b", true), ("/a/b", "/a", true), ("/a", "/ab", false)] {
            assert_eq!(overlap(Path::new(a), Path::new(b)), wanted, "{a} {b}");
        }
    }
}
