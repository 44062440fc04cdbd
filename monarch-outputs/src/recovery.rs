//! Drains what an earlier job has left in a staging directory, without an agent.

use crate::errors::OutputsError;
use crate::kept::{self, KEPT, Kept};
use crate::plan::join;
use crate::retire::retire_own;
use crate::room::TierSpace;
use crate::root::{RootDrain, RootOptions};
use crate::staging::{StagingDir, read_info};
use crate::status::{MAX_NAMED_ENTRIES, OutputStatus};
use crate::target::{DirTarget, Kind, OutputTarget, TargetStat};
use monarch_abi::outputs::names::parse_part;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often progress is told.
const POLL: Duration = Duration::from_millis(20);
/// How long a look at open files may take before progress is told.
const LOOK_TIME: Duration = Duration::from_millis(500);
/// How long what only retries is waited for, after it was told.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a recovery came to.
#[derive(Clone, Debug, Default)]
pub struct RecoverReport {
    /// The output root.
    pub root: PathBuf,
    /// Files that were published.
    pub published: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Part files that no journal claims, and that were removed.
    pub parts_removed: u64,
    /// Whether nothing is pending or kept any more, so that the staging directory was removed.
    pub is_done: bool,
    /// What is still pending, and why.
    pub rest: OutputStatus,
}

/// Publishes all that a staging directory holds, removes part files that nothing claims, and
/// removes the staging directory when nothing is left. `progress` may break off.
///
/// # Errors
/// [`OutputsError`].
pub fn recover(
    staging_dir: &Path,
    progress: impl FnMut(&OutputStatus) -> ControlFlow<()>,
) -> Result<RecoverReport, OutputsError> {
    let staging = StagingDir::adopt(staging_dir)?;
    let root = staging.info().path();
    let fail = |source| OutputsError::Root { path: root.clone(), source };
    let target: Arc<dyn OutputTarget> = Arc::new(DirTarget::open(&root).map_err(fail)?);
    recover_to(staging, target, progress)
}

/// The same with another way to the PFS.
///
/// # Errors
/// [`OutputsError`].
#[expect(clippy::needless_pass_by_value, reason = "callers have no use for the target any more")]
pub fn recover_to(
    staging: StagingDir,
    target: Arc<dyn OutputTarget>,
    mut progress: impl FnMut(&OutputStatus) -> ControlFlow<()>,
) -> Result<RecoverReport, OutputsError> {
    let (path, instance) = (staging.path().to_owned(), staging.info().instance);
    let root = staging.info().path();
    // Nothing new is staged here: no space is needed.
    let space = TierSpace { reserve: Arc::new(|_| None), make_room: Arc::new(|_| false) };
    let options = RootOptions {
        space,
        max_pending: None,
        bandwidth: None,
        may_copy: Arc::new(|| true),
        keeps_clean: false,
        is_salvage: true,
        keeps_newer: true,
        peers: None,
        peer_wait: Duration::ZERO,
    };
    let mut drain = RootDrain::start(staging, target.clone(), &options)?;
    let mut held_since: Option<Instant> = None;
    let status = loop {
        let has_looked = drain.look(LOOK_TIME);
        let status = drain.status();
        if has_looked && !status.is_pending() {
            break status;
        }
        let is_stuck = status.held.is_some() || status.pending == 0;
        held_since = if is_stuck { held_since.or(Some(Instant::now())) } else { None };
        let is_over = held_since.is_some_and(|since| since.elapsed() > PATIENCE);
        if progress(&status).is_break() || is_over {
            break status;
        }
        std::thread::sleep(POLL);
    };
    drain.stop();
    let is_done = !status.is_pending();
    let mut report = RecoverReport {
        root,
        published: status.published,
        bytes: status.published_bytes,
        parts_removed: 0,
        is_done,
        rest: status,
    };
    if is_done {
        // What a job stages meanwhile is looked for once more, under the locks.
        let plan = drain.plan().clone();
        let is_gone = retire_own(drain.staging(), |_| {
            let mut plan = plan.lock();
            plan.read(drain.staging()).map_err(|failure| OutputsError::io("read", &path)(failure.errno))?;
            Ok(!plan.planner.is_idle())
        })?;
        report.is_done = is_gone;
        if is_gone {
            report.parts_removed = remove_parts(target.as_ref(), instance);
        } else {
            add_kept(&mut report.rest, &path)?;
        }
    }
    Ok(report)
}

/// Adds what is kept because no record explains it: only a person can say what becomes of it.
fn add_kept(rest: &mut OutputStatus, staging: &Path) -> Result<(), OutputsError> {
    let kept = kept::list(staging).map_err(OutputsError::io("read", &staging.join(KEPT)))?;
    rest.pending += kept.len() as u64;
    rest.pending_bytes += kept.iter().map(|kept| kept.bytes).sum::<u64>();
    let free = MAX_NAMED_ENTRIES.saturating_sub(rest.entries.len());
    rest.entries.extend(kept.iter().map(Kept::entry).take(free));
    Ok(())
}

/// Removes the part files of a staging directory that has no entries any more; how many.
pub fn remove_parts(target: &dyn OutputTarget, instance: u64) -> u64 {
    let (mut removed, mut dirs) = (0, vec![Vec::new()]);
    while let Some(dir) = dirs.pop() {
        let Ok(names) = target.names(&dir) else { continue };
        for name in names {
            let path = join(&dir, &name);
            match parse_part(&name) {
                Some((of, _)) if of == instance => removed += u64::from(target.unlink(&path).is_ok()),
                Some(_) => {}
                None => {
                    if target.stat(&path).is_ok_and(|st| st.kind == Kind::Dir) {
                        dirs.push(path);
                    }
                }
            }
        }
    }
    removed
}

/// How old a part file is before it is taken for one that nothing will publish. A node that still
/// has its file makes the part file again.
pub const ORPHAN_AGE: Duration = Duration::from_secs(3600);

/// Removes part files of this user below a directory of the PFS that are older than [`ORPHAN_AGE`]
/// and belong to none of these staging directories: what was staged for them is gone with its
/// tier. Returns how many were removed; none where there is no such directory.
///
/// # Errors
/// When the directory cannot be opened.
pub fn remove_orphans(dir: &Path, staging: &[PathBuf], now_ns: u64) -> Result<u64, OutputsError> {
    let known: Vec<u64> = staging.iter().filter_map(|dir| Some(read_info(dir).ok()?.instance)).collect();
    let target = match DirTarget::open(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        opened => opened.map_err(|source| OutputsError::Root { path: dir.to_owned(), source })?,
    };
    let user = rustix::process::geteuid().as_raw();
    let is_old = |mtime_ns: i64| now_ns.saturating_sub(mtime_ns.max(0).unsigned_abs()) > ORPHAN_AGE.as_nanos() as u64;
    let (mut removed, mut dirs) = (0, vec![Vec::new()]);
    while let Some(dir) = dirs.pop() {
        let Ok(names) = target.entries(&dir) else { continue };
        for (name, may_be_dir) in names {
            let path = join(&dir, &name);
            match parse_part(&name) {
                Some((of, _)) => {
                    let is_orphan = |st: TargetStat| st.kind == Kind::File && st.uid == user && is_old(st.mtime_ns);
                    if !known.contains(&of) && target.stat(&path).is_ok_and(is_orphan) {
                        removed += u64::from(target.unlink(&path).is_ok());
                    }
                }
                None if may_be_dir => dirs.push(path),
                None => {}
            }
        }
    }
    Ok(removed)
}
