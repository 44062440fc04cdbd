//! Does the steps of the plan on the PFS, in order, and tells the overlay of the job.
//!
//! * A step can be done twice: a part file that is gone and whose inode has the target's name has
//!   been renamed before.
//! * Steps are done in batches: names are changed, then directories are synced, then the steps are
//!   logged, then the overlay is changed under the lock of the journal. A batch touches each name
//!   once, and ends with what is left out, so that doing it again never brings back an older
//!   version.

mod names;
mod overlay;
mod several;
#[cfg(test)]
mod tests;

use self::names::{MovedPart, Names, lossy, unless_missing};
use self::several::several_at_a_time;
use crate::ahead::with_reserve;
use crate::copy::{CopiedPart, Failure, attributes_of};
use crate::load::CleanCopy;
use crate::newer::{NewerCheck, found_of};
use crate::plan::{Action, Dropped, FileStep, Place, Planner, Step, join, parent};
use crate::published::{Kind, LogEntry, PublishedLog};
use crate::shared_plan::SharedPlan;
use crate::staging::StagingDir;
use crate::target::{self, OutputTarget, TargetStat};
use monarch_abi::outputs::found;
use monarch_abi::outputs::names::{Staged, part_name};
use monarch_abi::outputs::state::MAX_PUBLISHING;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Steps of a batch, at most.
pub const MAX_BATCH: usize = MAX_PUBLISHING;

/// A step that was done and is not logged.
#[derive(Debug)]
struct Done {
    step: Step,
    stat: Option<TargetStat>,
    /// Whether the link was not made, because others have made something newer there.
    is_left_out: bool,
}

/// What became of a step.
#[derive(Debug)]
pub enum StepEnd {
    /// It is done; the batch goes on.
    Done,
    /// The batch has to be finished first.
    NeedsNewBatch,
    /// The part file is lost: the copy is to be made again.
    NeedsCopy,
    /// The PFS has something newer at the name: the staged file is not to be published over it. The
    /// batch is empty.
    IsOlder,
    /// The PFS gave an error.
    Failed(Failure),
}

/// What a finished batch leaves.
#[derive(Debug, Default)]
pub struct Batch {
    /// Staged files that are done with, and whose data is removed.
    pub removed: Vec<Staged>,
    /// Files that are kept as clean copies.
    pub clean: Vec<CleanCopy>,
    /// Files that were published.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Publishes the entries of one output root. Methods: 27, because each kind of step is a few short
/// ones.
#[derive(Debug)]
pub struct Publisher {
    staging: Arc<StagingDir>,
    names: Names,
    log: PublishedLog,
    copied: HashMap<u64, CopiedPart>,
    /// Directories in which part files have to be made, since a rename from elsewhere is refused.
    moved: HashMap<u64, Vec<u8>>,
    batch: Vec<Done>,
    touched: HashSet<Vec<u8>>,
    /// Files whose part files are to be removed.
    unneeded: Vec<Dropped>,
    /// Whether published files are kept as clean copies.
    keeps_clean: bool,
}

impl Publisher {
    /// A publisher with an empty batch.
    #[must_use]
    pub fn new(
        staging: Arc<StagingDir>,
        target: Arc<dyn OutputTarget>,
        log: PublishedLog,
        newer: NewerCheck,
        keeps_clean: bool,
    ) -> Self {
        let instance = staging.info().instance;
        Self {
            staging,
            names: Names { target, instance, newer, dirs: BTreeSet::new(), notes: Vec::new() },
            log,
            copied: HashMap::new(),
            moved: HashMap::new(),
            batch: Vec::new(),
            touched: HashSet::new(),
            unneeded: Vec::new(),
            keeps_clean,
        }
    }

    /// A copy was made.
    pub fn copied(&mut self, id: u64, part: CopiedPart) {
        self.copied.insert(id, part);
    }

    /// The directory in which the part file of a file has to be made instead of the first one.
    #[must_use]
    pub fn part_dir(&self, id: u64) -> Option<&Vec<u8>> {
        self.moved.get(&id)
    }

    /// Takes what is to be reported.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.names.notes)
    }

    /// Steps that are done and not finished.
    #[must_use]
    pub fn batch_len(&self) -> usize {
        self.batch.len()
    }

