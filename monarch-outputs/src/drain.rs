//! The loop of one output root: reads records, tries leases, hands out copies, publishes.

use crate::backlog::{Backlog, Marker, now_ns};
use crate::copier::{Copier, Finished};
use crate::copy::{CopyContext, CopyOutcome, Failure};
use crate::errors::{Backoff, Remedy, advice, remedy};
use crate::journal::{End, JournalReader};
use crate::lease::is_closed;
use crate::load::Loaded;
use crate::plan::{Action, Note, Planner, Step};
use crate::publisher::{Publisher, StepEnd};
use crate::room::Room;
use crate::staging::StagingDir;
use crate::status::OutputStatus;
use crate::sys::LeaseAnswer;
use monarch_abi::outputs::state::State;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// First pause between looks at open files that nothing says are closed.
const MIN_POLL: Duration = Duration::from_millis(5);
/// Longest pause between them.
const MAX_POLL: Duration = Duration::from_secs(1);
/// From so many pending entries on, steps are done in batches.
const MIN_BULK: usize = 16;
/// How often the backlog is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long nothing happens before an idle journal is begun again.
const IDLE_BEFORE_TRUNCATION: Duration = Duration::from_secs(1);

/// What the drain tells others of its root.
#[derive(Debug, Default)]
pub struct DrainView {
    backlog: Mutex<Backlog>,
    open: Mutex<HashSet<u64>>,
    /// The last request to look at all open files.
    pub look_wanted: AtomicU64,
    /// The last one after which the drain found nothing more to do.
    pub look_done: AtomicU64,
}

impl DrainView {
    /// The backlog.
    pub fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Staged files that are open.
    #[must_use]
    pub fn open(&self) -> HashSet<u64> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How long the PFS refuses an entry before creates below the root get the error: what passes
/// sooner, the job never sees.
const HOLD_AFTER: Duration = Duration::from_secs(2);

/// A copy that is to be tried again.
#[derive(Debug, Default)]
struct Retry {
    due: Option<Instant>,
    generation: u64,
    backoff: Backoff,
    errno: Option<Errno>,
    /// When it failed first.
    since: Option<Instant>,
}

impl Retry {
    /// Notes a failure, to be tried again after a pause.
    fn failed(&mut self, errno: Errno) {
        let now = Instant::now();
        self.errno = Some(errno);
        self.since.get_or_insert(now);
        self.due = Some(now + self.backoff.pause());
    }

    /// The error that holds the root.
    fn holding(&self) -> Option<Errno> {
        let is_long = self.since.is_some_and(|since| since.elapsed() >= HOLD_AFTER);
        self.errno.filter(|errno| is_long && remedy(*errno) == Remedy::Hold)
    }
}

/// What is tried again, and why.
#[derive(Debug, Default)]
struct Troubles {
    copies: HashMap<u64, Retry>,
    texts: HashMap<u64, String>,
    publish: Retry,
    publish_text: Option<String>,
}

impl Troubles {
    fn forget(&mut self, id: u64) {
        self.copies.remove(&id);
        self.texts.remove(&id);
    }
}

/// The drain of one output root. Fields: 15, because it is the place where its parts meet.
#[derive(Debug)]
pub struct Drain {
    staging: Arc<StagingDir>,
    context: Arc<CopyContext>,
    copier: Copier,
    planner: Planner,
    reader: JournalReader,
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
}

fn sentence(failure: &Failure) -> String {
    let path = String::from_utf8_lossy(&failure.path);
    let Failure { what, errno, .. } = failure;
    format!("cannot {what} {path}: {errno}; {}", advice(*errno))
}

/// Whether a process that opened a file at a time still runs: one with its number that began later
/// is another. One that is ending has lost its descriptors, and goes on as a zombie until its
/// parent has asked for its status.
fn is_alive(pid: u32, opened_ns: u64) -> bool {
    const SLACK_NS: u64 = 2_000_000_000;
    const PF_EXITING: u64 = 4;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name of the program, in parentheses, may have spaces.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace().collect()).unwrap_or_default();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let (state, flags, ticks) = (fields.first().copied().unwrap_or("Z"), number(6), number(19));
    if matches!(state, "Z" | "X") || flags & PF_EXITING != 0 {
        return false;
    }
    let since_boot_ns = ticks.saturating_mul(1_000_000_000) / rustix::param::clock_ticks_per_second().max(1);
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up_ns = (up.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(up.tv_nsec as u64);
    let began_ns = now_ns().saturating_sub(up_ns).saturating_add(since_boot_ns);
    opened_ns == 0 || began_ns <= opened_ns.saturating_add(SLACK_NS)
}

impl Drain {
    /// The drain of a root that was taken in.
    #[must_use]
    pub fn new(
        context: Arc<CopyContext>,
        loaded: Loaded,
        room: Arc<Room>,
        view: Arc<DrainView>,
        keeps_clean: bool,
    ) -> Self {
        let staging = context.staging.clone();
        let Loaded { mut planner, reader, log, .. } = loaded;
        planner.take_created();
        let mut marker = Marker::new(&staging.info().node);
        marker.expect();
        let publisher = Publisher::new(staging.clone(), context.target.clone(), log, keeps_clean);
        let now = Instant::now();
        let copier = Copier::new(context.clone());
        Self {
            staging,
            context,
            copier,
            planner,
            reader,
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
        }
    }

