//! [`SourceFacts`]: facts about the files of each root that prefetch respects: which are on tape,
//! which are software, and when files were last read.

use crate::index::{Ages, Released, Software, now_ns};
use crate::snapshot::{NearPurge, Range};
use crate::tiering::core::segments::{LiveSegment, Segments, parts};
use monarch_abi::index::Record;
use monarch_abi::segment::Segment;
use rustix::fs::StatVfsMountFlags;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// Files on tape, software, and access times, of each segment.
pub(crate) struct SourceFacts {
    live: Arc<Segments>,
    /// Age at which the site removes files.
    purge_age: Option<Duration>,
    /// Indexed by the number of the segment.
    segments: RwLock<Vec<Option<Arc<SegmentFacts>>>>,
}

#[derive(Debug)]
struct SegmentFacts {
    released: Released,
    software: Arc<Software>,
    /// Access times; only where the site removes old files.
    ages: Option<Mutex<Ages>>,
    /// Whether reading a file renews its access time.
    renews: bool,
}

impl SourceFacts {
    pub(crate) fn new(live: &Arc<Segments>, purge_age: Option<Duration>) -> Self {
        Self { live: live.clone(), purge_age, segments: RwLock::default() }
    }

    fn of(&self, number: usize) -> Option<Arc<SegmentFacts>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).get(number)?.clone()
    }

    /// Gathers the facts about a segment that is about to be served.
    pub(crate) fn begin(&self, number: usize, live: &LiveSegment) {
        let index = live.segment.index;
        let released = Released::of(&index);
        if released.files > 0 {
            let (files, bytes) = (released.files, released.bytes);
            tracing::info!(segment = number, files, bytes, "files released to tape are fetched on demand only");
        } else if released.unknown {
            tracing::info!(
                segment = number,
                "the PFS shows blocks for hardly any file: none is taken for released to tape"
            );
        }
        let software = Arc::new(Software::of(&index));
        if software.files > 0 {
            let (files, bytes) = (software.files, software.bytes);
            tracing::info!(
                segment = number,
                files,
                bytes,
                "files of software are copied when jobs open them, not ahead"
            );
        }
        let ages = self.purge_age.map(|_| Mutex::new(Ages::of(&index)));
        let flags = live.source.root().and_then(|root| rustix::fs::fstatvfs(&*root).ok()).map(|fs| fs.f_flag);
        let renews = flags.is_none_or(|f| !f.contains(StatVfsMountFlags::NOATIME));
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        if segments.len() <= number {
            segments.resize(number + 1, None);
        }
        segments[number] = Some(Arc::new(SegmentFacts { released, software, ages, renews }));
    }

    /// The files of a segment that are on tape: only a demand, or a request that names the file
    /// itself, fetches them.
    pub(crate) fn released(&self, number: usize) -> Released {
        self.of(number).map_or_else(Released::default, |s| s.released)
    }

    /// The files of a segment that are software: of them, a job opens a small part.
    pub(crate) fn software(&self, number: usize) -> Arc<Software> {
        self.of(number).map_or_else(Arc::default, |s| s.software.clone())
    }

    /// Notes that a file was read on the PFS.
    pub(crate) fn was_read(&self, key: u64, record: &Record) {
        let Some((number, id)) = parts(key) else { return };
        let Some(of) = self.of(number).filter(|s| s.renews) else { return };
        if let Some(ages) = &of.ages {
            crate::sync::lock(ages).note(id, record.atime_ns, now_ns());
        }
    }

    /// Whether a file is on tape.
    pub(crate) fn is_released(&self, key: u64) -> bool {
        let found = || {
            let (number, id) = parts(key)?;
            let released = self.released(number);
            (released.files > 0).then_some(())?;
            Some(released.holds(self.live.segment(number)?.segment.index.record(id)?))
        };
        found().unwrap_or(false)
    }

    /// The files of a segment that the site will soon remove.
    #[must_use]
    pub(crate) fn near_purge(&self, number: usize) -> Option<NearPurge> {
        let (age, of) = (self.purge_age?, self.of(number)?);
        let near = crate::sync::lock(of.ages.as_ref()?).near(age, now_ns())?;
        let days = |d: Duration| d.as_secs() / 86_400;
        Some(NearPurge { files: near.files, oldest_days: days(near.oldest), purge_days: days(age) })
    }
}

/// Whether a request for a range prefetches the file `id`. A file on tape is prefetched only if the
/// request names it, not as part of a directory. Expects a range that [`trimmed`] has returned.
pub(crate) fn is_asked_for(r: &Range, id: u32, record: &Record, released: &Released) -> bool {
    record.is_file() && (id + 1 == r.end || !released.holds(record))
}

/// A range without the files on tape at its end, unless it is one file. The last file of the result
/// is thus always fetched.
pub(crate) fn trimmed(mut r: Range, segment: &Segment<'_>, released: &Released) -> Range {
    r.end = r.end.min(segment.index.len() as u32);
    let on_tape = |id: u32| segment.index.record(id).is_some_and(|record| released.holds(record));
    while r.end > r.from.saturating_add(1) && on_tape(r.end - 1) {
        r.end -= 1;
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Tree, build};
    use crate::shm::create_segment;

    /// Two directories of four files each: ids 1 and 6; files 3, 4, 5 and 7 to 10 are on tape.
    fn on_tape(served: impl FnOnce(&Segment<'static>, &Released)) {
        let mut tree = Tree::synthetic(2, 4);
        tree.entries_mut(1)[1..].iter_mut().for_each(|r| r.blocks = 0);
        tree.entries_mut(2).iter_mut().for_each(|r| r.blocks = 1);
        let built = build(tree, 1, [1; 16]);
        let dir = tempfile::tempdir().expect("temp dir");
        let segment = create_segment(
            &std::sync::Arc::new(crate::held_dir::HeldDir::at(dir.path()).expect("directory")),
            &built.index,
            &built.buckets,
            [2; 16],
            crate::shm::Chunking { threshold: 16 << 20, size: 4 << 20 },
            crate::shm::Checks::default(),
        )
        .expect("segment")
        .0;
        served(&segment, &Released::of(&segment.index));
    }

    /// What a request for a range fetches.
    fn fetched(segment: &Segment<'static>, released: &Released, from: u32, end: u32) -> Vec<u32> {
        let r = trimmed(Range { segment: 0, from, end }, segment, released);
        let asked = |id: &u32| segment.index.record(*id).is_some_and(|record| is_asked_for(&r, *id, record, released));
        (r.from..r.end).filter(asked).collect()
    }

    #[test]
    fn files_on_tape_are_fetched_when_they_are_named_and_not_as_part_of_a_directory() {
        on_tape(|segment, released| {
            assert_eq!(released.files, 7);
            assert_eq!(fetched(segment, released, 0, 11), [2], "the root");
            assert_eq!(fetched(segment, released, 1, 6), [2], "a directory");
            assert_eq!(fetched(segment, released, 6, 11), [0u32; 0], "a directory that is on tape as a whole");
            assert_eq!(fetched(segment, released, 2, 3), [2]);
            assert_eq!(fetched(segment, released, 10, 11), [10], "a file on tape");
            assert_eq!(fetched(segment, released, 10, 99), [10], "beyond the end");
        });
    }
}
