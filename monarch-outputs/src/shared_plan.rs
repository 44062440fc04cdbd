//! The plan of an output root with what feeds it. The drain works by it, and what keeps the order
//! of the nodes reads it: its lock is never held while the PFS is asked.
//!
//! Who takes the lock of the journal as well takes that first.

use crate::copy::Failure;
use crate::journal::{End, JournalReader};
use crate::lease::is_closed;
use crate::node_order::NodeOrder;
use crate::order::{Answer, Ask, Find, Found, NodeId};
use crate::plan::{Opener, Place, Planner};
use crate::processes::Openers;
use crate::staging::StagingDir;
use crate::sys::LeaseAnswer;
use crate::sys::now_ns;
use monarch_abi::outputs::question::Subject;
use monarch_abi::outputs::record::{Op, flag};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often a file is looked at again while other records come.
const MAX_PROBES: usize = 8;

/// A plan and what feeds it.
#[derive(Debug)]
pub struct PlanState {
    /// The plan.
    pub planner: Planner,
    reader: JournalReader,
    /// The order among the nodes, where there are others.
    pub order: Option<NodeOrder>,
    openers: Openers,
}

/// The plan of an output root.
#[derive(Debug)]
pub struct SharedPlan {
    staging: Arc<StagingDir>,
    state: Mutex<PlanState>,
}

impl SharedPlan {
    /// A plan that was taken in, and the reader of what comes.
    #[must_use]
    pub fn new(staging: Arc<StagingDir>, planner: Planner, reader: JournalReader, order: Option<NodeOrder>) -> Self {
        let mut openers = Openers::new(staging.state().boot.load(Ordering::Acquire));
        for file in planner.open_files() {
            file.openers.iter().for_each(|opener| openers.saw(opener, file.opened_ns));
        }
        Self { staging, state: Mutex::new(PlanState { planner, reader, order, openers }) }
    }

    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, PlanState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The staging directory.
    #[must_use]
    pub const fn staging(&self) -> &Arc<StagingDir> {
        &self.staging
    }

    /// Answers another node; `None` when the journal cannot be read, or there is no order.
    pub fn answer(&self, from: NodeId, ask: Ask) -> Option<Answer> {
        let mut state = self.up_to_date()?;
        let order = state.order.as_mut()?;
        let could = order.order.holders();
        let answer = order.answer(from, ask);
        // What it has told of its floor may let the first entry go.
        let can = order.order.holders();
        drop(state);
        if can != could {
            self.staging.map().notify_agent();
        }
        Some(answer)
    }

    /// Answers another node that does not find a name; `None` as for [`Self::answer`].
    pub fn find(&self, find: &Find) -> Option<Found> {
        // (No path: the node waits, and only the floor is new.)
        let state = if find.path.is_empty() && find.subject == Subject::Name {
            let mut state = self.lock();
            state.read(&self.staging).ok()?;
            state
        } else {
            self.up_to_date()?
        };
        Some(state.order.as_ref()?.find(&state.planner, find))
    }

    /// The plan after all records, and after all files that are closed by now.
    fn up_to_date(&self) -> Option<MutexGuard<'_, PlanState>> {
        let mut state = self.lock();
        state.read(&self.staging).ok()?;
        let open: Vec<u64> = state.planner.open_files().map(|file| file.staged.id).collect();
        state.probe(&self.staging, &open);
        Some(state)
    }
}

impl PlanState {
    /// Feeds the plan the records that were appended; whether there were any.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn read(&mut self, staging: &StagingDir) -> Result<bool, Failure> {
        let tail = staging.state().tail.load(Ordering::Acquire);
        let fail = Failure::of_tier("read the journal of the outputs", b"");
        let Self { planner, reader, order, openers } = self;
        let before = planner.last_seq();
        let end = reader.read(tail, |record| {
            let seq = record.header.seq;
            let is_entry = record.op != Op::Open && seq > planner.last_seq();
            planner.record(record);
            if record.op == Op::Open && record.header.flags & flag::UNWATCHED == 0 {
                openers.saw(&Opener::of(&record.header), record.header.time_ns);
            }
            if is_entry {
                // The process may have been killed before it said so.
                staging.state().last_entry.fetch_max(seq, Ordering::AcqRel);
            }
            if let Some(order) = order.as_mut().filter(|_| is_entry) {
                order.entry(seq);
            }
        });
        match end {
            Ok(End::Limit) => {}
            Ok(End::Torn | End::Newer) => return Err(fail(Errno::BADMSG)),
            Err(e) => return Err(fail(Errno::from_io_error(&e).unwrap_or(Errno::IO))),
        }
        self.follow();
        Ok(self.planner.last_seq() != before)
    }

    /// The plan has changed.
    pub fn follow(&mut self) {
        if let Some(order) = &mut self.order {
            order.follow(&self.planner);
        }
    }

    /// Whether the order of the nodes lets an entry be published whose turn it is here.
    #[must_use]
    pub fn may_publish(&self, place: Place) -> bool {
        self.order.as_ref().is_none_or(|order| order.order.may_publish(place))
    }

    /// Tries leases of open files; whether any was closed, or records were read.
    pub fn probe(&mut self, staging: &StagingDir, files: &[u64]) -> bool {
        let mut did = false;
        for &id in files {
            for _ in 0..MAX_PROBES {
                match self.probe_file(staging, id) {
                    Some(is_closed) => {
                        did |= is_closed;
                        break;
                    }
                    // (What was read is to be worked on.)
                    None => did = true,
                }
            }
        }
        self.follow();
        did
    }

    /// Tries the lease of an open file: whether it was closed. `None`: its process has ended, and
    /// there were records that had not been read: it may have closed the file before.
    fn probe_file(&mut self, staging: &StagingDir, id: u64) -> Option<bool> {
        let Some(file) = self.planner.file(id) else { return Some(false) };
        match staging.open_data(&file.staged).map(|fd| is_closed(&fd)) {
            // Its own copy's lease is no writer, but an old copy still writes to the part file.
            Ok(LeaseAnswer::Granted) => {
                let openers = &mut self.openers;
                let is_killed = file.openers.iter().any(|opener| !openers.is_alive(opener, file.opened_ns));
                if is_killed {
                    match self.read(staging) {
                        Ok(false) => {}
                        Ok(true) => return None,
                        Err(_) => return Some(false),
                    }
                }
                self.planner.lease(id, true, is_killed, now_ns());
                Some(true)
            }
            Ok(_) => {
                self.planner.lease(id, false, false, 0);
                Some(false)
            }
            Err(Errno::NOENT) => {
                // The shim removes the data of a file before or after its record.
                if self.read(staging).is_ok() {
                    self.planner.lost(id);
                }
                Some(true)
            }
            Err(_) => {
                self.planner.lease(id, false, false, 0);
                Some(false)
            }
        }
    }

    /// Whether nothing is pending, and the journal is not at its begin.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.planner.is_idle() && self.reader.offset() > 0
    }

    /// The journal was cut: all records so far are in the begin of the log.
    pub fn journal_was_cut(&mut self) {
        self.reader.rewind();
        let Self { planner, order, .. } = self;
        if let Some(Err(e)) = order.as_mut().map(|order| order.forget_keys(planner)) {
            tracing::warn!("the log of keys cannot be begun again: {e}");
        }
    }
}
