//! The loop of one output root: reads records, tries leases, hands out copies, publishes.

mod older;
mod output_root;
mod view;

pub use view::DrainView;

use self::older::keep_older;
use self::output_root::{follow_root, has_another_root};
use self::view::note;
use crate::backlog::Marker;
use crate::compaction::Compaction;
use crate::copier::{Copier, Finished};
use crate::copy::{CopyContext, CopyOutcome, Failure};
use crate::killed_creates::KilledCreates;
use crate::plan::{Action, Created, Step};
use crate::publisher::{Publisher, StepEnd};
use crate::room::Room;
use crate::shared_plan::SharedPlan;
use crate::snapshot::Snapshot;
use crate::staging::StagingDir;
use crate::status::OutputStatus;
use crate::troubles::{Retry, Troubles, sentence};
use monarch_abi::outputs::state::State;
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// First pause between looks at open files that nothing says are closed.
const MIN_POLL: Duration = Duration::from_millis(5);
/// Longest pause between them.
const MAX_POLL: Duration = Duration::from_secs(1);
/// Clean copies that are dropped at once where the tier's disk is full.
const MAX_EVICTED: usize = 16;
/// From so many pending entries on, steps are done in batches.
const MIN_BULK: usize = 16;
/// How often the backlog is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long nothing happens before an idle journal is begun again.
const IDLE_BEFORE_TRUNCATION: Duration = Duration::from_secs(1);

/// The drain of one output root. Fields: 16, because it is the place where its parts meet. Methods:
/// 27, because each step of a turn is one.
#[derive(Debug)]
pub struct Drain {
    staging: Arc<StagingDir>,
    context: Arc<CopyContext>,
    copier: Copier,
    plan: Arc<SharedPlan>,
    publisher: Publisher,
    room: Arc<Room>,
    view: Arc<DrainView>,
    troubles: Troubles,
    marker: Marker,
    poll: Duration,
    polled: Instant,
    looked: Option<Instant>,
    busy_since: Instant,
    is_settled: bool,
    killed_creates: KilledCreates,
    compaction: Compaction,
}

impl Drain {
    /// The drain of a root that was taken in.
    #[must_use]
    pub fn new(
        context: Arc<CopyContext>,
        plan: Arc<SharedPlan>,
        publisher: Publisher,
        room: Arc<Room>,
        view: Arc<DrainView>,
    ) -> Self {
        let staging = context.staging.clone();
        plan.lock().planner.take_created();
        let mut marker = Marker::new(&staging.info().node);
        marker.expect();
        view.has_marker.store(true, Ordering::Release);
        let now = Instant::now();
        let copier = Copier::new(context.clone());
        Self {
            staging,
            context,
            copier,
            plan,
            publisher,
            room,
            view,
            troubles: Troubles::default(),
            marker,
            poll: MIN_POLL,
            polled: now,
            looked: None,
            busy_since: now,
            is_settled: false,
            killed_creates: KilledCreates::default(),
            compaction: Compaction::default(),
        }
    }

