//! What is known about the future: the order in which files will be opened, as announced or
//! learned, and the priorities that users give to files.
//!
//! Each stream of readers (a rank) has an order of its own. Its position is behind the file that
//! was opened last: the distance of a file is the number of files that its stream opens before it.
//! An announcement replaces what was known of its stream.

use crate::FileKey;
use crate::keys::{KeyMap, forget_index};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A user's priority of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Never copied.
    Never,
    /// As the policy wants.
    #[default]
    Normal,
    /// Copied as long as there is room or a victim without this priority, and never a victim of
    /// files without it.
    High,
}

/// What a file is given for by [`Hints::upcoming`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be fetched.
    Fetch = 0,
    /// To be decompressed, where there is a compressed copy.
    Decode = 1,
}

/// The known orders and priorities.
///
/// A file has one place, also where several streams will open it: that in the stream that announced
/// it last. The earlier stream's place is lost, and does not come back when the later stream is
/// forgotten or past the file; its order still has the file. Ranks share no files within an epoch,
/// so that this matters little: such a file is taken for unwanted once it was opened, though
/// another stream may be yet to open it.
///
/// Callers hold a lock: announcing and forgetting a stream costs as much as its order is long.
/// Everything else that is called often costs no more than there are streams.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    streams: HashMap<u64, Stream>,
    /// Stream and position of each file.
    places: KeyMap<(u64, u32)>,
    priorities: KeyMap<Priority>,
    order_revision: u64,
    priority_revision: u64,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    order: Vec<FileKey>,
    /// Position behind the file opened last.
    at: u32,
    /// Position behind the file that [`Hints::upcoming`] gave last.
    given: [u32; 2],
    /// Epochs that have begun since it was announced.
    epochs: u32,
}

impl Hints {
    /// Whether any order is known.
    #[must_use]
    pub fn has_order(&self) -> bool {
        !self.places.is_empty()
    }

    /// The order in which a stream will open files, from now on.
    pub fn announce(&mut self, stream: u64, order: Vec<FileKey>) {
        self.forget(stream);
        self.order_revision += 1;
        for (at, file) in order.iter().enumerate() {
            // The first place counts for a file that comes twice in an order; of two streams that
            // want it, the later announcement.
            let place = (stream, at as u32);
            self.places
                .entry(*file)
                .and_modify(|p| {
                    if p.0 != stream {
                        *p = place;
                    }
                })
                .or_insert(place);
        }
        self.streams.insert(stream, Stream { order, at: 0, given: [0; 2], epochs: 0 });
    }

    /// Forgets the order of a stream.
    pub fn forget(&mut self, stream: u64) {
        if let Some(gone) = self.streams.remove(&stream) {
            self.order_revision += 1;
            self.forget_places(stream, &gone.order);
        }
    }

    fn forget_places(&mut self, stream: u64, files: &[FileKey]) {
        for file in files {
            if let Entry::Occupied(place) = self.places.entry(*file)
                && place.get().0 == stream
            {
                place.remove();
            }
        }
    }

    /// Removes the files of an index from all orders, and their priorities. Streams that have no
    /// other files are forgotten.
    pub fn forget_index(&mut self, index: u32) {
        let is_gone = |file: &FileKey| file.index() == index;
        let touched = |(_, s): &(&u64, &Stream)| s.order.iter().any(is_gone);
        let touched: Vec<u64> = self.streams.iter().filter(touched).map(|(stream, _)| *stream).collect();
        self.order_revision += u64::from(!touched.is_empty());
        for stream in touched {
            let Some(mut s) = self.streams.remove(&stream) else { continue };
            let (gone, order): (Vec<FileKey>, Vec<FileKey>) = s.order.iter().partition(|f| is_gone(f));
            self.forget_places(stream, &gone);
            self.close_ranks(stream, &mut s, order, is_gone);
            if !s.order.is_empty() {
                self.streams.insert(stream, s);
            }
        }
        let known = self.priorities.len();
        forget_index(&mut self.priorities, index);
        self.priority_revision += u64::from(self.priorities.len() < known);
    }

