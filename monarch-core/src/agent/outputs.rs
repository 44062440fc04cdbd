//! The output roots of an agent's jobs: each gets a staging directory in its tier, which the shim
//! finds through the control block, and which `monarch-outputs` drains.
//!
//! An output root stays in use until the agent ends: what a job has left is published after it.

use super::{other_agents, runtime_dir};
use crate::cluster::node::Node;
use crate::config::{Config, OutputRoot, OutputSync};
use crate::held_dir::HeldDir;
use crate::left_outputs;
use crate::shm;
use crate::snapshot::OutputStatus;
use crate::sync::{Mutex, lock};
use crate::tier::TierDir;
use crate::tiering::TieringEngine;
use monarch_abi::control::{ControlMap, Output};
use monarch_abi::outputs::OUTPUTS;
use monarch_abi::outputs::state::flag;
use monarch_outputs::outputs::{AttachedRoot, OutputRootSpec, OutputsOptions};
use monarch_outputs::room::TierSpace;
use monarch_outputs::root::root_number;
use monarch_outputs::staging::{self, RootInfo};
use monarch_storage::sharing::LocalOutputs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

impl LocalOutputs for Outputs {
    fn answer(&self, from: u64, root: u64, question: &[u8]) -> Option<Vec<u8>> {
        // What is left there comes first, and is not known yet.
        let is_left = lock(&self.leftovers.waiting).iter().any(|left| root_number(&left.root) == root);
        if is_left { None } else { self.drains.answer(from, root, question) }
    }
}

/// How long the start of the agent waits for the PFS to answer about what earlier jobs have left.
const TAKE_OVER_WAIT: Duration = Duration::from_millis(300);
/// How often it is looked whether an output root is taken over.
const TAKE_OVER_POLL: Duration = Duration::from_millis(10);

/// What earlier jobs have left and is not drained yet, as the PFS has not answered about it.
#[derive(Debug, Default)]
struct Leftovers {
    waiting: Mutex<Vec<Leftover>>,
    is_stopping: AtomicBool,
}

/// What an earlier job has left of an output root.
#[derive(Clone, Debug)]
struct Leftover {
    root: PathBuf,
    /// The directory of the tier.
    tier: PathBuf,
    staging: PathBuf,
    /// What is pending there; read when it is asked for.
    status: Arc<OnceLock<OutputStatus>>,
}

impl Leftover {
    fn status(&self) -> OutputStatus {
        let read = || {
            let all = left_outputs::read(&self.tier).unwrap_or_default();
            let own = all.into_iter().find(|status| status.staging == self.staging).unwrap_or_default();
            let held = Some("the file system of the output root does not answer".to_owned());
            OutputStatus { path: self.root.clone(), staging: self.staging.clone(), held, ..own }
        };
        self.status.get_or_init(read).clone()
    }
}

impl Leftovers {
    fn status(&self) -> Vec<OutputStatus> {
        let waiting = lock(&self.waiting).clone();
        waiting.iter().map(Leftover::status).collect()
    }

    fn forget(&self, staging: &Path) {
        lock(&self.waiting).retain(|left| left.staging != staging);
    }

    /// Waits until what was left of an output root is taken over.
    fn wait_for(&self, root: &Path) {
        while lock(&self.waiting).iter().any(|left| left.root == root) {
            std::thread::sleep(TAKE_OVER_POLL);
        }
    }
}

/// The output roots that an agent drains.
#[derive(Debug)]
pub struct Outputs {
    dir: Arc<HeldDir>,
    ctl: ControlMap<'static>,
    tiering: Arc<TieringEngine>,
    drains: Arc<monarch_outputs::outputs::Outputs>,
    leftovers: Arc<Leftovers>,
    /// Where other agents of this user may be.
    bases: Vec<PathBuf>,
    /// Output roots that cannot be staged, and why.
    failed: Mutex<Vec<OutputStatus>>,
}

impl Outputs {
    /// None yet; roots are entered in the control block in the runtime directory `dir`, and staged
    /// in the tiers of `tiering`.
    pub(super) fn new(
        dir: &Arc<HeldDir>,
        ctl: ControlMap<'static>,
        tiering: &Arc<TieringEngine>,
        config: &Config,
        node: Option<&Node>,
    ) -> Self {
        let demands = tiering.clone();
        let options = OutputsOptions {
            bandwidth: config.drain.bandwidth_limit,
            may_copy: Arc::new(move || demands.queue.work.lines().in_line().0 == 0),
            keeps_clean: true,
            peers: node.map(Node::output_peers),
        };
        Self {
            dir: dir.clone(),
            ctl,
            tiering: tiering.clone(),
            drains: Arc::new(monarch_outputs::outputs::Outputs::new(options)),
            leftovers: Arc::default(),
            bases: runtime_dir::bases(config),
            failed: Mutex::default(),
        }
    }