    fn state(&self) -> &'static State {
        self.staging.state()
    }

    /// Goes round once. Returns whether anything happened.
    pub fn turn(&mut self) -> bool {
        follow_root(&self.staging, self.context.target.as_ref());
        let mut did = self.read_records();
        did |= self.probe();
        did |= self.take_copies();
        did |= self.hand_out_copies();
        did |= self.publish();
        did |= self.publish_snapshots();
        did |= self.clean_up();
        self.tell(did);
        did
    }

    /// How long the drain may sleep when nothing happens.
    #[must_use]
    pub fn pause(&self) -> Duration {
        let retry = self.troubles.next_due().map(|due| due.saturating_duration_since(Instant::now()));
        let is_open = self.killed_creates.is_waiting() || self.plan.lock().planner.open_files().next().is_some();
        let poll = if is_open { self.poll.saturating_sub(self.polled.elapsed()) } else { MAX_POLL };
        retry.unwrap_or(MAX_POLL).min(poll).max(Duration::from_millis(1)).min(MAX_POLL)
    }

    /// Sleeps until a record comes, a copy ends, or something is due. `seen`: the counter of
    /// records before the last turn.
    pub fn sleep(&self, seen: u32) {
        self.staging.sleep(seen, self.pause());
    }

    /// Everything that was found closed is tried at once.
    pub fn hurry(&mut self) {
        self.poll = Duration::ZERO;
        self.looked = None;
    }

    fn read_records(&mut self) -> bool {
        let read = self.plan.lock().read(&self.staging);
        let did = match read {
            Ok(did) => did,
            Err(failure) => {
                self.publish_failed(&failure);
                false
            }
        };
        if did {
            self.poll = MIN_POLL;
        }
        did
    }

    /// Tries leases of open files.
    fn probe(&mut self) -> bool {
        let is_due = self.polled.elapsed() >= self.poll;
        if is_due {
            self.polled = Instant::now();
            self.poll = (self.poll * 2).clamp(MIN_POLL, MAX_POLL);
        }
        if is_due {
            self.remove_what_killed_processes_left();
        }
        let mut plan = self.plan.lock();
        let planner = &plan.planner;
        let due: Vec<u64> =
            if is_due { planner.open_files().map(|file| file.staged.id).collect() } else { planner.to_probe() };
        plan.probe(&self.staging, &due)
    }

    /// Removes part files that were made and never entered in the journal.
    fn remove_what_killed_processes_left(&mut self) {
        let (plan, staging, publisher) = (&self.plan, &self.staging, &self.publisher);
        self.killed_creates.clean_up(staging.state(), |left| {
            let mut plan = plan.lock();
            let is_known = plan.read(staging).is_err() || plan.planner.file(left.id).is_some();
            drop(plan);
            is_known || publisher.drop_part_of(left.id, left.dir())
        });
        self.killed_creates.free_plain_calls(staging.map().plain_calls);
        if self.killed_creates.is_waiting() {
            self.poll = MIN_POLL;
        }
    }

    /// Takes in copies that ended.
    fn take_copies(&mut self) -> bool {
        let finished = self.copier.take_finished();
        let did = !finished.is_empty();
        finished.into_iter().for_each(|finished| self.copy_ended(finished));
        did
    }

    fn copy_ended(&mut self, Finished { request, outcome }: Finished) {
        let (id, generation) = (request.staged.id, request.generation);
        let plan = self.plan.clone();
        let mut plan = plan.lock();
        let file = plan.planner.file(id);
        let (is_known, is_wanted) = (file.is_some(), file.is_some_and(|file| file.generation == generation));
        match outcome {
            CopyOutcome::Copied(part) if is_wanted => {
                self.troubles.forget(id);
                self.publisher.copied(id, part);
                plan.planner.copied(id, generation);
            }
            // The file was removed meanwhile, and its part file perhaps made again.
            CopyOutcome::Copied(part) if !is_known => {
                drop(plan);
                if monarch_abi::outputs::is_hidden(part.path.rsplit(|&c| c == b'/').next().unwrap_or(&[])) {
                    self.publisher.drop_part(&part.path);
                }
            }
            CopyOutcome::Copied(_) => {}
            CopyOutcome::Refused => {
                plan.planner.copy_refused(id, generation);
                self.poll = MIN_POLL;
            }
            CopyOutcome::Stopped => plan.planner.copy_failed(id, generation),
            CopyOutcome::Gone => {
                if is_wanted && plan.read(&self.staging).is_ok() {
                    plan.planner.lost(id);
                    plan.follow();
                }
            }
            CopyOutcome::Failed(failure) if is_wanted => self.copy_failed(id, generation, &failure),
            CopyOutcome::Failed(_) => plan.planner.copy_failed(id, generation),
        }
    }

    fn copy_failed(&mut self, id: u64, generation: u64, failure: &Failure) {
        self.look_at_root(failure);
        let retry = self.troubles.copies.entry(id).or_default();
        let is_first = retry.errno != Some(failure.errno);
        retry.generation = generation;
        retry.failed(failure);
        let text = sentence(failure, &self.staging.info().tier);
        if is_first {
            tracing::warn!("output below {}: {text}", self.staging.info().root);
        }
        self.troubles.texts.insert(id, text);
    }

    fn hand_out_copies(&mut self) -> bool {
        let now = Instant::now();
        let mut plan = self.plan.lock();
        let planner = &mut plan.planner;
        self.troubles.copies.retain(|id, _| planner.file(*id).is_some());
        for (id, retry) in &mut self.troubles.copies {
            if retry.due.is_some_and(|due| due <= now) {
                retry.due = None;
                planner.copy_failed(*id, retry.generation);
            }
        }
        let copier = &self.copier;
        let busy: HashSet<u64> = copier.busy().into_iter().collect();
        let created = planner.take_created();
        let requests = planner.take_copies(copier.capacity(), |id| busy.contains(&id));
        drop(plan);
        // Before their copies begin: what a closed file holds is looked at then.
        self.charge(created);
        let did = !requests.is_empty();
        for mut request in requests {
            if let Some(dir) = self.publisher.part_dir(request.staged.id) {
                request.part_dir.clone_from(dir);
            }
            self.room.closed(&request.staged);
            copier.submit(request);
        }
        did
    }

    /// Files that the job has created take up room.
    fn charge(&self, created: Vec<Created>) {
        for created in created {
            self.room.replaced(&created.name);
            self.room.created(created.staged);
        }
    }

    /// Publishes a run of entries that are ready.
    fn publish(&mut self) -> bool {
        if self.troubles.publish.due.is_some_and(|due| due > Instant::now()) {
            return false;
        }
        let mut did = false;
        while let Some(step) = self.begin_step() {
            match self.publisher.step(&step) {
                StepEnd::Done => did = true,
                StepEnd::NeedsNewBatch => {
                    self.failed(&step);
                    did = true;
                    break;
                }
                StepEnd::NeedsCopy => {
                    self.failed(&step);
                    self.publisher.step_failed();
                    self.copy_again(&step);
                    did = true;
                    break;
                }
                StepEnd::IsOlder => {
                    self.failed(&step);
                    self.publisher.step_failed();
                    self.keep_apart(&step);
                    did = true;
                    break;
                }
                StepEnd::Failed(failure) => {
                    self.failed(&step);
                    self.publisher.step_failed();
                    self.publish_failed(&failure);
                    break;
                }
            }
        }
        self.finish_batch();
        did
    }

    /// Names snapshots before which nothing is pending any more. The batch is finished.
    fn publish_snapshots(&mut self) -> bool {
        let first = self.plan.lock().planner.first_place().seq;
        let due = |snapshot: &mut Snapshot| first > snapshot.after;
        let mut waiting = self.view.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let due: Vec<Snapshot> = waiting.extract_if(.., due).collect();
        drop(waiting);
        let did = !due.is_empty();
        for snapshot in due {
            snapshot.publish(&self.plan, self.context.target.as_ref());
        }
        did
    }

    /// The step that was begun is to be done again.
    fn failed(&self, step: &Step) {
        self.plan.lock().planner.fail(step.place);
    }

    /// Begins the next step, if it is ready now that all records are read.
    fn begin_step(&mut self) -> Option<Step> {
        let (step, pending) = {
            let plan = self.plan.lock();
            let step = plan.planner.next_step().filter(|step| plan.may_publish(step.place))?;
            (step, plan.planner.pending_len())
        };
        // A few entries are finished one by one, and where processes wait for one of them.
        let is_waited_for = || self.staging.state().is_waited_for.load(Ordering::Acquire) != 0;
        if self.publisher.batch_len() > 0 && (pending < MIN_BULK || is_waited_for()) {
            return None;
        }
        if let Action::Rmdir(dir) = &step.action {
            let copier = &self.copier;
            self.publisher.remove_unneeded(|id| copier.is_busy_with(id));
            if self.publisher.has_unneeded(dir) {
                // The end of their copies wakes the drain.
                return None;
            }
        }
        let _lock = self.staging.lock_journal().ok()?;
        let mut plan = self.plan.lock();
        plan.read(&self.staging).ok()?;
        if has_another_root(self.state()) {
            return None;
        }
        let step = plan.planner.next_step().filter(|now| now.action == step.action && plan.may_publish(now.place))?;
        plan.planner.begin(&step);
        self.publisher.announce(&plan.planner, &step);
        Some(step)
    }

    /// The PFS has something newer at the name of a file: it is kept, and not published.
    fn keep_apart(&mut self, step: &Step) {
        let Action::Publish(file) = &step.action else { return };
        match keep_older(&self.staging, &self.plan, file) {
            Ok(note) => {
                tracing::warn!("outputs below {}: {note}", self.staging.info().root);
                self.view.backlog().note(note);
            }
            Err(failure) => self.publish_failed(&failure),
        }
    }

    fn copy_again(&self, step: &Step) {
        let planner = &mut self.plan.lock().planner;
        if let Action::Publish(file) = &step.action
            && let Some(generation) = planner.file(file.staged.id).map(|file| file.generation)
        {
            planner.copy_failed(file.staged.id, generation);
        }
    }

    fn finish_batch(&mut self) {
        if self.publisher.batch_len() == 0 {
            return;
        }
        match self.publisher.finish(&self.plan) {
            Ok(batch) => {
                self.troubles.publish = Retry::default();
                self.troubles.publish_text = None;
                batch.removed.iter().for_each(|staged| self.room.removed(staged.id));
                batch.clean.into_iter().for_each(|copy| self.room.published(copy));
                let mut backlog = self.view.backlog();
                backlog.published += batch.files;
                backlog.published_bytes += batch.bytes;
            }
            Err(failure) => self.publish_failed(&failure),
        }
    }

    /// The output root may have been removed and made again.
    fn look_at_root(&self, failure: &Failure) {
        if matches!(failure.errno, Errno::NOENT | Errno::STALE)
            && let Err(e) = self.context.target.reopen()
        {
            tracing::debug!("the output root {} cannot be opened again: {e}", self.staging.info().root);
        }
    }

    fn publish_failed(&mut self, failure: &Failure) {
        self.look_at_root(failure);
        if failure.is_of_tier && failure.errno == Errno::NOSPC {
            // What is published needs no copy here as much as the agent's files need space.
            (0..MAX_EVICTED).take_while(|_| self.room.evict_one()).for_each(drop);
        }
        let retry = &mut self.troubles.publish;
        let text = sentence(failure, &self.staging.info().tier);
        if self.troubles.publish_text.as_ref() != Some(&text) {
            tracing::warn!("outputs below {}: {text}", self.staging.info().root);
        }
        retry.failed(failure);
        self.troubles.publish_text = Some(text);
    }

    /// Removes what is not needed, tells the processes, and begins an idle journal again.
    fn clean_up(&mut self) -> bool {
        let plan = self.plan.clone();
        let (created, dropped) = {
            let planner = &mut plan.lock().planner;
            (planner.take_created(), planner.take_dropped())
        };
        self.charge(created);
        let copier = &self.copier;
        let is_busy = |id| {
            copier.cancel(id);
            copier.is_busy_with(id)
        };
        for staged in self.publisher.drop_files(dropped, is_busy) {
            self.troubles.forget(staged.id);
            self.room.removed(staged.id);
        }
        let state = self.state();
        // What the job removes plainly must find no part files.
        let published = if self.publisher.has_unneeded(b"") {
            state.published.load(Ordering::Acquire)
        } else {
            plan.lock().planner.published()
        };
        let is_further = state.published.fetch_max(published, Ordering::AcqRel) < published;
        self.view.is_refused.store(self.troubles.is_refused(), Ordering::Release);
        let held = self.troubles.held_errno();
        let was_held = state.held_errno.swap(held, Ordering::AcqRel);
        if is_further || was_held != held {
            self.staging.map().notify_processes();
        }
        if is_further && plan.lock().order.is_some() {
            // Other nodes may wait for that.
            self.staging.map().notify_agent();
        }
        self.shorten_journal();
        is_further
    }

    /// Begins an idle journal again, and cuts a long one, while the PFS refuses what is pending,
    /// too.
    fn shorten_journal(&mut self) {
        if self.troubles.publish.waits_for_tier() {
            return;
        }
        let (staging, plan) = (&self.staging, &self.plan);
        let Some((log, leftovers)) = self.publisher.log_at_rest() else { return };
        let is_over = leftovers.is_empty() && self.busy_since.elapsed() >= IDLE_BEFORE_TRUNCATION;
        let is_idle = is_over && plan.lock().is_idle();
        let done = if is_idle {
            self.compaction.begin_again(staging, log, plan)
        } else {
            self.compaction.shorten(staging, log, plan, leftovers)
        };
        match done {
            Ok(true) if is_idle => {
                // All that calls may have overtaken is published.
                self.state().is_overtaken.store(0, Ordering::Release);
                self.room.settle();
            }
            Ok(_) => {}
            Err(failure) => self.publish_failed(&failure),
        }
    }

    /// Writes what others see.
    fn tell(&mut self, did: bool) {
        if did {
            self.busy_since = Instant::now();
            self.is_settled = false;
        }
        let is_due = self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
        if !is_due && (did || self.is_settled) {
            return;
        }
        self.is_settled = !did;
        self.looked = Some(Instant::now());
        let mut plan = self.plan.lock();
        let notes: Vec<String> = plan.planner.take_notes().iter().filter_map(note).collect();
        let mut backlog = self.view.backlog();
        for note in notes.into_iter().chain(self.publisher.take_notes()) {
            tracing::warn!("outputs below {}: {note}", self.staging.info().root);
            backlog.note(note);
        }
        backlog.held = self.troubles.publish_text.clone().or_else(|| self.troubles.texts.values().min().cloned());
        backlog.look(&plan.planner, &self.copier.progress(), &self.troubles.texts, |id| self.room.size_of(id));
        let mut status = OutputStatus { staging: self.staging.path().to_owned(), ..OutputStatus::default() };
        backlog.fill(&mut status);
        drop((backlog, plan));
        status.pending_bytes = self.room.pending_bytes();
        self.marker.update(self.context.target.as_ref(), self.staging.info(), &status);
        self.view.has_marker.store(self.marker.may_be_there(), Ordering::Release);
    }

    /// Ends copies that run, and takes the marker away if nothing is pending. The journal of an
    /// idle root is begun again: the next agent has nothing to publish once more, should others
    /// have removed on the PFS what this one has published.
    pub fn stop(&mut self) {
        self.copier.stop();
        let _ = self.take_copies();
        self.looked = None;
        self.tell(false);
        if let Some((log, [])) = self.publisher.log_at_rest()
            && self.plan.lock().is_idle()
            && let Err(failure) = self.compaction.begin_again(&self.staging, log, &self.plan)
        {
            tracing::warn!(?failure, "the journal of an output root is not cut at its end");
        }
    }
}
