//! What is pending, since when and why: for reports, and for the file in the output root that tells
//! other nodes.

use crate::plan::{CopyState, Entry, Planner};
use crate::staging::RootInfo;
use crate::status::{MAX_NAMED_ENTRIES, OutputStatus, PendingEntry, PendingState};
use crate::sys::now_ns;
use crate::target::OutputTarget;
use monarch_abi::outputs::PENDING_PREFIX;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Notes that are kept.
const MAX_NOTES: usize = 50;
/// How long entries are pending before the file in the output root says so.
pub const MARKER_AFTER: Duration = Duration::from_secs(1);
/// How often the file is written again.
const MARKER_EVERY: Duration = Duration::from_secs(10);

/// Entries as they were when the drain looked last; ages are computed when they are asked for.
#[derive(Clone, Debug, Default)]
pub struct Backlog {
    entries: Vec<(PendingEntry, u64)>,
    pending: u64,
    open: u64,
    oldest_ns: Option<u64>,
    oldest_open_ns: Option<u64>,
    /// Why nothing is published at the moment.
    pub held: Option<String>,
    /// What was reported.
    pub notes: VecDeque<String>,
    /// Files published since the agent started.
    pub published: u64,
    /// Their bytes.
    pub published_bytes: u64,
}

impl Backlog {
    /// Adds a note.
    pub fn note(&mut self, note: String) {
        if self.notes.len() == MAX_NOTES {
            self.notes.pop_front();
        }
        self.notes.push_back(note);
    }

    /// Looks at the plan.
    pub fn look(
        &mut self,
        planner: &Planner,
        progress: &HashMap<u64, u64>,
        failures: &HashMap<u64, String>,
        size_of: impl Fn(u64) -> u64,
    ) {
        self.pending = planner.pending_len() as u64;
        self.open = planner.open_files().count() as u64;
        self.oldest_open_ns = planner.open_files().map(|file| file.opened_ns).min();
        self.oldest_ns = None;
        self.entries.clear();
        for (_, entry) in planner.pending() {
            let (path, state, id, since) = match entry {
                Entry::File(id) | Entry::Former(id, _) => {
                    let Some(file) = planner.file(*id) else { continue };
                    let path = match entry {
                        Entry::Former(_, former) => former.name.clone(),
                        _ => file.target(),
                    };
                    let state = match file.copy {
                        _ if failures.contains_key(id) => PendingState::Retrying,
                        CopyState::Waiting => PendingState::Waiting,
                        CopyState::Running => PendingState::Copying,
                        CopyState::Done => PendingState::Copied,
                    };
                    (path, state, *id, file.closed_ns)
                }
                Entry::Unlink(path, _, since) | Entry::Rmdir(path, since) => {
                    (path.clone(), PendingState::Removal, 0, *since)
                }
                Entry::Symlink(path, _, since) => (path.clone(), PendingState::Symlink, 0, *since),
            };
            if since > 0 {
                self.oldest_ns = Some(self.oldest_ns.map_or(since, |oldest| oldest.min(since)));
            }
            if self.entries.len() < MAX_NAMED_ENTRIES {
                self.entries.push((
                    PendingEntry {
                        path: String::from_utf8_lossy(&path).into_owned(),
                        state,
                        bytes: if id == 0 { 0 } else { size_of(id) },
                        copied: progress.get(&id).copied().unwrap_or(0),
                        age_ms: 0,
                        why: failures.get(&id).cloned(),
                    },
                    since,
                ));
            }
        }
    }

    /// Age of the oldest entry that is pending.
    #[must_use]
    pub fn oldest(&self) -> Option<Duration> {
        self.oldest_ns.map(|since| Duration::from_nanos(now_ns().saturating_sub(since)))
    }

    /// Fills in a status.
    pub fn fill(&self, status: &mut OutputStatus) {
        let now = now_ns();
        let age = |since: u64| if since == 0 { 0 } else { now.saturating_sub(since) / 1_000_000 };
        status.pending = self.pending;
        status.open = self.open;
        status.oldest_ms = self.oldest_ns.map(age);
        status.oldest_open_ms = self.oldest_open_ns.map(age);
        status.held.clone_from(&self.held);
        status.notes = self.notes.iter().cloned().collect();
        self.count(status);
        status.entries =
            self.entries.iter().map(|(entry, since)| PendingEntry { age_ms: age(*since), ..entry.clone() }).collect();
    }

    /// Fills in what was published.
    pub const fn count(&self, status: &mut OutputStatus) {
        status.published = self.published;
        status.published_bytes = self.published_bytes;
    }
}

/// The file in the output root that tells that this node has something pending.
#[derive(Debug)]
pub struct Marker {
    name: Vec<u8>,
    written: Option<Instant>,
}

impl Marker {
    /// The marker of a node; it is not there.
    #[must_use]
    pub fn new(node: &str) -> Self {
        let node: String = node.chars().map(|c| if c == '/' { '_' } else { c }).collect();
        Self { name: [PENDING_PREFIX, node.as_bytes()].concat(), written: None }
    }

    /// Writes it, or removes it, as the backlog says.
    pub fn update(&mut self, target: &dyn OutputTarget, info: &RootInfo, status: &OutputStatus) {
        let is_due =
            status.pending > 0 && status.oldest_ms.is_some_and(|ms| u128::from(ms) >= MARKER_AFTER.as_millis());
        if status.pending == 0 {
            self.remove(target);
        } else if is_due && self.written.is_none_or(|at| at.elapsed() >= MARKER_EVERY) {
            // It is a hint for people: without it nothing is lost.
            if let Err(e) = self.write(target, &text(info, status)) {
                tracing::debug!("no marker of pending outputs: {e}");
            }
            self.written = Some(Instant::now());
        }
    }

    fn write(&self, target: &dyn OutputTarget, text: &str) -> Result<(), Errno> {
        let file = match target.create(&self.name, 0o644) {
            Err(Errno::EXIST) => target.open(&self.name)?,
            other => other?,
        };
        // Whoever reads it meanwhile finds it empty only when it is new.
        file.write_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    }

    /// Removes it, if it is there.
    pub fn remove(&mut self, target: &dyn OutputTarget) {
        if self.written.take().is_some() {
            let _ = target.unlink(&self.name);
        }
    }

    /// Whether it is there, or may be.
    #[must_use]
    pub const fn may_be_there(&self) -> bool {
        self.written.is_some()
    }

    /// An earlier agent may have left it.
    pub fn expect(&mut self) {
        self.written.get_or_insert_with(|| {
            let now = Instant::now();
            now.checked_sub(MARKER_EVERY).unwrap_or(now)
        });
    }
}

fn text(info: &RootInfo, status: &OutputStatus) -> String {
    let oldest = status.entries.first().map_or("", |entry| entry.path.as_str());
    let held = status.held.as_ref().map_or(String::new(), |held| format!("held: {held}\n"));
    format!(
        "Not all that was written below this directory is here yet: node {} holds the rest.\n\
         node: {}\njob: process {} of user {}\npending: {} entries, {} bytes\noldest: {} ({} s)\n{held}\
         staging directory: {}\n\
         If the job has ended and this file stays: run `monarch recover` on that node.\n",
        info.node,
        info.node,
        info.pid,
        info.uid,
        status.pending,
        status.pending_bytes,
        oldest,
        status.oldest_ms.unwrap_or(0) / 1000,
        status.staging.display(),
    )
}