    /// Drains what earlier jobs have left in the tiers. A PFS that does not answer does not delay
    /// the start for long: each output root has a thread that waits for it.
    pub(super) fn take_over(&self) {
        let mut all = Vec::new();
        for (at, tier) in self.tiering.shared.cx.tiers.iter().enumerate() {
            let Ok(found) = std::fs::read_dir(tier.path.join(OUTPUTS)) else { continue };
            for left in found.flatten() {
                let Ok(info) = staging::read_info(&left.path()) else { continue };
                let spec = self.spec_of_left(at, tier, &info);
                let (root, tier) = (spec.root.clone(), tier.path.clone());
                all.push((spec, Leftover { root, tier, staging: left.path(), status: Arc::default() }));
            }
        }
        lock(&self.leftovers.waiting).extend(all.iter().map(|(_, left)| left.clone()));
        let (done, ended) = channel::<()>();
        for (spec, left) in all {
            let (drains, leftovers, done) = (self.drains.clone(), self.leftovers.clone(), done.clone());
            let staging = left.staging.clone();
            let work = move || {
                take_over(&drains, &leftovers, &spec, &left.staging);
                leftovers.forget(&left.staging);
                drop(done);
            };
            if let Err(e) = std::thread::Builder::new().name("outputs-left".to_owned()).spawn(work) {
                tracing::warn!(error = %e, "what an earlier job has left is not published");
                self.leftovers.forget(&staging);
            }
        }
        drop(done);
        // (Nothing is sent: the channel closes with the last thread.)
        let _ = ended.recv_timeout(TAKE_OVER_WAIT);
    }

    fn spec_of_left(&self, at: usize, tier: &TierDir, info: &RootInfo) -> OutputRootSpec {
        OutputRootSpec {
            root: info.path(),
            tier: tier.name.clone(),
            outputs_dir: tier.path.join(OUTPUTS),
            is_volatile: info.is_volatile,
            is_left: true,
            through: Vec::new(),
            flags: 0,
            max_pending: None,
            peer_wait: Duration::ZERO,
            space: self.space(at),
        }
    }

    /// The space of a tier for staged files.
    fn space(&self, at: usize) -> TierSpace {
        let (reserving, shrinking) = (self.tiering.clone(), self.tiering.clone());
        TierSpace {
            reserve: Arc::new(move |bytes| {
                reserving.shared.cx.tiers.get(at).and_then(|tier| tier.space.ledger.reserve_bytes(bytes))
            }),
            make_room: Arc::new(move |bytes| shrinking.placement.reclaim.shrink(at, bytes) > 0),
        }
    }

    /// Stages what a job writes below its output roots. What cannot be staged goes to the PFS: its
    /// state says why.
    pub(super) fn attach(&self, roots: &[OutputRoot]) {
        for root in roots {
            self.leftovers.wait_for(&root.real_path);
            // A PFS that does not answer is waited for outside of the turn.
            let _ = std::fs::metadata(&root.real_path);
            // Agents that begin to use it at the same time look one after the other.
            let turn = other_agents::take_turn(&self.dir);
            let staged = self.is_free(root).and_then(|()| self.stage(root));
            let staged = staged.and_then(|attached| self.publish(root, &attached));
            drop(turn);
            let mut failed = lock(&self.failed);
            failed.retain(|status| status.path != root.real_path);
            if let Err(e) = staged {
                tracing::warn!(root = %root.path.display(), error = %e, "files below this output root are written to the PFS");
                let held = Some(format!("files are written to the PFS at once: {e}"));
                let (path, tier) = (root.real_path.clone(), root.tier.clone());
                failed.push(OutputStatus { path, tier, held, ..OutputStatus::default() });
            }
        }
    }

    /// Whether no other agent of this user on this node stages what is written there. One that this
    /// agent has staged before is its own.
    fn is_free(&self, root: &OutputRoot) -> io::Result<()> {
        let own = self.ctl.outputs().iter();
        let is_own = |slot: &Output| {
            slot.is_on.load(Ordering::Acquire) != 0 && self.ctl.str(&slot.path) == crate::tier::bytes(&root.real_path)
        };
        if own.into_iter().any(is_own) {
            return Ok(());
        }
        match other_agents::with_outputs_at(&self.bases, &self.dir, &root.real_path) {
            None => Ok(()),
            Some(other) => Err(io::Error::other(other)),
        }
    }

    fn stage(&self, root: &OutputRoot) -> io::Result<AttachedRoot> {
        let tiers = &self.tiering.shared.cx.tiers;
        let at = tiers.iter().position(|tier| tier.name == root.tier);
        let (at, tier) = at
            .and_then(|at| Some((at, tiers.get(at)?)))
            .ok_or_else(|| io::Error::other(format!("the agent that runs has no tier {}", root.tier)))?;
        let flags = if root.fsync == OutputSync::Publish { flag::FSYNC_PUBLISHES } else { 0 };
        let spec = OutputRootSpec {
            root: root.real_path.clone(),
            tier: root.tier.clone(),
            outputs_dir: tier.path.join(OUTPUTS),
            is_volatile: root.volatile,
            is_left: false,
            through: root.through.clone(),
            flags,
            max_pending: Some(root.max_pending),
            peer_wait: root.peer_wait,
            space: self.space(at),
        };
        self.drains.attach(&spec).map_err(io::Error::other)
    }