    /// Shortens the order of a stream to what is left of it.
    fn close_ranks(&mut self, stream: u64, s: &mut Stream, left: Vec<FileKey>, is_gone: impl Fn(&FileKey) -> bool) {
        let old = std::mem::replace(&mut s.order, left);
        let before = |at: u32| old.iter().take(at as usize).filter(|f| !is_gone(f)).count() as u32;
        (s.at, s.given) = (before(s.at), s.given.map(before));
        let stay = old.iter().enumerate().filter(|(_, f)| !is_gone(f));
        for (new, (at, file)) in stay.enumerate() {
            // (A file that comes twice has its first place.)
            self.places.entry(*file).and_modify(|p| {
                if *p == (stream, at as u32) {
                    p.1 = new as u32;
                }
            });
        }
    }

    /// Forgets all orders.
    pub fn forget_all(&mut self) {
        self.streams.clear();
        self.places.clear();
        self.order_revision += 1;
    }

    /// Grows with each announcement and whenever an order is forgotten (not with what readers
    /// open): policies look again when it has changed.
    #[must_use]
    pub fn order_revision(&self) -> u64 {
        self.order_revision
    }

    /// Grows whenever users change priorities.
    #[must_use]
    pub fn priority_revision(&self) -> u64 {
        self.priority_revision
    }

    /// A reader opened a file: its stream is past it.
    pub fn accessed(&mut self, file: FileKey) {
        let Some((stream, at)) = self.places.remove(&file) else { return };
        if let Some(s) = self.streams.get_mut(&stream) {
            // (Several workers of a rank are not quite in order.)
            s.at = s.at.max(at + 1);
        }
    }

    /// Number of files that its stream opens before this one; `None` where nothing is known, or it
    /// was opened already. Files that were passed over are due at once.
    #[must_use]
    pub fn next_use(&self, file: FileKey) -> Option<u32> {
        let (stream, at) = self.places.get(&file)?;
        Some(at.saturating_sub(self.streams.get(stream)?.at))
    }

    /// The next file in the known order that was not given for this purpose yet, of all streams the
    /// one that comes soonest. It may have a copy, or have been opened: callers who look for one
    /// that has not take a bounded number (some 512) at a time.
    pub fn upcoming(&mut self, purpose: Purpose) -> Option<FileKey> {
        let of = purpose as usize;
        let next = |s: &Stream| s.given[of].max(s.at);
        let waiting = self.streams.values_mut().filter(|s| (next(s) as usize) < s.order.len());
        let soonest = waiting.min_by_key(|s| next(s) - s.at)?;
        soonest.given[of] = next(soonest) + 1;
        soonest.order.get(soonest.given[of] as usize - 1).copied()
    }

    /// An epoch of some indexes begins: orders of their files that were announced before the last
    /// one began are not true any more. An order is of the index of its first file; an empty one is
    /// of all.
    pub fn epoch_began(&mut self, of: impl Fn(u32) -> bool) {
        let mut old = Vec::new();
        for (stream, s) in &mut self.streams {
            if s.order.first().is_none_or(|file| of(file.index())) {
                s.epochs += 1;
                if s.epochs > 1 {
                    old.push(*stream);
                }
            }
        }
        old.into_iter().for_each(|stream| self.forget(stream));
    }

