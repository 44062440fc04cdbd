//! Publishes what a staged file that is open has at the moment.
//!
//! The bytes are copied beside, at leisure. The name is given by the drain, between two
//! publications: after all that was pending when the copy began, and only while the file is still
//! open under that name.

use crate::copy::{Failure, attributes_of};
use crate::errors::OutputsError;
use crate::plan::{join, parent};
use crate::processes::began_ticks;
use crate::shared_plan::SharedPlan;
use crate::staging::StagingDir;
use crate::target::OutputTarget;
use monarch_abi::outputs::STAGED_MODE;
use monarch_abi::outputs::making::Making;
use monarch_abi::outputs::names::{Link, Staged, part_name};
use monarch_abi::outputs::record::{Op, flag};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Bit of the number in the name of a part file that holds a snapshot.
const SNAPSHOT: u64 = 1 << 63;
/// Bits of it that two snapshots of one file differ in.
const TURNS: u64 = 0x7fff << 48;
/// Bytes that are copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// A part file that holds a snapshot. It goes with the value, unless it has got the name of the
/// file; if the agent is killed, the next one removes it.
#[derive(Debug)]
struct Part {
    target: Arc<dyn OutputTarget>,
    path: Vec<u8>,
    /// What the next agent would know it by, if a slot was free.
    making: Option<&'static Making>,
    is_named: bool,
}

impl Part {
    fn new(staging: &StagingDir, target: &Arc<dyn OutputTarget>, staged: &Staged, name: &[u8]) -> Self {
        static TURN: AtomicU64 = AtomicU64::new(0);
        let id = staged.id | SNAPSHOT | (TURN.fetch_add(1, Ordering::Relaxed) << 48) & TURNS;
        let pid = std::process::id();
        let ticks = began_ticks(pid).unwrap_or(0);
        let making = staging.state().making.iter().find(|slot| slot.claim(pid, ticks, parent(name)));
        making.iter().for_each(|slot| slot.begin(id));
        let path = join(parent(name), &part_name(staging.info().instance, id));
        Self { target: target.clone(), path, making, is_named: false }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_named {
            let _ = self.target.unlink(&self.path);
        }
        self.making.iter().for_each(|slot| slot.free());
    }
}

/// A snapshot that is copied and has no name yet.
#[derive(Debug)]
pub struct Snapshot {
    staged: Staged,
    /// The name of the file, below the output root.
    name: Vec<u8>,
    part: Part,
    /// Bytes of the snapshot.
    pub bytes: u64,
    /// All entries up to this record are published first.
    pub after: u64,
    answer: Sender<Result<(), Failure>>,
}

/// What became of a snapshot.
pub type Answer = Receiver<Result<(), Failure>>;

/// Copies the staged file that has a name into a part file on the PFS.
///
/// # Errors
/// [`OutputsError`].
pub fn copy(
    staging: &StagingDir,
    target: &Arc<dyn OutputTarget>,
    root: &Path,
    file: &Path,
) -> Result<(Snapshot, Answer), OutputsError> {
    let not_staged = || OutputsError::NotStaged { path: file.to_owned() };
    let name = file.strip_prefix(root).map_err(|_| not_staged())?.as_os_str().as_bytes();
    let (text, after) = {
        let _lock = staging.lock_journal()?;
        let text = staging.tree().read(name).map_err(OutputsError::io("look up", file))?;
        (text, staging.state().last_entry.load(Ordering::Acquire))
    };
    let Some(Link::File(staged)) = text.as_deref().and_then(Link::parse) else { return Err(not_staged()) };
    let data = staging.open_data(&staged).map_err(OutputsError::io("open the staged file of", file))?;
    let st = rustix::fs::fstat(&data).map_err(OutputsError::io("stat the staged file of", file))?;
    let part = Part::new(staging, target, &staged, name);
    let copy = || -> Result<u64, Errno> {
        match target.unlink(&part.path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let to = target.create(&part.path, st.st_mode & 0o7777 & !STAGED_MODE)?;
        let (mut buffer, mut at) = (vec![0; CHUNK_BYTES], 0);
        loop {
            let got = rustix::io::retry_on_intr(|| rustix::io::pread(&data, &mut buffer[..], at))?;
            if got == 0 {
                break;
            }
            let mut rest = &buffer[..got];
            while !rest.is_empty() {
                let n = to.write_at(rest, at)?;
                if n == 0 {
                    return Err(Errno::NOSPC);
                }
                (rest, at) = (&rest[n..], at + n as u64);
            }
        }
        // (The agent's own mask has taken bits out of the mode.)
        to.set_attributes(&attributes_of(&st, false), &to.stat()?)?;
        to.sync()?;
        Ok(at)
    };
    let bytes = copy().map_err(OutputsError::io("publish", file))?;
    let (answer, end) = channel();
    Ok((Snapshot { staged, name: name.to_vec(), part, bytes, after, answer }, end))
}

impl Snapshot {
    /// Gives it the name of its file, unless that was closed, renamed or removed meanwhile. Nothing
    /// else is being published.
    pub fn publish(mut self, plan: &SharedPlan, target: &dyn OutputTarget) {
        let end = self.rename(plan, target);
        self.part.is_named = matches!(end, Ok(true));
        drop(self.part);
        // (The caller has given up after SNAPSHOT_TIMEOUT.)
        let _ = self.answer.send(end.map(|_| ()));
    }

    /// Whether the file was still open under its name.
    fn rename(&self, plan: &SharedPlan, target: &dyn OutputTarget) -> Result<bool, Failure> {
        let staging = plan.staging();
        let fail = |what| Failure::new(what, &self.name);
        {
            let lock = staging.lock_journal().map_err(|_| fail("lock the journal")(Errno::IO))?;
            let mut plan = plan.lock();
            plan.read(staging)?;
            let text = staging.tree().read(&self.name).map_err(fail("look up"))?;
            let is_it =
                matches!(text.as_deref().and_then(Link::parse), Some(Link::File(now)) if now.id == self.staged.id);
            if !is_it || !plan.planner.is_open(self.staged.id) {
                return Ok(false);
            }
            // A removal or rename that comes later, or an agent, knows that the PFS has the name.
            let flags = flag::BY_AGENT | flag::PUBLISHED;
            staging.append(&lock, Op::Attributes, (self.staged.id, flags)).map_err(fail("write the journal"))?;
            staging.state().begin_publishing(0, self.staged.id);
            plan.read(staging)?;
        }
        let done = target
            .rename(&self.part.path, &self.name)
            .map_err(fail("rename the part file to"))
            .and_then(|()| target.sync_dir(parent(&self.name)).map_err(fail("sync the directory")));
        let _lock = staging.lock_journal().map_err(|_| fail("lock the journal")(Errno::IO))?;
        staging.state().end_publishing();
        staging.map().notify_processes();
        done.map(|()| true)
    }
}