    /// Enters an output root in the control block, once for each of its spellings.
    fn publish(&self, root: &OutputRoot, attached: &AttachedRoot) -> io::Result<()> {
        let staging = std::fs::metadata(&attached.staging)?;
        let none = PathBuf::new();
        let given = Some(&root.path).filter(|path| **path != root.real_path);
        let others: Vec<&PathBuf> = given.into_iter().chain(&root.aliases).collect();
        let spellings = if others.is_empty() { vec![&none] } else { others };
        for spelling in spellings {
            let slot = self.slot(&attached.root, spelling, &attached.staging)?;
            for (word, value) in [
                (&slot.dev, attached.device),
                (&slot.ino, attached.inode),
                (&slot.staging_dev, staging.dev()),
                (&slot.staging_ino, staging.ino()),
            ] {
                word.store(value, Ordering::Relaxed);
            }
            slot.is_on.store(1, Ordering::Release);
        }
        // What processes know of their working directories is out of date.
        self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// The entry of a root under a spelling; a new one if there is none.
    fn slot(&self, path: &Path, spelling: &Path, staging: &Path) -> io::Result<&'static Output> {
        let texts = [path, spelling, staging].map(crate::tier::bytes);
        let is = |slot: &&'static Output| {
            [&slot.path, &slot.spelling, &slot.staging].map(|text| self.ctl.str(text)) == texts
        };
        let known = self.ctl.outputs();
        if let Some(slot) = known.iter().find(is) {
            return Ok(slot);
        }
        let slot = self.ctl.ctl.outputs.get(known.len()).ok_or_else(|| {
            io::Error::other(format!(
                "an agent has at most {} output roots and aliases",
                monarch_abi::control::MAX_OUTPUTS
            ))
        })?;
        for (to, text) in [&slot.path, &slot.spelling, &slot.staging].into_iter().zip(texts) {
            shm::put_str(&self.dir, &self.ctl, to, text)?;
        }
        self.ctl.ctl.outputs_len.store(known.len() as u32 + 1, Ordering::Release);
        Ok(slot)
    }

    /// State of the output roots that are, hold or lie below one of these, by their real paths; of
    /// all if none is named.
    #[must_use]
    pub fn status(&self, roots: &[PathBuf]) -> Vec<OutputStatus> {
        let failed = lock(&self.failed).clone();
        let all = self.drains.status().into_iter().chain(self.leftovers.status()).chain(failed);
        all.filter(|status| roots.is_empty() || roots.iter().any(|root| other_agents::overlap(root, &status.path)))
            .collect()
    }

    /// [`Outputs::status`] as it is at this moment: looks at the files that are open, which takes
    /// half a second at most for each output root.
    #[must_use]
    pub fn status_now(&self, roots: &[PathBuf]) -> Vec<OutputStatus> {
        let known = self.status(roots).into_iter();
        let look = |path: &Path| self.drains.wait_drained(path, Some(Instant::now()), |_| ControlFlow::Break(()));
        known.map(|status| look(&status.path).unwrap_or(status)).collect()
    }

    /// Whether the agent has something to publish, and can: what the PFS refuses is left for later.
    pub(super) fn is_draining(&self) -> bool {
        self.drains.status().iter().any(|status| status.is_pending() && status.held.is_none())
    }

    /// Publishes what each of these open files holds now. Returns the state of the output roots: of
    /// these, or all if none is named. What is closed is published in any case.
    ///
    /// # Errors
    /// When one of the files is not staged, or cannot be copied.
    pub fn flush(&self, roots: &[PathBuf], open: &[PathBuf]) -> io::Result<Vec<OutputStatus>> {
        for file in open {
            self.drains.publish_snapshot(file).map_err(io::Error::other)?;
        }
        Ok(self.status(roots))
    }

    /// Whether a thread still waits for a PFS that does not answer.
    pub(super) fn is_waiting(&self) -> bool {
        !lock(&self.leftovers.waiting).is_empty()
    }

    /// Stops. What is pending stays in the staging directories.
    pub(super) fn stop(&self) {
        self.leftovers.is_stopping.store(true, Ordering::Release);
        self.drains.stop();
    }
}

/// Drains what an earlier job has left in a staging directory, as soon as the PFS answers.
fn take_over(drains: &monarch_outputs::outputs::Outputs, leftovers: &Leftovers, spec: &OutputRootSpec, staging: &Path) {
    match drains.attach(spec) {
        // (The agent has ended meanwhile.)
        Ok(_) if leftovers.is_stopping.load(Ordering::Acquire) => drains.stop(),
        Ok(_) => tracing::info!(root = %spec.root.display(), "what an earlier job has left is being published"),
        Err(e) => {
            tracing::warn!(staging = %staging.display(), error = %e, "what an earlier job has left is not published");
        }
    }
}
