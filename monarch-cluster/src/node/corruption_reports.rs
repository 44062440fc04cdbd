//! Reports of copies that arrived damaged. The node that sent such a copy reads its own again, and
//! drops it if it is damaged indeed.
//!
//! A report proves nothing. It costs the node that gets it a read of the bytes that it sent (4 MiB
//! at most), one at a time and a tenth of the time at most, and the node acts on what it finds
//! there alone. If a report was unfounded (the reporter lies, or a link or its memory changes
//! bytes), further ones of that node are ignored for 1 s, 2 s ... 60 s. Reports are sent once: a
//! copy that stays damaged is reported by the node that asks for it next.

use super::request_limits::MAX_REQUEST_BYTES;
use crate::sync::lock;
use monarch_storage::sharing::FileRef;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Bytes of one report: index, number of the file, offset and length.
const REPORT_BYTES: usize = 16 + 4 + 8 + 8;
/// Most reports in one message, and most that one node has waiting here.
pub(super) const MAX_REPORTS: usize = 256;
/// Most reports that wait to be sent.
const MAX_UNSENT: usize = 1 << 12;
/// How long reports of a file that was just dropped are ignored: those nodes got the copy before.
const DROP_MEMORY: Duration = Duration::from_secs(10);
/// Most dropped files that are remembered.
const MAX_DROPPED: usize = 1 << 12;
/// How long a node is ignored whose report was unfounded: at first, and at most.
const DISTRUST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Bytes of a file that did not have the checksum that they should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptionReport {
    /// Identifier of the index.
    pub index: [u8; 16],
    /// Number of the file in it.
    pub id: u32,
    /// Which bytes.
    pub range: Range<u64>,
}

/// Reports as they are sent.
#[must_use]
pub fn encode(reports: &[CorruptionReport]) -> Vec<u8> {
    let mut out = Vec::with_capacity(reports.len() * REPORT_BYTES);
    for r in reports {
        out.extend_from_slice(&r.index);
        out.extend_from_slice(&r.id.to_le_bytes());
        out.extend_from_slice(&r.range.start.to_le_bytes());
        out.extend_from_slice(&(r.range.end - r.range.start).to_le_bytes());
    }
    out
}

/// Reports from what was sent; `None` if it is none, or speaks of more bytes than a request may ask
/// for.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<CorruptionReport>> {
    let one = |bytes: &[u8]| {
        let (index, bytes) = bytes.split_first_chunk()?;
        let (id, bytes) = bytes.split_first_chunk()?;
        let (start, bytes) = bytes.split_first_chunk()?;
        let (start, len) = (u64::from_le_bytes(*start), u64::from_le_bytes(bytes.try_into().ok()?));
        let end = start.checked_add(len).filter(|_| (1..=MAX_REQUEST_BYTES).contains(&len))?;
        Some(CorruptionReport { index: *index, id: u32::from_le_bytes(*id), range: start..end })
    };
    (bytes.len() <= MAX_REPORTS * REPORT_BYTES).then(|| bytes.chunks(REPORT_BYTES).map(one).collect())?
}

/// Outcome of a look at a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was damaged, and dropped.
    Damaged,
    /// It is what it should be.
    Sound,
    /// There is none, or none that could be judged.
    None,
}

/// Reports of other nodes that wait to be looked into.
#[derive(Debug, Default)]
struct Heard {
    waiting: VecDeque<(u16, CorruptionReport)>,
    /// Nodes whose last report was unfounded: until when they are ignored, and how long that is.
    distrusted: HashMap<u16, (Instant, Duration)>,
    /// Files that were dropped, and when.
    dropped: HashMap<([u8; 16], u32), Instant>,
}

impl Heard {
    /// Takes a report of a node; whether it will be looked into.
    fn hear(&mut self, from: u16, report: CorruptionReport, now: Instant) -> bool {
        let file = (report.index, report.id);
        let is_distrusted = self.distrusted.get(&from).is_some_and(|(until, _)| now < *until);
        let of_one = self.waiting.iter().filter(|(node, _)| *node == from).count();
        let waits = |(_, other): &(u16, CorruptionReport)| (other.index, other.id) == file;
        let takes =
            !is_distrusted && !self.is_settled(&report, now) && of_one < MAX_REPORTS && !self.waiting.iter().any(waits);
        if takes {
            self.waiting.push_back((from, report));
        }
        takes
    }

    fn is_settled(&self, report: &CorruptionReport, now: Instant) -> bool {
        self.dropped.get(&(report.index, report.id)).is_some_and(|t| now.duration_since(*t) < DROP_MEMORY)
    }

    /// Takes the next report to be looked into. (While a copy was being looked at more reports of
    /// it may have come.)
    fn next(&mut self, now: Instant) -> Option<(u16, CorruptionReport)> {
        loop {
            let (from, report) = self.waiting.pop_front()?;
            if !self.is_settled(&report, now) {
                return Some((from, report));
            }
        }
    }

    /// Notes the verdict on a node's report.
    fn judged(&mut self, (from, report): (u16, &CorruptionReport), verdict: Verdict, now: Instant) {
        match verdict {
            Verdict::Damaged => {
                self.distrusted.remove(&from);
                if self.dropped.len() >= MAX_DROPPED {
                    self.dropped.retain(|_, t| now.duration_since(*t) < DROP_MEMORY);
                }
                if self.dropped.len() < MAX_DROPPED {
                    self.dropped.insert((report.index, report.id), now);
                }
            }
            Verdict::Sound => {
                let pause = self.distrusted.get(&from).map_or(DISTRUST.0, |(_, before)| (*before * 2).min(DISTRUST.1));
                self.distrusted.insert(from, (now + pause, pause));
                self.waiting.retain(|(node, _)| *node != from);
            }
            Verdict::None => {}
        }
    }
}

