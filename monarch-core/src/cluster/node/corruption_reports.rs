//! Copies that arrived damaged: the node that sent one is told, reads its own again, and drops it
//! if it is damaged indeed.
//!
//! Who complains proves nothing. A complaint costs the other node a read of the bytes that it sent
//! (4 MiB at most), one at a time and a tenth of the time at most, and it acts on what it finds
//! there alone. A node whose complaint was unfounded (it lies, or a link or its memory changes
//! bytes) has its next ones put aside for 1 s, 2 s ... 60 s. Complaints are sent once: a copy that
//! stays damaged is complained of by whoever asks next.

use super::bounds::AT_ONCE;
use super::local_copy::Bytes;
use super::{FileRef, Node, lock};
use crate::cluster::http::Answer;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of one complaint: index, number of the file, offset and length.
const LEN: usize = 16 + 4 + 8 + 8;
/// Most complaints in one message, and that one node has waiting here.
const OF_ONE: usize = 256;
/// Most that wait to be sent.
const UNSENT: usize = 1 << 12;
/// How long nothing is heard of a file that was just dropped: those who complain got the copy
/// before it was.
const SETTLED: Duration = Duration::from_secs(10);
/// Most files that are remembered for that.
const DROPPED: usize = 1 << 12;
/// How long a node is not heard whose complaint was unfounded: so long at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How often it is looked whether there is something to do.
const LOOK: Duration = Duration::from_millis(100);
/// After a look at a copy, this many times as long as it took nothing is read.
const REST: u32 = 9;

/// Bytes of a file that did not come to what they should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Of the index.
    pub index: [u8; 16],
    /// The file's number there.
    pub id: u32,
    /// Which bytes.
    pub range: Range<u64>,
}

/// As they are sent.
#[must_use]
pub fn encode(complaints: &[Complaint]) -> Vec<u8> {
    let mut out = Vec::with_capacity(complaints.len() * LEN);
    for c in complaints {
        out.extend_from_slice(&c.index);
        out.extend_from_slice(&c.id.to_le_bytes());
        out.extend_from_slice(&c.range.start.to_le_bytes());
        out.extend_from_slice(&(c.range.end - c.range.start).to_le_bytes());
    }
    out
}

/// What was sent; `None` if it is none, or speaks of more bytes than a request may ask for.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<Complaint>> {
    let one = |bytes: &[u8]| {
        let (index, bytes) = bytes.split_first_chunk()?;
        let (id, bytes) = bytes.split_first_chunk()?;
        let (start, bytes) = bytes.split_first_chunk()?;
        let (start, len) = (u64::from_le_bytes(*start), u64::from_le_bytes(bytes.try_into().ok()?));
        let end = start.checked_add(len).filter(|_| (1..=AT_ONCE).contains(&len))?;
        Some(Complaint { index: *index, id: u32::from_le_bytes(*id), range: start..end })
    };
    (bytes.len() <= OF_ONE * LEN).then(|| bytes.chunks(LEN).map(one).collect())?
}

/// What a look at a copy has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It was damaged, and dropped.
    Damaged,
    /// It is what it should be.
    Sound,
    /// There is none, or none that could be judged.
    None,
}

/// Complaints of others that wait to be looked into.
#[derive(Debug, Default)]
struct Heard {
    waiting: VecDeque<(u16, Complaint)>,
    /// Nodes whose last complaint was unfounded: until when they are not heard, and how long that
    /// was.
    liars: HashMap<u16, (Instant, Duration)>,
    /// Files that were dropped, and when.
    dropped: HashMap<([u8; 16], u32), Instant>,
}

impl Heard {
    /// A node complains; whether that will be looked into.
    fn hear(&mut self, from: u16, complaint: Complaint, now: Instant) -> bool {
        let file = (complaint.index, complaint.id);
        let is_liar = self.liars.get(&from).is_some_and(|(until, _)| now < *until);
        let of_one = self.waiting.iter().filter(|(node, _)| *node == from).count();
        let waits = |(_, other): &(u16, Complaint)| (other.index, other.id) == file;
        let takes = !is_liar && !self.is_settled(&complaint, now) && of_one < OF_ONE && !self.waiting.iter().any(waits);
        if takes {
            self.waiting.push_back((from, complaint));
        }
        takes
    }