    /// Does a step.
    pub fn step(&mut self, step: &Step) -> StepEnd {
        let is_new = step.touches().all(|name| !self.touched.contains(name));
        let is_skip = |step: &Step| matches!(step.action, Action::Skip(_));
        // An agent that does the batch again may have read more, and publish what this one has left
        // out: over the version that replaced it.
        let is_after_skip = self.batch.last().is_some_and(|done| is_skip(&done.step)) && !is_skip(step);
        if !self.batch.is_empty() && (!is_new || is_after_skip || self.batch.len() >= MAX_BATCH) {
            return StepEnd::NeedsNewBatch;
        }
        match self.is_older(step) {
            Ok(false) => {}
            Ok(true) if !self.batch.is_empty() => return StepEnd::NeedsNewBatch,
            Ok(true) => return StepEnd::IsOlder,
            Err(failure) => return StepEnd::Failed(failure),
        }
        let mut is_left_out = false;
        let done = match &step.action {
            Action::Publish(file) => match self.publish(file) {
                Ok(true) => Ok(()),
                Ok(false) => {
                    self.copied.remove(&file.staged.id);
                    return StepEnd::NeedsCopy;
                }
                Err(failure) => Err(failure),
            },
            Action::Skip(_) => Ok(()),
            Action::Unlink(path, guard) => self.names.unlink(path, guard, &step.expected),
            Action::Rmdir(path) => self.rmdir(path),
            Action::Symlink(path, target) => {
                self.names.symlink(path, target, &step.expected).map(|is_made| is_left_out = !is_made)
            }
        };
        if let Err(failure) = done {
            return StepEnd::Failed(failure);
        }
        self.touched.extend(step.touches().map(<[u8]>::to_vec));
        self.batch.push(Done { step: step.clone(), stat: None, is_left_out });
        StepEnd::Done
    }

    /// Whether a file would replace something that the PFS has got since the job wrote it.
    fn is_older(&self, step: &Step) -> Result<bool, Failure> {
        let Action::Publish(file) = &step.action else { return Ok(false) };
        // One that was published before it was logged is compared when it is copied.
        let is_published = self.copied.get(&file.staged.id).is_some_and(|part| part.path == file.target);
        if is_published {
            return Ok(false);
        }
        self.names.is_newer(&file.target, &step.expected, Some(&file.staged))
    }

    /// Gives a copied file its name; `false` when its part file is lost.
    fn publish(&mut self, file: &FileStep) -> Result<bool, Failure> {
        let fail = |what| Failure::new(what, &file.target);
        let Some(part) = self.copied.get(&file.staged.id).cloned() else { return Ok(false) };
        self.apply_attributes(file, &part)?;
        let is_published = part.path == file.target;
        if !is_published {
            self.rename_earlier(file, &part)?;
        }
        // Published before, it may have been replaced by an entry that came later.
        if is_published && !self.is_there(&file.target, &part) || !is_published && !self.rename(file, &part)? {
            return Ok(false);
        }
        if let Some(part) = self.copied.get_mut(&file.staged.id) {
            part.path.clone_from(&file.target);
        }
        // What was published under a former name has just been moved.
        for vacate in file.vacates.iter().filter(|vacate| vacate.name != part.path) {
            self.names.unlink(&vacate.name, &vacate.guard, &vacate.expected)?;
        }
        if file.partial {
            self.names.notes.push(format!(
                "a process was killed while it wrote a file: what it wrote is {}, the file before is kept",
                lossy(&file.target)
            ));
        }
        let old = self.moved.remove(&file.staged.id).map(|_| join(&file.part_dir, &self.part_name(file.staged.id)));
        if let Some(old) = old {
            unless_missing(self.names.target.unlink(&old)).map_err(fail("remove the part file of"))?;
        }
        Ok(true)
    }

    /// The file may have been published under a name that it has left since, and written again
    /// then: what was published goes to the new name first, or both would be there for a moment.
    fn rename_earlier(&mut self, file: &FileStep, part: &CopiedPart) -> Result<(), Failure> {
        let is_own = |path: &[u8]| {
            path != part.path && self.names.target.stat(path).is_ok_and(|st| crate::copy::is_part_of(&st, &file.staged))
        };
        let Some(earlier) = file.vacates.iter().map(|vacate| &vacate.name).find(|name| is_own(name)) else {
            return Ok(());
        };
        unless_missing(self.names.target.rename(earlier, &file.target))
            .map_err(Failure::new("rename what was published to", &file.target))?;
        self.names.dirs.insert(parent(earlier).to_vec());
        Ok(())
    }

    fn part_name(&self, id: u64) -> [u8; monarch_abi::outputs::names::PART_LEN] {
        part_name(self.staging.info().instance, id)
    }

    fn is_there(&self, path: &[u8], part: &CopiedPart) -> bool {
        self.names.target.stat(path).is_ok_and(|st| (st.dev, st.ino) == (part.dev, part.ino))
    }