    /// The streams with a known order.
    pub fn streams(&self) -> impl Iterator<Item = u64> + '_ {
        self.streams.keys().copied()
    }

    /// The order of a stream from a position on, and where the stream is.
    #[must_use]
    pub fn order(&self, stream: u64) -> Option<(&[FileKey], u32)> {
        self.streams.get(&stream).map(|s| (s.order.as_slice(), s.at))
    }

    /// Sets a user's priority for a file.
    pub fn prioritise(&mut self, file: FileKey, priority: Priority) {
        self.priority_revision += 1;
        if priority == Priority::Normal {
            self.priorities.remove(&file);
        } else {
            self.priorities.insert(file, priority);
        }
    }

    /// A user's priority of a file.
    #[must_use]
    pub fn priority(&self, file: FileKey) -> Priority {
        self.priorities.get(&file).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(files: &[u64]) -> Vec<FileKey> {
        files.iter().map(|n| FileKey(*n)).collect()
    }

    #[test]
    fn distances_count_from_the_reader() {
        let mut h = Hints::default();
        h.announce(1, order(&[5, 6, 7, 6]));
        assert_eq!([5, 6, 7, 8].map(|n| h.next_use(FileKey(n))), [Some(0), Some(1), Some(2), None]);
        h.accessed(FileKey(6));
        // 5 was passed over, and is due at once.
        assert_eq!([5, 6, 7].map(|n| h.next_use(FileKey(n))), [Some(0), None, Some(0)]);
        assert_eq!(h.order(1).map(|(_, at)| at), Some(2));
    }

    #[test]
    fn an_announcement_replaces_what_was_known_of_its_stream() {
        let mut h = Hints::default();
        h.announce(1, order(&[1, 2]));
        h.announce(2, order(&[2, 3]));
        assert_eq!(h.next_use(FileKey(2)), Some(0));
        h.announce(1, order(&[4]));
        assert_eq!([1, 2, 3, 4].map(|n| h.next_use(FileKey(n))), [None, Some(0), Some(1), Some(0)]);
        h.forget(1);
        h.forget(2);
        assert!(!h.has_order());
    }

    #[test]
    fn revisions_tell_what_has_changed() {
        let mut h = Hints::default();
        let at = |h: &Hints| (h.order_revision(), h.priority_revision());
        h.announce(1, order(&[1]));
        let announced = at(&h);
        h.accessed(FileKey(1));
        h.forget(7);
        assert_eq!(at(&h), announced);
        h.prioritise(FileKey(1), Priority::High);
        assert_eq!((at(&h).0, at(&h).1 > announced.1), (announced.0, true));
        h.forget(1);
        assert!(h.order_revision() > announced.0);
    }

    fn of_index(index: u64, files: &[u64]) -> Vec<FileKey> {
        files.iter().map(|n| FileKey(index << 32 | n)).collect()
    }

    #[test]
    fn an_order_is_forgotten_with_the_second_epoch_of_its_index() {
        let mut h = Hints::default();
        h.announce(1, of_index(1, &[1, 2]));
        h.announce(2, of_index(2, &[1, 2]));
        // A validation set goes round quickly.
        for _ in 0..5 {
            h.epoch_began(|index| index == 2);
        }
        assert_eq!(h.streams().collect::<Vec<_>>(), [1]);
        h.epoch_began(|index| index == 1);
        assert_eq!(h.next_use(FileKey(1 << 32 | 2)), Some(1));
        h.announce(1, of_index(1, &[2, 1]));
        h.epoch_began(|index| index == 1);
        assert!(h.has_order());
        h.epoch_began(|index| index == 1);
        assert!(!h.has_order() && h.streams().count() == 0);
    }

    #[test]
    fn orders_go_on_without_the_files_of_an_index_that_is_gone() {
        let mut h = Hints::default();
        let (a, b) = (|n: u64| FileKey(1 << 32 | n), |n: u64| FileKey(2 << 32 | n));
        h.announce(1, vec![b(0), a(0), b(1), a(1), b(2), a(1), a(2)]);
        h.announce(2, vec![b(8), b(9)]);
        h.prioritise(a(7), Priority::High);
        h.prioritise(b(7), Priority::High);
        h.accessed(b(0));
        h.accessed(a(0));
        let given: Vec<_> = (0..3).filter_map(|_| h.upcoming(Purpose::Fetch)).collect();
        assert_eq!(given.len(), 3);
        let (order, priority) = (h.order_revision(), h.priority_revision());
        h.forget_index(2);
        assert!(h.order_revision() > order && h.priority_revision() > priority);
        assert_eq!(h.order(1), Some((&[a(0), a(1), a(1), a(2)][..], 1)));
        assert_eq!(
            [a(0), a(1), a(2), b(1), b(2), b(8)].map(|f| h.next_use(f)),
            [None, Some(0), Some(2), None, None, None]
        );
        assert_eq!(h.streams().collect::<Vec<_>>(), [1]);
        assert_eq!([a(7), b(7)].map(|f| h.priority(f)), [Priority::High, Priority::Normal]);
        // What was given is not given again.
        let rest: Vec<_> = std::iter::from_fn(|| h.upcoming(Purpose::Fetch)).collect();
        assert!(rest.ends_with(&[a(1), a(2)]) && !rest.contains(&a(0)), "{rest:?}");
        let revisions = (h.order_revision(), h.priority_revision());
        h.forget_index(2);
        assert_eq!((h.order_revision(), h.priority_revision()), revisions);
        h.forget_index(1);
        assert!(!h.has_order() && h.streams().count() == 0);
    }

    #[test]
    fn a_forgotten_stream_leaves_the_places_of_others() {
        let mut h = Hints::default();
        h.announce(1, order(&[1, 2, 3]));
        h.announce(2, order(&[3, 4]));
        h.forget(1);
        assert_eq!([1, 2, 3, 4].map(|n| h.next_use(FileKey(n))), [None, None, Some(0), Some(1)]);
    }

    #[test]
    fn forgetting_a_stream_costs_what_its_own_order_is_long() {
        let mut h = Hints::default();
        h.announce(1, (0..1_000_000).map(FileKey).collect());
        let start = std::time::Instant::now();
        // (Over all places this would take minutes.)
        for n in 0..20_000 {
            h.announce(2, order(&[2_000_000 + n]));
        }
        assert!(start.elapsed() < std::time::Duration::from_secs(5), "{:?}", start.elapsed());
    }

    #[test]
    fn what_is_upcoming_goes_on_where_it_was_whatever_the_callers_bound() {
        let mut h = Hints::default();
        h.announce(1, order(&[0, 1, 2]));
        h.announce(2, order(&[10, 11, 12]));
        let mut few =
            |most| std::iter::from_fn(|| h.upcoming(Purpose::Fetch)).take(most).map(|f| f.0 % 10).collect::<Vec<_>>();
        assert_eq!((few(2), few(3), few(9)), (vec![0, 0], vec![1, 1, 2], vec![2]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

        /// A place is in the order of its stream, of a file that comes there for the first time,
        /// whatever happens.
        #[test]
        fn places_and_orders_agree(
            ops in proptest::collection::vec((0u8..12, 0u64..4, proptest::collection::vec((0u64..3, 0u64..12), 0..20)), 1..60),
        ) {
            let mut h = Hints::default();
            for (what, stream, files) in ops {
                let files = files.into_iter().map(|(index, n)| FileKey(index << 32 | n));
                match what {
                    0..=4 => h.announce(stream, files.collect()),
                    5..=7 => files.for_each(|f| h.accessed(f)),
                    8 => h.forget(stream),
                    9 => h.epoch_began(|index| u64::from(index) == stream),
                    10 => drop((0..stream).map(|_| h.upcoming(Purpose::Fetch)).collect::<Vec<_>>()),
                    _ => {
                        h.forget_index(stream as u32);
                        let of = |f: &FileKey| u64::from(f.index()) == stream;
                        prop_assert!(!h.places.keys().any(of) && !h.streams.values().any(|s| s.order.iter().any(of)));
                    }
                }
                for (file, (stream, at)) in &h.places {
                    let first = h.streams.get(stream).and_then(|s| s.order.iter().position(|f| f == file));
                    prop_assert_eq!(first, Some(*at as usize));
                }
                for s in h.streams.values() {
                    prop_assert!(s.at as usize <= s.order.len() && s.given.iter().all(|g| *g as usize <= s.order.len()));
                }
            }
        }
    }
}
