//! Hints of jobs: small files that their processes leave in the runtime directory (see
//! `monarch_abi::hint`).
//!
//! They are of the same user; what they name is checked all the same. A file that is no hint goes.

use super::access_tracker::AccessTracker;
use super::{LiveSegment, TieringEngine, parts};
use crate::agent::protocol::Range;
use crate::held_dir::HeldDir;
use crate::sync::lock;
use monarch_abi::demand::file_key;
use monarch_abi::hint::{self, Header, Kind, PARTIAL, SUFFIX};
use monarch_abi::index::Record;
use monarch_abi::word::{Refusal, State};
use monarch_policies::hints::Priority;
use monarch_policies::{Event, FileKey};
use std::fs::File;
use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest hint that is read, in files.
const MOST: u64 = 1 << 28;
/// A hint that is being written so long has lost its writer.
const LEFT: Duration = Duration::from_secs(300);

/// A hint that was taken.
#[derive(Debug)]
pub(super) struct Hint {
    pub(super) header: Header,
    pub(super) files: Vec<u64>,
}

fn read(dir: &HeldDir, name: &str) -> Option<Hint> {
    let mut file = File::from(dir.read_file(name).ok()?);
    if file.metadata().ok()?.len() > MOST * 8 {
        return None;
    }
    let mut bytes = Vec::new();
    file.by_ref().take(MOST * 8).read_to_end(&mut bytes).ok()?;
    let header = Header::of(&bytes)?;
    Some(Hint { header, files: hint::files(&bytes).collect() })
}

/// Whether a hint that is being written was left so by its writer.
fn is_left(dir: &HeldDir, name: &str) -> bool {
    let Ok(st) = dir.stat(name) else { return false };
    let written = UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(st.st_mtime).unwrap_or(0)));
    written.and_then(|at| SystemTime::now().duration_since(at).ok()).is_some_and(|age| age > LEFT)
}

impl TieringEngine {
    /// Takes all hints, oldest first.
    pub(super) fn take_hints(&self) -> Vec<Hint> {
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

    pub(super) fn apply_hint(&self, reading: &mut AccessTracker, hint: &Hint) {
        let Header { kind, process, value, ms, .. } = hint.header;
        let at = Duration::from_millis(ms);
        tracing::debug!(?kind, process, value, files = hint.files.len(), "hint");
        self.stats.hints.fetch_add(1, Ordering::Relaxed);
        match kind {
            Kind::Order => self.announced(u64::from(process), &hint.files),
            Kind::Prefetch => {
                let ranges = self.ranges(&hint.files);
                self.prefetch_ranges(&ranges);
            }
            Kind::Priority => self.prioritised(&hint.files, value),
            Kind::EpochBegin => self.epoch_announced(reading, at, Some(u32::try_from(value).ok())),
            Kind::EpochEnd => self.epoch_announced(reading, at, None),
        }
    }

    /// The segment of a key that a job has named, if there is such an entry.
    fn named(&self, key: u64) -> Option<(LiveSegment, usize, u32)> {
        let (number, id) = parts(key)?;
        let live = self.segment(number)?;
        live.segment.index.record(id)?;
        Some((live, number, id))
    }

    /// A process says in which order it will open files.
    fn announced(&self, process: u64, files: &[u64]) {
        let mut last = None;
        let known = |key: &&u64| {
            let Some((number, id)) = parts(**key) else { return false };
            if last.as_ref().is_none_or(|(of, _)| *of != number) {
                last = self.segment(number).map(|live| (number, live));
            }
            let live = last.as_ref().filter(|(of, _)| *of == number);
            live.and_then(|(_, live)| live.segment.index.record(id)).is_some_and(Record::is_file)
        };
        let order: Vec<FileKey> = files.iter().filter(known).map(|key| FileKey(*key)).collect();
        let mut policy = lock(&self.policy);
        let mut hints = lock(&self.hints);
        hints.announce(process, order);
        policy.event(&Event::Hinted, &hints);
    }

    /// Entries by ranges: neighbours together, directories with all below them.
    fn ranges(&self, keys: &[u64]) -> Vec<Range> {
        let mut ranges: Vec<Range> = Vec::new();
        for &key in keys {
            let Some((live, segment, id)) = self.named(key) else { continue };
            let dir = live.segment.index.record(id).and_then(|record| live.segment.index.dir(record));
            // (No end behind that of the index: all of a range is walked through.)
            let end = dir.map_or(id + 1, |d| d.end.min(live.segment.index.len() as u32));
            // (One on tape counts as named only by itself.)
            match ranges.last_mut().filter(|r| r.segment == segment && r.end == id && !self.is_released(key)) {
                Some(last) => last.end = end,
                None => ranges.push(Range { segment, from: id, end }),
            }
        }
        ranges
    }

    /// How much files matter to the user.
    fn prioritised(&self, keys: &[u64], value: i64) {
        let priority = match value {
            ..0 => Priority::Never,
            0 => Priority::Normal,
            1.. => Priority::High,
        };
        let ranges = self.ranges(keys);
        let files = || ranges.iter().flat_map(|r| (r.from..r.end).map(|id| file_key(r.segment, id)));
        {
            let mut policy = lock(&self.policy);
            let mut hints = lock(&self.hints);
            files().for_each(|key| hints.prioritise(FileKey(key), priority));
            policy.event(&Event::Hinted, &hints);
        }
        if priority == Priority::High {
            files().for_each(|key| self.consider_again(key));
            self.prefetch_ranges(&ranges);
        }
    }

    /// A file that found no room, or had to go, may be fetched again.
    pub(super) fn consider_again(&self, key: u64) {
        let Some((_, entry)) = self.entry(key) else { return };
        let w = entry.word();
        // (What has a pause comes back by itself; what belongs to an old index does not.)
        let for_room = matches!(w.refusal(), Some(Refusal::NoRoom | Refusal::Streamable | Refusal::Replaced));
        if for_room && parts(key).is_some_and(|(number, _)| self.is_live(number)) {
            let word = &entry.master.word;
            let _ = word.compare_exchange(w.0, w.next(State::Absent).0, Ordering::AcqRel, Ordering::Acquire);
        }
    }
}