    /// Renames the part file; `false` when it is lost.
    fn rename(&mut self, file: &FileStep, part: &CopiedPart) -> Result<bool, Failure> {
        match self.names.target.rename(&part.path, &file.target) {
            Ok(()) => {}
            Err(Errno::XDEV) => {
                self.moved.insert(file.staged.id, parent(&file.target).to_vec());
                unless_missing(self.names.target.unlink(&part.path))
                    .map_err(Failure::new("remove the part file of", &file.target))?;
                return Ok(false);
            }
            Err(Errno::NOENT) => {
                if self.is_there(&part.path, part) {
                    // The directory of the target is missing.
                    return Err(Failure::new("rename the part file to", &file.target)(Errno::NOENT));
                }
                if !self.is_there(&file.target, part) {
                    return Ok(false);
                }
            }
            Err(errno) => return Err(Failure::new("rename the part file to", &file.target)(errno)),
        }
        self.names.dirs.insert(parent(&part.path).to_vec());
        self.names.dirs.insert(parent(&file.target).to_vec());
        Ok(true)
    }

    /// Sets the attributes that were changed after the copy.
    fn apply_attributes(&mut self, file: &FileStep, part: &CopiedPart) -> Result<(), Failure> {
        let Ok(st) = self.staging.stat_data(&file.staged) else { return Ok(()) };
        let now = attributes_of(&st, file.owner_changed);
        let is_same =
            target::Attributes { atime_ns: 0, ..now } == target::Attributes { atime_ns: 0, ..part.attributes };
        if is_same {
            return Ok(());
        }
        let fail = || Failure::new("set the attributes of", &file.target);
        let open = match self.names.target.open(&part.path) {
            // It was renamed before: the rename finds out.
            Err(Errno::NOENT) => return Ok(()),
            other => other.map_err(fail())?,
        };
        let before = open.stat().map_err(fail())?;
        open.set_attributes(&now, &before).and_then(|()| open.sync()).map_err(fail())?;
        if let Some(part) = self.copied.get_mut(&file.staged.id) {
            part.attributes = now;
        }
        Ok(())
    }

    /// Tells processes what is about to change, and hides what the job is not to see any more. The
    /// caller holds the lock of the journal and has read all records.
    pub fn announce(&self, planner: &Planner, step: &Step) {
        let id = if let Action::Publish(file) = &step.action { file.staged.id } else { 0 };
        self.staging.state().begin_publishing(self.batch.len(), id);
        if let Some(name) = planner.hidden_by_job(step) {
            overlay::hide(&self.staging, name);
        }
    }

    /// Nothing is being published. With the lock held.
    fn retract(&self) {
        self.staging.state().end_publishing();
        self.staging.map().notify_processes();
    }

    /// A step has failed: nothing is being published.
    pub fn step_failed(&self) {
        if self.batch.is_empty()
            && let Ok(_lock) = self.staging.lock_journal()
        {
            self.retract();
        }
    }

    /// Removes a directory. Part files that were in it are to be looked for elsewhere.
    fn rmdir(&mut self, path: &[u8]) -> Result<(), Failure> {
        let mut moved = Vec::new();
        let end = self.names.rmdir(path, &mut moved);
        for MovedPart { id, from, to } in moved {
            if let Some(part) = self.copied.get_mut(&id).filter(|part| part.path == from) {
                part.path = to;
            }
            self.moved.insert(id, Vec::new());
        }
        end
    }

    /// Makes the batch durable, logs it, and changes the overlay.
    ///
    /// # Errors
    /// A failure of the PFS or of the tier: the steps of the batch have failed.
    pub fn finish(&mut self, plan: &SharedPlan) -> Result<Batch, Failure> {
        if self.batch.is_empty() {
            return Ok(Batch::default());
        }
        let result = self.make_durable().and_then(|()| self.change_overlay(plan));
        if result.is_err() {
            let mut plan = plan.lock();
            for done in self.batch.drain(..).rev() {
                plan.planner.fail(done.step.place);
            }
            drop(plan);
            self.step_failed();
        }
        self.batch.clear();
        self.touched.clear();
        result
    }

    fn make_durable(&mut self) -> Result<(), Failure> {
        let target = self.names.target.as_ref();
        let mut synced: Vec<_> = self.names.dirs.iter().map(|dir| (dir, Ok(()))).collect();
        several_at_a_time(&mut synced, |(dir, end)| *end = target.sync_dir(dir));
        for (dir, end) in synced {
            // A directory that was removed meanwhile needs it no more.
            unless_missing(end).map_err(Failure::new("sync the directory", dir))?;
        }
        self.names.dirs.clear();
        self.stat_published();
        let mut entries = Vec::new();
        for done in &mut self.batch {
            let Place { seq, sub } = done.step.place;
            let mut fields = LogEntry { read: done.step.read, seq, sub, ..LogEntry::default() };
            let kind = match &done.step.action {
                Action::Publish(file) => {
                    fields.id = file.staged.id;
                    if let Some(st) = done.stat {
                        self.names.newer.published(&st);
                        (fields.dev, fields.ino, fields.size) = (st.dev, st.ino, st.size);
                        (fields.mtime_ns, fields.ctime_ns) = (st.mtime_ns, st.ctime_ns);
                    }
                    Kind::File
                }
                Action::Skip(staged) => {
                    fields.id = staged.id;
                    Kind::Skip
                }
                _ if done.is_left_out => Kind::Skip,
                _ => Kind::Other,
            };
            entries.push(LogEntry::new(kind, fields));
        }
        with_reserve(self.staging.dir(), || self.log.append(&entries))
            .map_err(Failure::of_tier("write the agent's log", b""))
    }

