//! [`HintInbox`]: takes the hints of jobs: small files that their processes leave in the runtime
//! directory (see `monarch_abi::hint`).
//!
//! They are of the same user; what they name is checked nevertheless. A file that is not a hint is
//! removed.

use crate::held_dir::HeldDir;
use crate::snapshot::Range;
use crate::tiering::access::prefetch_order::PrefetchOrder;
use crate::tiering::core::segments::{Segments, parts};
use crate::tiering::core::shared::Shared;
use crate::tiering::core::source_facts::SourceFacts;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::queue::work_queue::WorkQueue;
use monarch_abi::demand::file_key;
use monarch_abi::hint;
use monarch_abi::hint::{Header, PARTIAL, SUFFIX};
use monarch_abi::index::Record;
use monarch_policies::hints::Priority;
use monarch_policies::{Event, FileKey};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Files in the longest hint that is read.
const MAX_HINT_FILES: u64 = 1 << 28;
/// Age at which a hint that is still being written has lost its writer.
const ABANDONED_AFTER: Duration = Duration::from_secs(300);

/// A hint that was taken.
#[derive(Debug)]
pub(crate) struct Hint {
    pub(crate) header: Header,
    pub(crate) files: Vec<u64>,
}

fn read(dir: &HeldDir, name: &str) -> Option<Hint> {
    let mut file = File::from(dir.read_file(name).ok()?);
    if file.metadata().ok()?.len() > MAX_HINT_FILES * 8 {
        return None;
    }
    let mut bytes = Vec::new();
    file.by_ref().take(MAX_HINT_FILES * 8).read_to_end(&mut bytes).ok()?;
    let header = Header::of(&bytes)?;
    Some(Hint { header, files: hint::files(&bytes).collect() })
}

/// Whether the writer of a partial hint has left it.
fn is_left(dir: &HeldDir, name: &str) -> bool {
    let Ok(st) = dir.stat(name) else { return false };
    let written = UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(st.st_mtime).unwrap_or(0)));
    written.and_then(|at| SystemTime::now().duration_since(at).ok()).is_some_and(|age| age > ABANDONED_AFTER)
}

/// Takes the hints of jobs.
pub(crate) struct HintInbox {
    segments: Arc<Segments>,
    policy: Arc<PolicyHandle>,
    source_facts: Arc<SourceFacts>,
    queue: Arc<WorkQueue>,
    order: Arc<PrefetchOrder>,
    hint_dir: Option<HeldDir>,
}

impl HintInbox {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        order: &Arc<PrefetchOrder>,
        hint_dir: Option<HeldDir>,
    ) -> Self {
        Self {
            segments: shared.segments.clone(),
            policy: policy.clone(),
            source_facts: shared.source_facts.clone(),
            queue: queue.work.clone(),
            order: order.clone(),
            hint_dir,
        }
    }

    /// Takes all hints, oldest first.
    pub(crate) fn take_hints(&self) -> Vec<Hint> {
        let Some(dir) = &self.hint_dir else { return Vec::new() };
        let mut hints = Vec::new();
        for name in dir.names().unwrap_or_default() {
            let shown = name.to_string_lossy();
            if shown.ends_with(SUFFIX) {
                hints.extend(read(dir, &shown).map(|hint| (hint.header.ms, shown.clone().into_owned(), hint)));
            } else if shown.ends_with(PARTIAL) && !is_left(dir, &shown) {
                continue;
            }
            let _ = dir.unlink(name.as_c_str());
        }
        hints.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        hints.into_iter().map(|(_, _, hint)| hint).collect()
    }

    /// Announces the order in which a process will open files.
    pub(crate) fn announced(&self, process: u64, files: &[u64]) {
        let mut last = None;
        let known = |key: &&u64| {
            let Some((number, id)) = parts(**key) else { return false };
            if last.as_ref().is_none_or(|(of, _)| *of != number) {
                last = self.segments.segment(number).map(|live| (number, live));
            }
            let live = last.as_ref().filter(|(of, _)| *of == number);
            live.and_then(|(_, live)| live.segment.index.record(id)).is_some_and(Record::is_file)
        };
        let order: Vec<FileKey> = files.iter().filter(known).map(|key| FileKey(*key)).collect();
        let mut policy = self.policy.lock_policy();
        let mut hints = self.policy.lock_hints();
        hints.announce(process, order);
        policy.event(&Event::Hinted, &hints);
    }

    /// Turns entries into ranges: neighbours together, directories with all below them.
    pub(crate) fn ranges(&self, keys: &[u64]) -> Vec<Range> {
        let mut ranges: Vec<Range> = Vec::new();
        for &key in keys {
            let Some((live, segment, id)) = self.segments.named(key) else { continue };
            let dir = live.segment.index.record(id).and_then(|record| live.segment.index.dir(record));
            // (No range ends behind the index, since all of a range is walked.)
            let end = dir.map_or(id + 1, |d| d.end.min(live.segment.index.len() as u32));
            // (A file on tape counts as named only in a range of its own.)
            match ranges
                .last_mut()
                .filter(|r| r.segment == segment && r.end == id && !self.source_facts.is_released(key))
            {
                Some(last) => last.end = end,
                None => ranges.push(Range { segment, from: id, end }),
            }
        }
        ranges
    }

    /// Sets the priority of files.
    pub(crate) fn prioritised(&self, keys: &[u64], value: i64) {
        let priority = match value {
            ..0 => Priority::Never,
            0 => Priority::Normal,
            1.. => Priority::High,
        };
        let ranges = self.ranges(keys);
        let files = || ranges.iter().flat_map(|r| (r.from..r.end).map(|id| file_key(r.segment, id)));
        {
            let mut policy = self.policy.lock_policy();
            let mut hints = self.policy.lock_hints();
            files().for_each(|key| hints.prioritise(FileKey(key), priority));
            policy.event(&Event::Hinted, &hints);
        }
        if priority == Priority::High {
            files().for_each(|key| self.order.consider_again(key));
            self.queue.prefetch_ranges(&ranges);
        }
    }
}