    fn state(&self) -> &'static State {
        self.staging.state()
    }

    /// The plan.
    #[must_use]
    pub const fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Goes round once. Returns whether anything happened.
    pub fn turn(&mut self) -> bool {
        let mut did = self.read_records();
        did |= self.probe();
        did |= self.take_copies();
        did |= self.hand_out_copies();
        did |= self.publish();
        did |= self.clean_up();
        self.tell(did);
        did
    }

    /// How long the drain may sleep when nothing happens.
    #[must_use]
    pub fn pause(&self) -> Duration {
        let retries = self.troubles.copies.values().chain([&self.troubles.publish]).filter_map(|retry| retry.due);
        let now = Instant::now();
        let retry = retries.map(|due| due.saturating_duration_since(now)).min().unwrap_or(MAX_POLL);
        let is_open = self.planner.open_files().next().is_some();
        let poll = if is_open { self.poll.saturating_sub(self.polled.elapsed()) } else { MAX_POLL };
        retry.min(poll).max(Duration::from_millis(1)).min(MAX_POLL)
    }

    /// Sleeps until a record comes, a copy ends, or something is due. `seen`: the counter of
    /// records before the last turn.
    pub fn sleep(&self, seen: u32) {
        let (state, pause) = (self.state(), self.pause());
        state.sleepers.store(1, Ordering::SeqCst);
        if state.appended.load(Ordering::SeqCst) == seen {
            let timeout = [pause.as_secs() as i64, i64::from(pause.subsec_nanos())];
            monarch_abi::sys::futex_wait(&state.appended, seen, Some(timeout));
        }
        state.sleepers.store(0, Ordering::SeqCst);
    }

    /// Everything that was found closed is tried at once.
    pub fn hurry(&mut self) {
        self.poll = Duration::ZERO;
        self.looked = None;
    }

    fn read_records(&mut self) -> bool {
        let before = self.planner.last_seq();
        if let Err(failure) = read_new(&self.staging, &mut self.reader, &mut self.planner) {
            self.publish_failed(&failure);
        }
        let did = self.planner.last_seq() != before;
        if did {
            self.poll = MIN_POLL;
        }
        did
    }

    /// Tries leases of open files.
    fn probe(&mut self) -> bool {
        let is_due = self.polled.elapsed() >= self.poll;
        let due: Vec<u64> = if is_due {
            self.polled = Instant::now();
            self.poll = (self.poll * 2).clamp(MIN_POLL, MAX_POLL);
            self.planner.open_files().map(|file| file.staged.id).collect()
        } else {
            self.planner.to_probe()
        };
        let mut did = false;
        for id in due {
            let Some(file) = self.planner.file(id) else { continue };
            // Its own copy's lease is no writer, but an old copy still writes to the part file.
            let is_killed = || file.openers.iter().any(|pid| !is_alive(*pid, file.opened_ns));
            match self.staging.open_data(&file.staged).map(|fd| is_closed(&fd)) {
                Ok(LeaseAnswer::Granted) => {
                    let is_killed = is_killed();
                    self.planner.lease(id, true, is_killed, now_ns());
                    did = true;
                }
                Ok(_) => self.planner.lease(id, false, false, 0),
                Err(Errno::NOENT) => {
                    // The shim removes the data of a file before or after its record.
                    if read_new(&self.staging, &mut self.reader, &mut self.planner).is_ok() {
                        self.planner.lost(id);
                    }
                    did = true;
                }
                Err(_) => self.planner.lease(id, false, false, 0),
            }
        }
        did
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
        let is_wanted = self.planner.file(id).is_some_and(|file| file.generation == generation);
        match outcome {
            CopyOutcome::Copied(part) if is_wanted => {
                self.troubles.forget(id);
                self.publisher.copied(id, part);
                self.planner.copied(id, generation);
            }
            // The file was removed meanwhile, and its part file perhaps made again.
            CopyOutcome::Copied(part) if self.planner.file(id).is_none() => {
                if monarch_abi::outputs::is_hidden(part.path.rsplit(|&c| c == b'/').next().unwrap_or(&[])) {
                    self.publisher.drop_part(&part.path);
                }
            }
            CopyOutcome::Copied(_) => {}
            CopyOutcome::Refused => {
                self.planner.copy_refused(id, generation);
                self.poll = MIN_POLL;
            }
            CopyOutcome::Stopped => self.planner.copy_failed(id, generation),
            CopyOutcome::Gone => {
                if is_wanted && read_new(&self.staging, &mut self.reader, &mut self.planner).is_ok() {
                    self.planner.lost(id);
                }
            }
            CopyOutcome::Failed(failure) if is_wanted => self.copy_failed(id, generation, &failure),
            CopyOutcome::Failed(_) => self.planner.copy_failed(id, generation),
        }
    }