    /// Asks what the published files of the batch are, several at a time.
    fn stat_published(&mut self) {
        let target = self.names.target.as_ref();
        let stat = |done: &mut Done| {
            if let Action::Publish(file) = &done.step.action {
                done.stat = target.stat(&file.target).ok();
            }
        };
        several_at_a_time(&mut self.batch, stat);
    }

    fn change_overlay(&mut self, plan: &SharedPlan) -> Result<Batch, Failure> {
        let staging = self.staging.clone();
        let Ok(_lock) = staging.lock_journal() else {
            return Err(Failure::of_tier("lock the journal", b"")(Errno::IO));
        };
        let mut plan = plan.lock();
        plan.read(&staging)?;
        let planner = &mut plan.planner;
        let mut out = Batch::default();
        let done: Vec<Done> = self.batch.drain(..).collect();
        for Done { step, stat, is_left_out } in done {
            if !is_left_out {
                planner.leaves(&step, stat.as_ref().map_or(found::UNKNOWN, found_of));
            }
            let committed = planner.commit(&step);
            let mut clean = None;
            if let Action::Publish(file) = &step.action {
                out.files += 1;
                out.bytes += stat.map_or(0, |st| st.size);
                if let Some(staged) = committed.file {
                    let part = self.copied.remove(&staged.id).filter(|_| committed.visible && self.keeps_clean);
                    clean = part.zip(stat).and_then(|(part, st)| overlay::to_clean(&staged, &part, &st));
                    self.moved.remove(&staged.id);
                    match clean {
                        Some(clean) => out.clean.push(CleanCopy { name: file.target.clone(), clean }),
                        None => out.removed.push(staged),
                    }
                }
            }
            for name in &committed.names {
                if let Err(e) = overlay::fix_link(&staging, planner, name, (&step, clean.as_ref())) {
                    self.names.notes.push(format!("the overlay of {} cannot be changed: {e}", lossy(name)));
                }
            }
        }
        plan.follow();
        drop(plan);
        self.retract();
        for staged in &out.removed {
            staging.remove_data(staged);
        }
        Ok(out)
    }

    /// Forgets copies of files that are not needed, and removes their part files and data. A part
    /// file that is being written stays until that ends: its removal would wait for the write with
    /// its directory locked, and so would all that the job does there.
    pub fn drop_files(&mut self, dropped: Vec<Dropped>, is_busy: impl Fn(u64) -> bool) -> Vec<Staged> {
        for file in &dropped {
            let id = file.staged.id;
            self.copied.remove(&id);
            let part_dir = self.moved.remove(&id).unwrap_or_else(|| file.part_dir.clone());
            self.unneeded.push(Dropped { part_dir, ..file.clone() });
            self.staging.remove_data(&file.staged);
        }
        self.remove_unneeded(is_busy);
        dropped.into_iter().map(|file| file.staged).collect()
    }

    /// Removes part files that are not needed, and not being written.
    pub fn remove_unneeded(&mut self, is_busy: impl Fn(u64) -> bool) {
        let (busy, free): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.unneeded).into_iter().partition(|file| is_busy(file.staged.id));
        self.unneeded = busy;
        for file in free {
            let _ = self.names.target.unlink(&join(&file.part_dir, &self.part_name(file.staged.id)));
        }
    }

    /// Whether part files below a directory are still to be removed; below the root for an empty
    /// path.
    #[must_use]
    pub fn has_unneeded(&self, dir: &[u8]) -> bool {
        let is_below = |at: &[u8]| {
            let rest = at.strip_prefix(dir);
            dir.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        self.unneeded.iter().any(|file| is_below(&file.part_dir))
    }

    /// Removes the part file of a staged file that never came to be.
    /// Whether there was one.
    pub fn drop_part_of(&self, id: u64, dir: &[u8]) -> bool {
        self.names.target.unlink(&join(dir, &self.part_name(id))).is_ok()
    }

    /// Removes a part file that a copy has left whose staged file is gone.
    pub fn drop_part(&self, path: &[u8]) {
        let _ = self.names.target.unlink(path);
    }

    /// The log, where no step is being done: then it may be begun again. And the files whose part
    /// files are to be removed.
    pub fn log_at_rest(&mut self) -> Option<(&mut PublishedLog, &[Dropped])> {
        self.batch.is_empty().then_some((&mut self.log, self.unneeded.as_slice()))
    }
}
