//! [`Traces`]: writes opens to files (`monarch run --trace`) while the jobs that asked for it run.
//!
//! The thread of the access tracker encodes them in memory. Another thread for each trace writes
//! the blocks, so that a file system that does not answer stops no job. An error ends the trace,
//! not the job.

use crate::snapshot::Traced;
use crate::tiering::core::segments::LiveSegment;
use crate::trace::{TraceError, TraceWriter};
use monarch_policies::{Access, FileKey};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One trace.
#[derive(Debug)]
pub(crate) struct Trace {
    id: u64,
    path: PathBuf,
    /// When it was begun, on the clock of the accesses.
    begun: Duration,
    writer: Option<TraceWriter>,
    totals: Traced,
}

/// All traces: one for each job that asked for one.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    open: Vec<Trace>,
    count: u64,
}

impl Trace {
    /// Writes to the trace; nothing more after an error.
    fn write(&mut self, what: impl FnOnce(&mut TraceWriter) -> Result<(), TraceError>) {
        if let Some(writer) = &mut self.writer
            && let Err(e) = what(writer)
        {
            tracing::warn!(trace = %self.path.display(), error = %e, "the trace cannot be written; it ends here");
            self.totals.failed = Some(e.to_string());
            self.count();
            self.writer = None;
        }
    }

    /// Writes the rest. Returns the totals of the trace.
    pub(crate) fn end(mut self) -> Traced {
        if self.totals.failed.is_none() {
            self.write(TraceWriter::end);
        }
        self.count();
        self.totals
    }

    /// Takes over the totals of the writer.
    fn count(&mut self) {
        if let Some(writer) = &self.writer {
            self.totals.bytes = writer.written();
            self.totals.lost += writer.dropped();
            self.totals.opens = self.totals.opens.saturating_sub(writer.dropped());
        }
    }
}

impl Traces {
    /// Adds a trace, which messages call `path`, that begins at `begun`, a time of the accesses'
    /// clock. Returns its number.
    pub(crate) fn begin(&mut self, path: &Path, writer: TraceWriter, begun: Duration) -> u64 {
        self.count += 1;
        let (id, path) = (self.count, path.to_owned());
        self.open.push(Trace { id, path, begun, writer: Some(writer), totals: Traced::default() });
        id
    }

    /// Removes a trace: nothing more is added to it.
    pub(crate) fn take(&mut self, id: u64) -> Option<Trace> {
        let at = self.open.iter().position(|trace| trace.id == id)?;
        Some(self.open.swap_remove(at))
    }

    /// Adds opens that were lost before they could be taken.
    pub(crate) fn lost(&mut self, opens: u64) {
        if opens == 0 {
            return;
        }
        for trace in &mut self.open {
            trace.totals.lost += opens;
            trace.write(|w| w.lost(opens));
        }
    }

    /// Adds an open to all traces.
    pub(crate) fn add(&mut self, live: &LiveSegment, id: u32, access: &Access) {
        // Files are numbered by root: the numbers of segments mean nothing to readers of the trace.
        let access = Access { file: FileKey((live.root as u64) << 32 | u64::from(id)), ..*access };
        for trace in &mut self.open {
            trace.totals.opens += 1;
            let access = Access { at: access.at.saturating_sub(trace.begun), ..access };
            trace.write(|w| w.add(&access, || rel(live, id)));
        }
    }

    /// Flushes what was added to the files.
    pub(crate) fn flush(&mut self) {
        self.open.iter_mut().for_each(|trace| trace.write(TraceWriter::flush));
    }

    /// Notes that the files of a root have new numbers.
    pub(crate) fn renumber(&mut self) {
        self.open.iter_mut().filter_map(|trace| trace.writer.as_mut()).for_each(TraceWriter::renumber);
    }
}

/// The path of an entry below its root.
fn rel(live: &LiveSegment, id: u32) -> Vec<u8> {
    let mut buf = [0u8; monarch_abi::PATH_MAX];
    let len = live.segment.index.path(id, &mut buf).unwrap_or(0);
    buf.get(..len).unwrap_or_default().to_vec()
}