    fn is_settled(&self, complaint: &Complaint, now: Instant) -> bool {
        self.dropped.get(&(complaint.index, complaint.id)).is_some_and(|t| now.duration_since(*t) < SETTLED)
    }

    /// The next one to be looked into. (While a copy was being looked at more may have come about
    /// it.)
    fn next(&mut self, now: Instant) -> Option<(u16, Complaint)> {
        loop {
            let (from, complaint) = self.waiting.pop_front()?;
            if !self.is_settled(&complaint, now) {
                return Some((from, complaint));
            }
        }
    }

    /// What came of a node's complaint.
    fn judged(&mut self, (from, complaint): (u16, &Complaint), verdict: Verdict, now: Instant) {
        match verdict {
            Verdict::Damaged => {
                self.liars.remove(&from);
                if self.dropped.len() >= DROPPED {
                    self.dropped.retain(|_, t| now.duration_since(*t) < SETTLED);
                }
                if self.dropped.len() < DROPPED {
                    self.dropped.insert((complaint.index, complaint.id), now);
                }
            }
            Verdict::Sound => {
                let pause = self.liars.get(&from).map_or(PAUSE.0, |(_, before)| (*before * 2).min(PAUSE.1));
                self.liars.insert(from, (now + pause, pause));
                self.waiting.retain(|(node, _)| *node != from);
            }
            Verdict::None => {}
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    heard: Mutex<Heard>,
    /// Those of this node, and whom they concern.
    unsent: Mutex<Vec<(u16, Complaint)>>,
}

impl Node {
    /// Bytes of a file arrived damaged from a node: it is told.
    pub(super) fn complain(&self, to: u16, file: &FileRef, range: Range<u64>) {
        let mut unsent = lock(&self.complaints.unsent);
        if unsent.len() < UNSENT {
            unsent.push((to, Complaint { index: file.index, id: file.id, range }));
        }
    }

    /// Sends what there is to be complained of.
    fn send_complaints(&self) {
        let mut by_node: HashMap<u16, Vec<Complaint>> = HashMap::new();
        for (to, complaint) in std::mem::take(&mut *lock(&self.complaints.unsent)) {
            by_node.entry(to).or_default().push(complaint);
        }
        let nodes: Vec<u16> = by_node.keys().copied().collect();
        self.each(&nodes, |node| {
            for some in by_node.get(&node).into_iter().flat_map(|all| all.chunks(OF_ONE)) {
                self.post(node, "/v1/damaged", &encode(some));
            }
        });
    }

    /// Another node complains of what it got from here.
    pub(super) fn heard_damaged(&self, peer: &str, body: &[u8]) -> Answer {
        let Some(complaints) = decode(body) else {
            return Answer::text(400, "a complaint names an index, a file and up to 4 MiB of it; a message holds 256");
        };
        let Some(from) = self.view().number(peer) else { return Answer::status(409) };
        let (now, mut heard) = (Instant::now(), lock(&self.complaints.heard));
        for complaint in complaints {
            heard.hear(from, complaint, now);
        }
        Answer::status(204)
    }

    /// Sends complaints, and looks into those of others, until the agent ends; with long rests
    /// between looks: what readers and other nodes wait for goes first.
    pub(super) fn look_into_complaints(&self, stop: &AtomicBool) {
        let mut rest = LOOK;
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(rest.min(LOOK));
            self.send_complaints();
            rest = rest.saturating_sub(LOOK);
            if !rest.is_zero() {
                continue;
            }
            rest = LOOK;
            let next = lock(&self.complaints.heard).next(Instant::now());
            let Some((from, complaint)) = next else { continue };
            let start = Instant::now();
            let verdict = self.judge(&complaint);
            lock(&self.complaints.heard).judged((from, &complaint), verdict, Instant::now());
            self.figures.complaints.fetch_add(1, Ordering::Relaxed);
            if verdict == Verdict::Damaged {
                self.figures.found_damaged.fetch_add(1, Ordering::Relaxed);
            }
            rest = start.elapsed() * REST;
        }
    }

    /// Reads what a node complains of, and drops the copy if it is damaged.
    fn judge(&self, complaint: &Complaint) -> Verdict {
        let Some((here, file)) = self.here(complaint.index, complaint.id) else { return Verdict::None };
        let word = here.entry.word();
        let Some(Bytes::Copy(copy)) = self.copy(&here).filter(|_| complaint.range.end <= here.size()) else {
            return Verdict::None;
        };
        match self.is_sound(&here, &file, &complaint.range, &copy) {
            None => Verdict::None,
            Some(true) => Verdict::Sound,
            Some(false) if self.drop_damaged(&here, &file, word) => Verdict::Damaged,
            Some(false) => Verdict::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u16 = 1;
    const B: u16 = 2;

    fn of(id: u32) -> Complaint {
        Complaint { index: [7; 16], id, range: 0..4096 }
    }

    #[test]
    fn complaints_are_read_as_they_were_written_and_nothing_else_is() {
        let some = vec![of(1), Complaint { range: 4096..4096 + AT_ONCE, ..of(2) }];
        let bytes = encode(&some);
        assert_eq!(decode(&bytes), Some(some));
        assert_eq!((decode(&[]), decode(&bytes[1..])), (Some(Vec::new()), None));
        let bad = |range| decode(&encode(&[Complaint { range, ..of(1) }]));
        assert_eq!((bad(5..5), bad(0..AT_ONCE + 1)), (None, None));
        let mut overflows = encode(&[of(1)]);
        overflows[20..28].fill(0xff);
        assert_eq!(decode(&overflows), None);
        let many: Vec<Complaint> = (0..=OF_ONE as u32).map(of).collect();
        assert!(decode(&encode(&many)).is_none() && decode(&encode(&many[1..])).is_some());
    }

    #[test]
    fn a_file_waits_once_and_a_node_has_so_many_waiting_at_most() {
        let (mut heard, now) = (Heard::default(), Instant::now());
        assert!(heard.hear(A, of(0), now) && !heard.hear(B, of(0), now));
        for id in 1..1000 {
            heard.hear(A, of(id), now);
        }
        assert_eq!(heard.waiting.len(), OF_ONE);
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
            while let Some((from, complaint)) = heard.next(now) {
                looks += 1;
                heard.judged((from, &complaint), Verdict::Sound, now);
            }
            now += Duration::from_millis(100);
        }
        // 1 + 2 + 4 ... 32 s, then one a minute.
        assert!((10..=16).contains(&looks), "{looks}");
        assert!(heard.hear(B, of(1), now), "another node is heard");
        // One that is right in the end is heard again.
        now += PAUSE.1;
        assert!(heard.hear(A, of(2), now));
        heard.judged((A, &of(2)), Verdict::Damaged, now);
        assert!(heard.hear(A, of(3), now) && heard.liars.is_empty());
    }

    #[test]
    fn who_got_a_copy_before_it_was_dropped_is_no_liar() {
        let (mut heard, now) = (Heard::default(), Instant::now());
        heard.hear(A, of(1), now);
        let (from, complaint) = heard.next(now).unwrap();
        // While the copy is looked at, and after it was dropped.
        assert!(heard.hear(B, of(1), now));
        heard.judged((from, &complaint), Verdict::Damaged, now);
        assert_eq!(heard.next(now), None);
        assert!(!heard.hear(B, of(1), now) && heard.hear(B, of(1), now + SETTLED));
        for id in 0..3 * DROPPED as u32 {
            heard.judged((A, &of(id)), Verdict::Damaged, now);
        }
        assert!(heard.dropped.len() <= DROPPED);
    }
}
