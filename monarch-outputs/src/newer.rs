//! Whether the PFS has something at a name that is newer than what is about to be published there.
//!
//! While an agent lives, the job's calls and what it publishes are in one order, and what others
//! change meanwhile is replaced, as by direct writing. Where the agent was gone for good, calls of
//! the job may have overtaken what was pending: an agent that comes later, and `monarch recover`,
//! compare what the PFS has with what it had when the job made its call.

use crate::copy::{Failure, is_part_of};
use crate::plan::{Expectation, Guard};
use crate::published::LogEntry;
use crate::staging::StagingDir;
use crate::target::{Kind, OutputTarget, TargetStat};
use monarch_abi::outputs::found;
use monarch_abi::outputs::names::Staged;
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Compares, where that is needed.
#[derive(Debug)]
pub struct NewerCheck {
    staging: Arc<StagingDir>,
    /// Whether it is always needed.
    is_always: bool,
    /// What this agent and those before it have published since the log began.
    own: HashSet<u64>,
}

/// What the PFS has, as records tell it.
#[must_use]
pub fn found_of(st: &TargetStat) -> u64 {
    found::thing(st.ino, st.size, st.mtime_ns)
}

impl NewerCheck {
    /// Compares always, or only once a process has overtaken what is pending. `entries`: the log of
    /// what was published.
    #[must_use]
    pub fn new(staging: Arc<StagingDir>, is_always: bool, entries: &[LogEntry]) -> Self {
        let own = entries.iter().filter(|entry| entry.begin().is_none()).map(LogEntry::found);
        Self { staging, is_always, own: own.filter(|found| *found != found::UNKNOWN).collect() }
    }

    fn is_needed(&self) -> bool {
        self.is_always || self.staging.state().is_overtaken.load(Ordering::Acquire) != 0
    }

    /// The agent has published this.
    pub fn published(&mut self, st: &TargetStat) {
        if self.is_needed() {
            self.own.insert(found_of(st));
        }
    }

    /// Whether a name has something else than was expected, which was not published from here.
    /// `staged`: the file that is about to be published, and may have been before.
    ///
    /// # Errors
    /// What the PFS said.
    pub fn is_newer(
        &self,
        target: &dyn OutputTarget,
        path: &[u8],
        expected: &Expectation,
        staged: Option<&Staged>,
    ) -> Result<bool, Failure> {
        if expected.found == found::UNKNOWN || !self.is_needed() {
            return Ok(false);
        }
        match target.stat(path) {
            Ok(st) => {
                let now = found_of(&st);
                let text = (st.kind == Kind::Symlink).then(|| target.readlink(path).ok()).flatten();
                let is_it = |thing: &Guard| match thing {
                    Guard::File(staged) => is_part_of(&st, staged),
                    Guard::Symlink(target) => text.as_ref() == Some(target),
                    Guard::Any | Guard::Nothing => false,
                };
                let is_own = || {
                    let is_staged = staged.is_some_and(|staged| is_part_of(&st, staged));
                    is_staged || self.own.contains(&now) || expected.own.iter().any(is_it)
                };
                Ok(now != expected.found && !is_own())
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(Failure::new("stat", path)(errno)),
        }
    }
}