/// Reports of this node that are to be sent, and those of other nodes that are to be looked into.
#[derive(Debug, Default)]
pub(super) struct CorruptionReports {
    heard: Mutex<Heard>,
    /// Reports of this node, each with the node that sent the bytes.
    unsent: Mutex<Vec<(u16, CorruptionReport)>>,
}

impl CorruptionReports {
    /// Reports bytes of a file to the node that they came from.
    pub(super) fn report(&self, to: u16, file: &FileRef, range: Range<u64>) {
        let mut unsent = lock(&self.unsent);
        if unsent.len() < MAX_UNSENT {
            unsent.push((to, CorruptionReport { index: file.index, id: file.id, range }));
        }
    }

    /// Takes the reports that are to be sent, by node.
    pub(super) fn take_unsent(&self) -> HashMap<u16, Vec<CorruptionReport>> {
        let mut by_node: HashMap<u16, Vec<CorruptionReport>> = HashMap::new();
        for (to, report) in std::mem::take(&mut *lock(&self.unsent)) {
            by_node.entry(to).or_default().push(report);
        }
        by_node
    }

    /// Takes reports of another node.
    pub(super) fn hear(&self, from: u16, reports: Vec<CorruptionReport>, now: Instant) {
        let mut heard = lock(&self.heard);
        for report in reports {
            heard.hear(from, report, now);
        }
    }

    /// Takes the next report to be looked into, with its node.
    pub(super) fn next(&self, now: Instant) -> Option<(u16, CorruptionReport)> {
        lock(&self.heard).next(now)
    }

    /// Notes the verdict on a node's report.
    pub(super) fn judged(&self, of: (u16, &CorruptionReport), verdict: Verdict, now: Instant) {
        lock(&self.heard).judged(of, verdict, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u16 = 1;
    const B: u16 = 2;

    fn of(id: u32) -> CorruptionReport {
        CorruptionReport { index: [7; 16], id, range: 0..4096 }
    }

    #[test]
    fn complaints_are_read_as_they_were_written_and_nothing_else_is() {
        let some = vec![of(1), CorruptionReport { range: 4096..4096 + MAX_REQUEST_BYTES, ..of(2) }];
        let bytes = encode(&some);
        assert_eq!(decode(&bytes), Some(some));
        assert_eq!((decode(&[]), decode(&bytes[1..])), (Some(Vec::new()), None));
        let bad = |range| decode(&encode(&[CorruptionReport { range, ..of(1) }]));
        assert_eq!((bad(5..5), bad(0..MAX_REQUEST_BYTES + 1)), (None, None));
        let mut overflows = encode(&[of(1)]);
        overflows[20..28].fill(0xff);
        assert_eq!(decode(&overflows), None);
        let many: Vec<CorruptionReport> = (0..=MAX_REPORTS as u32).map(of).collect();
        assert!(decode(&encode(&many)).is_none() && decode(&encode(&many[1..])).is_some());
    }

    #[test]
    fn a_file_waits_once_and_a_node_has_so_many_waiting_at_most() {
        let (mut heard, now) = (Heard::default(), Instant::now());
        assert!(heard.hear(A, of(0), now) && !heard.hear(B, of(0), now));
        for id in 1..1000 {
            heard.hear(A, of(id), now);
        }
        assert_eq!(heard.waiting.len(), MAX_REPORTS);
        assert!(heard.hear(B, of(999), now), "others are heard all the same");
        assert_eq!(heard.next(now), Some((A, of(0))));
    }

    #[test]
    fn a_lie_costs_one_look_and_then_more_and_more_time() {
        let (mut heard, mut now) = (Heard::default(), Instant::now());
        let mut looks = 0;
        let start = now;
        while now.duration_since(start) < Duration::from_secs(600) {
            for id in 0..50 {
                heard.hear(A, of(id), now);
            }
            while let Some((from, report)) = heard.next(now) {
                looks += 1;
                heard.judged((from, &report), Verdict::Sound, now);
            }
            now += Duration::from_millis(100);
        }
        // 1 + 2 + 4 ... 32 s, then one a minute.
        assert!((10..=16).contains(&looks), "{looks}");
        assert!(heard.hear(B, of(1), now), "another node is heard");
        // One that is right in the end is heard again.
        now += DISTRUST.1;
        assert!(heard.hear(A, of(2), now));
        heard.judged((A, &of(2)), Verdict::Damaged, now);
        assert!(heard.hear(A, of(3), now) && heard.distrusted.is_empty());
    }

    #[test]
    fn who_got_a_copy_before_it_was_dropped_is_no_liar() {
        let (mut heard, now) = (Heard::default(), Instant::now());
        heard.hear(A, of(1), now);
        let (from, report) = heard.next(now).unwrap();
        // While the copy is looked at, and after it was dropped.
        assert!(heard.hear(B, of(1), now));
        heard.judged((from, &report), Verdict::Damaged, now);
        assert_eq!(heard.next(now), None);
        assert!(!heard.hear(B, of(1), now) && heard.hear(B, of(1), now + DROP_MEMORY));
        for id in 0..3 * MAX_DROPPED as u32 {
            heard.judged((A, &of(id)), Verdict::Damaged, now);
        }
        assert!(heard.dropped.len() <= MAX_DROPPED);
    }
}