    fn copy_failed(&mut self, id: u64, generation: u64, failure: &Failure) {
        let retry = self.troubles.copies.entry(id).or_default();
        let is_first = retry.errno != Some(failure.errno);
        retry.generation = generation;
        retry.failed(failure.errno);
        let text = sentence(failure);
        if is_first {
            tracing::warn!("output below {}: {text}", self.staging.info().root);
        }
        self.troubles.texts.insert(id, text);
    }

    fn hand_out_copies(&mut self) -> bool {
        let now = Instant::now();
        let planner = &mut self.planner;
        self.troubles.copies.retain(|id, _| planner.file(*id).is_some());
        for (id, retry) in &mut self.troubles.copies {
            if retry.due.is_some_and(|due| due <= now) {
                retry.due = None;
                planner.copy_failed(*id, retry.generation);
            }
        }
        let copier = &self.copier;
        let busy: HashSet<u64> = copier.busy().into_iter().collect();
        let requests = planner.take_copies(copier.capacity(), |id| busy.contains(&id));
        let did = !requests.is_empty();
        for mut request in requests {
            if let Some(dir) = self.publisher.part_dir(request.staged.id) {
                request.part_dir.clone_from(dir);
            }
            copier.submit(request);
        }
        did
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
                    self.planner.fail(step.place);
                    did = true;
                    break;
                }
                StepEnd::NeedsCopy => {
                    self.planner.fail(step.place);
                    self.publisher.step_failed();
                    self.copy_again(&step);
                    did = true;
                    break;
                }
                StepEnd::Failed(failure) => {
                    self.planner.fail(step.place);
                    self.publisher.step_failed();
                    self.publish_failed(&failure);
                    break;
                }
            }
        }
        self.finish_batch();
        did
    }

    /// Begins the next step, if it is ready now that all records are read.
    fn begin_step(&mut self) -> Option<Step> {
        self.planner.next_step()?;
        // A few entries are finished one by one: the word that tells processes has one file's
        // place.
        let is_bulk = self.planner.pending_len() >= MIN_BULK;
        if self.publisher.batch_len() > 0 && !is_bulk {
            return None;
        }
        let _lock = self.staging.lock_journal().ok()?;
        read_new(&self.staging, &mut self.reader, &mut self.planner).ok()?;
        let step = self.planner.next_step()?;
        if let Action::Rmdir(dir) = &step.action {
            let copier = &self.copier;
            self.publisher.remove_unneeded(|id| copier.is_busy_with(id));
            if self.publisher.has_unneeded(dir) {
                // The end of their copies wakes the drain.
                return None;
            }
        }
        self.planner.begin(&step);
        self.publisher.announce(&self.planner, &step);
        Some(step)
    }

    fn copy_again(&mut self, step: &Step) {
        if let Action::Publish(file) = &step.action
            && let Some(generation) = self.planner.file(file.staged.id).map(|file| file.generation)
        {
            self.planner.copy_failed(file.staged.id, generation);
        }
    }

    fn finish_batch(&mut self) {
        if self.publisher.batch_len() == 0 {
            return;
        }
        let Self { staging, reader, planner, publisher, .. } = self;
        match publisher.finish(planner, |planner| read_new(staging, reader, planner)) {
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

    fn publish_failed(&mut self, failure: &Failure) {
        let retry = &mut self.troubles.publish;
        let text = sentence(failure);
        if self.troubles.publish_text.as_ref() != Some(&text) {
            tracing::warn!("outputs below {}: {text}", self.staging.info().root);
        }
        retry.failed(failure.errno);
        self.troubles.publish_text = Some(text);
    }

    /// Removes what is not needed, tells the processes, and begins an idle journal again.
    fn clean_up(&mut self) -> bool {
        for created in self.planner.take_created() {
            self.room.replaced(&created.name);
            self.room.created(created.staged);
        }
        let copier = &self.copier;
        let is_busy = |id| {
            copier.cancel(id);
            copier.is_busy_with(id)
        };
        for staged in self.publisher.drop_files(&mut self.planner, is_busy) {
            self.troubles.forget(staged.id);
            self.room.removed(staged.id);
        }
        let state = self.state();
        // What the job removes plainly must find no part files.
        let published = if self.publisher.has_unneeded(b"") {
            state.published.load(Ordering::Acquire)
        } else {
            self.planner.published()
        };
        let is_further = state.published.fetch_max(published, Ordering::AcqRel) < published;
        let held = self.held_errno();
        let was_held = state.held_errno.swap(held, Ordering::AcqRel);
        if is_further || was_held != held {
            self.staging.map().notify_processes();
        }
        let is_idle = self.planner.is_idle() && self.reader.offset() > 0;
        if is_idle && self.busy_since.elapsed() >= IDLE_BEFORE_TRUNCATION {
            self.begin_again();
        }
        is_further
    }

    fn held_errno(&self) -> u32 {
        let mut retries = self.troubles.copies.values().chain([&self.troubles.publish]);
        let held = retries.find_map(Retry::holding);
        held.map_or(0, |errno| errno.raw_os_error().unsigned_abs())
    }

    fn begin_again(&mut self) {
        let Self { staging, reader, planner, publisher, .. } = self;
        match publisher.begin_again(planner, |planner| read_new(staging, reader, planner)) {
            Ok(true) => {
                self.reader.rewind();
                self.room.settle();
            }
            Ok(false) => {}
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
        let open = self.planner.open_files().map(|file| file.staged.id).collect();
        *self.view.open.lock().unwrap_or_else(PoisonError::into_inner) = open;
        let notes: Vec<String> = self.planner.take_notes().iter().filter_map(note).collect();
        let mut backlog = self.view.backlog();
        for note in notes.into_iter().chain(self.publisher.take_notes()) {
            tracing::warn!("outputs below {}: {note}", self.staging.info().root);
            backlog.note(note);
        }
        backlog.held = self.troubles.publish_text.clone().or_else(|| self.troubles.texts.values().min().cloned());
        backlog.look(&self.planner, &self.copier.progress(), &self.troubles.texts, |id| self.room.size_of(id));
        let mut status = OutputStatus { staging: self.staging.path().to_owned(), ..OutputStatus::default() };
        backlog.fill(&mut status);
        drop(backlog);
        status.pending_bytes = self.room.pending_bytes();
        self.marker.update(self.context.target.as_ref(), self.staging.info(), &status);
    }

    /// Ends copies that run, and takes the marker away if nothing is pending.
    pub fn stop(&mut self) {
        self.copier.stop();
        let _ = self.take_copies();
        self.looked = None;
        self.tell(false);
    }
}

fn note(note: &Note) -> Option<String> {
    match note {
        // Told when it is published, with the name that it gets.
        Note::Killed(_) => None,
        Note::Lost(path) => {
            Some(format!("the staged data of {} is gone: it is not published", String::from_utf8_lossy(path)))
        }
        Note::UnknownFile(id) => Some(format!("a record of the journal names file {id}, which no record has opened")),
    }
}

/// Feeds the plan the records that were appended.
fn read_new(staging: &StagingDir, reader: &mut JournalReader, planner: &mut Planner) -> Result<(), Failure> {
    let tail = staging.state().tail.load(Ordering::Acquire);
    let fail = Failure::new("read the journal of the outputs", b"");
    match reader.read(tail, |record| planner.record(record)) {
        Ok(End::Limit) => Ok(()),
        Ok(End::Torn) => Err(fail(Errno::BADMSG)),
        Err(e) => Err(fail(Errno::from_io_error(&e).unwrap_or(Errno::IO))),
    }
}
