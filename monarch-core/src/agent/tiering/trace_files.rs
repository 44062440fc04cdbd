//! Opens written to files (`monarch run --trace`), for as long as the jobs that asked for it are
//! there.
//!
//! The thread that heeds readers encodes them, in memory; another one for each trace writes the
//! blocks, so that a file system that does not answer stops nobody. What cannot be written ends the
//! trace, not the job.

use super::access_tracker::AccessTracker;
use super::{LiveSegment, TieringEngine};
use crate::agent::protocol::Traced;
use crate::sync::lock;
use crate::trace::{TraceError, TraceHeader, TraceWriter};
use monarch_policies::{Access, FileKey};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// One file.
#[derive(Debug)]
struct Trace {
    id: u64,
    path: PathBuf,
    writer: Option<TraceWriter>,
    told: Traced,
}

/// All of them: one for each job that asked.
#[derive(Debug, Default)]
pub(super) struct Traces {
    open: Vec<Trace>,
    count: u64,
}

impl Trace {
    /// Writes something; after an error nothing more.
    fn write(&mut self, what: impl FnOnce(&mut TraceWriter) -> Result<(), TraceError>) {
        if let Some(writer) = &mut self.writer
            && let Err(e) = what(writer)
        {
            tracing::warn!(trace = %self.path.display(), error = %e, "the trace cannot be written; it ends here");
            self.told.failed = Some(e.to_string());
            self.count();
            self.writer = None;
        }
    }

    /// What the writer knows.
    fn count(&mut self) {
        if let Some(writer) = &self.writer {
            self.told.bytes = writer.written();
            self.told.lost += writer.dropped();
            self.told.opens = self.told.opens.saturating_sub(writer.dropped());
        }
    }
}

impl Traces {
    pub(super) fn lost(&mut self, opens: u64) {
        if opens == 0 {
            return;
        }
        for trace in &mut self.open {
            trace.told.lost += opens;
            trace.write(|w| w.lost(opens));
        }
    }

    pub(super) fn add(&mut self, live: &LiveSegment, id: u32, access: &Access) {
        // Files are told by root: the numbers of segments mean nothing to readers of the trace.
        let access = Access { file: FileKey((live.root as u64) << 32 | u64::from(id)), ..*access };
        for trace in &mut self.open {
            trace.told.opens += 1;
            trace.write(|w| w.add(&access, || rel(live, id)));
        }
    }

    /// Has what was added reach the files.
    pub(super) fn flush(&mut self) {
        self.open.iter_mut().for_each(|trace| trace.write(TraceWriter::flush));
    }

    /// The files of a root have other numbers from now on.
    pub(super) fn renumber(&mut self) {
        self.open.iter_mut().filter_map(|trace| trace.writer.as_mut()).for_each(TraceWriter::renumber);
    }
}

/// The path of an entry below its root.
fn rel(live: &LiveSegment, id: u32) -> Vec<u8> {
    let mut buf = [0u8; monarch_abi::PATH_MAX];
    let len = live.segment.index.path(id, &mut buf).unwrap_or(0);
    buf.get(..len).unwrap_or_default().to_vec()
}

impl TieringEngine {
    /// Writes what is opened from now on to `file`, which messages call `path`; the number by which
    /// it is ended.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn begin_trace(&self, path: &Path, file: File) -> Result<u64, TraceError> {
        // What was opened before belongs to nobody's trace.
        self.drain_accesses();
        let root =
            |r: &monarch_abi::control::Root| PathBuf::from(String::from_utf8_lossy(self.ctl.str(&r.path)).into_owned());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let header = TraceHeader {
            created_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            policy: self.policy().to_owned(),
            capacity: self.tiers.iter().map(|t| t.ledger.usage().capacity).sum(),
            roots: self.ctl.roots().iter().map(root).collect(),
        };
        let writer = TraceWriter::behind(path, file, &header)?;
        let traces = &mut lock(&self.access_tracker).trace;
        traces.count += 1;
        let id = traces.count;
        traces.open.push(Trace { id, path: path.to_owned(), writer: Some(writer), told: Traced::default() });
        Ok(id)
    }

    /// Ends a trace; what it came to.
    pub fn end_trace(&self, id: u64) -> Option<Traced> {
        self.drain_accesses();
        let mut trace = {
            let reading: &mut AccessTracker = &mut lock(&self.access_tracker);
            let at = reading.trace.open.iter().position(|t| t.id == id)?;
            reading.trace.open.swap_remove(at)
        };
        // From here on it is in nobody's way.
        if trace.told.failed.is_none() {
            trace.write(TraceWriter::end);
        }
        trace.count();
        Some(trace.told)
    }
}
