//! The output roots of an agent's jobs: each gets a staging directory in its tier, which the shim
//! finds through the control block, and which `monarch-outputs` drains.
//!
//! An output root stays in use until the agent ends: what a job has left is published after it.

use crate::cluster::node::Node;
use crate::config::{Config, OutputRoot, OutputSync};
use crate::held_dir::HeldDir;
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
use monarch_outputs::staging::{self, RootInfo};
use monarch_storage::sharing::LocalOutputs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl LocalOutputs for Outputs {
    fn answer(&self, from: u64, root: u64, question: &[u8]) -> Option<Vec<u8>> {
        self.drains.answer(from, root, question)
    }
}

/// The output roots that an agent drains.
#[derive(Debug)]
pub struct Outputs {
    dir: Arc<HeldDir>,
    ctl: ControlMap<'static>,
    tiering: Arc<TieringEngine>,
    drains: monarch_outputs::outputs::Outputs,
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
            drains: monarch_outputs::outputs::Outputs::new(options),
            failed: Mutex::default(),
        }
    }

    /// Drains what earlier jobs have left in the tiers.
    pub(super) fn take_over(&self) {
        for (at, tier) in self.tiering.shared.cx.tiers.iter().enumerate() {
            let Ok(found) = std::fs::read_dir(tier.path.join(OUTPUTS)) else { continue };
            for left in found.flatten() {
                let Ok(info) = staging::read_info(&left.path()) else { continue };
                let spec = self.spec_of_left(at, tier, &info);
                match self.drains.attach(&spec) {
                    Ok(_) => tracing::info!(root = %spec.root.display(), "what an earlier job has left is published"),
                    Err(e) => {
                        tracing::warn!(staging = %left.path().display(), error = %e, "what an earlier job has left is not published");
                    }
                }
            }
        }
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
            let staged = self.stage(root).and_then(|attached| self.publish(root, &attached));
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

    /// State of these output roots, by their real paths; of all if none is named.
    #[must_use]
    pub fn status(&self, roots: &[PathBuf]) -> Vec<OutputStatus> {
        let failed = lock(&self.failed).clone();
        let all = self.drains.status().into_iter().chain(failed);
        all.filter(|status| roots.is_empty() || roots.contains(&status.path)).collect()
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

    /// Stops. What is pending stays in the staging directories.
    pub(super) fn stop(&self) {
        self.drains.stop();
    }
}
