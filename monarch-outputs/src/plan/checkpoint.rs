//! The plan in bytes: a restart goes on from there, without the records that made it.
//!
//! Little-endian numbers of eight bytes; texts with their length before them; lists with their
//! length before them. In front: magic, version, XXH3-64 of all that follows.

use super::claims::ClaimKey;
use super::entry::{Entry, FormerName};
use super::file::{CopyState, LeftName, PlannedFile};
use super::opener::Opener;
use super::place::{Guard, Place};
use super::queue::Queue;
use super::step::{Claim, Dropped};
use super::tables::Tables;
use crate::plan::others::OtherNodes;
use monarch_abi::outputs::names::Staged;
use std::collections::BTreeSet;
use xxhash_rust::xxh3::xxh3_64;

/// First bytes of a checkpoint: magic and version.
const MAGIC: u64 = u64::from_le_bytes(*b"MPLAN\0\0\x01");
/// The same of one that ends with what agents may have put at names and not logged.
const MAGIC_UNLOGGED: u64 = u64::from_le_bytes(*b"MPLAN\0\0\x02");
/// Bytes of the magic before the version.
const MAGIC_BYTES: usize = 7;
/// Where the contents begin.
const HEAD_BYTES: usize = 16;

/// The plan in bytes; `None` while something is being published: what the PFS has is not what the
/// plan says then. `leftovers`: files that the plan has dropped, and whose part files are still
/// there.
pub(super) fn encode(tables: &mut Tables, leftovers: &[Dropped]) -> Option<Vec<u8>> {
    if !tables.queue.is_at_rest() || tables.replay.is_running {
        return None;
    }
    forget_expected(tables);
    let mut out = Writer(Vec::new());
    let queue = &tables.queue;
    out.number(queue.last_seq());
    out.number(u64::from(queue.others().last_news));
    out.list(queue.others().before.iter(), |out, seq| out.number(*seq));
    out.number(tables.max_id);
    out.list(tables.files.values(), |out, file| out.file(file, tables));
    let claims: Vec<_> = tables.claims.all().flat_map(|(name, of)| of.iter().map(move |of| (name, of))).collect();
    out.list(claims.into_iter(), |out, (name, (key, claim))| {
        out.text(name);
        out.key(*key);
        out.claim(claim);
        out.number(tables.expected.of(*key));
    });
    let entries: Vec<_> = queue.pending().collect();
    out.list(entries.into_iter(), |out, (place, entry)| {
        out.place(place);
        out.entry(entry);
        out.number(tables.expected.of(key_of(place, entry)));
    });
    let removals: Vec<_> = queue.removals().collect();
    out.list(removals.into_iter(), |out, (place, id)| {
        out.place(place);
        out.number(id);
    });
    let dropped = tables.dropped.iter().map(|file| (&file.staged, &file.part_dir, &file.name));
    let dropped = dropped.chain(leftovers.iter().map(|file| (&file.staged, &file.part_dir, &file.name)));
    out.list(dropped.collect::<Vec<_>>().into_iter(), |out, (staged, part_dir, name)| {
        out.staged(staged);
        out.text(part_dir);
        out.text(name);
    });
    let unlogged: Vec<_> = tables.unlogged.all().filter(|(name, key, _)| is_lone(tables, name, *key)).collect();
    let magic = if unlogged.is_empty() { MAGIC } else { MAGIC_UNLOGGED };
    if magic == MAGIC_UNLOGGED {
        out.list(unlogged.into_iter(), |out, (name, key, thing)| {
            out.text(name);
            out.key(key);
            out.guard(thing);
        });
    }
    let sum = xxh3_64(&out.0);
    Some([&magic.to_le_bytes()[..], &sum.to_le_bytes(), &out.0].concat())
}

/// The plan that [`encode`] has put into bytes.
pub(super) fn decode(bytes: &[u8]) -> Option<Tables> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let mut head = Reader(head);
    let (magic, sum) = (head.number()?, head.number()?);
    if ![MAGIC, MAGIC_UNLOGGED].contains(&magic) || sum != xxh3_64(rest) {
        return None;
    }
    let mut from = Reader(rest);
    let (last_seq, last_news) = (from.number()?, from.number()? as u32);
    let before: BTreeSet<u64> = from.list(Reader::number)?.into_iter().collect();
    let max_id = from.number()?;
    let queue = Queue::kept(last_seq, OtherNodes { last_news, before });
    let mut tables = Tables { queue, max_id, ..Tables::default() };
    for Kept { file, is_open } in from.list(Reader::file)? {
        let id = file.staged.id;
        if is_open {
            tables.open.insert(id);
        }
        if !file.left.is_empty() {
            tables.leaving.insert(id);
        }
        // What part files have is not known: they are written again.
        for &place in file.turns.iter().chain(&file.place) {
            tables.queue.want_copy(place);
        }
        tables.files.insert(id, file);
    }
    let claims = from.list(|from| Some((from.text()?, from.key()?, from.claim()?, from.number()?)))?;
    for (name, key, claim, found) in claims {
        // (The agent that kept the plan has gone on since.)
        if let Some(thing) = claim.thing() {
            tables.unlogged.add(&name, key, thing);
        }
        tables.claims.set(&name, key, claim);
        tables.expected.set(key, found);
    }
    for (place, entry, found) in from.list(|from| Some((from.place()?, from.entry()?, from.number()?)))? {
        if found != monarch_abi::outputs::found::UNKNOWN {
            tables.expected.set(key_of(place, &entry), found);
        }
        if let Entry::Former(id, former) = &entry
            && let Some(file) = tables.files.get(id)
        {
            tables.unlogged.add(&former.name, (former.bound, 0), Guard::File(file.staged));
        }
        tables.queue.insert(place, entry);
    }
    for (place, id) in from.list(|from| Some((from.place()?, from.number()?)))? {
        tables.queue.add_removal(place, id);
    }
    tables.dropped =
        from.list(|from| Some(Dropped { staged: from.staged()?, part_dir: from.text()?, name: from.text()? }))?;
    if magic == MAGIC_UNLOGGED {
        for (name, key, thing) in from.list(|from| Some((from.text()?, from.key()?, from.guard()?)))? {
            tables.unlogged.add(&name, key, thing);
        }
    }
    from.0.is_empty().then_some(tables)
}

/// Whether bytes are a checkpoint of a version that is not known here.
pub(super) fn is_of_newer_version(bytes: &[u8]) -> bool {
    let newest = MAGIC_UNLOGGED.to_le_bytes();
    bytes.get(..MAGIC_BYTES) == newest.get(..MAGIC_BYTES) && bytes.get(MAGIC_BYTES) > newest.get(MAGIC_BYTES)
}

/// Whether what an earlier agent may have put at a name is not what a claim or an entry says as
/// well, and may matter to a claim.
fn is_lone(tables: &Tables, name: &[u8], key: ClaimKey) -> bool {
    let is_claimed = || tables.claims.at(name, key).and_then(Claim::thing).is_some();
    let is_former = || tables.queue.formers().any(|former| former.name == name && (former.bound, 0) == key);
    tables.claims.has(name) && !is_claimed() && !is_former()
}

/// Forgets what is expected for claims and entries that are no more.
fn forget_expected(tables: &mut Tables) {
    let mut needed: BTreeSet<ClaimKey> = tables.claims.all().flat_map(|(_, of)| of.keys().copied()).collect();
    needed.extend(tables.queue.pending().map(|(place, entry)| key_of(place, entry)));
    tables.expected.retain(|key| needed.contains(&key));
}

/// The claim whose expectation is compared at the turn of an entry.
fn key_of(place: Place, entry: &Entry) -> ClaimKey {
    match entry {
        // The file has left that name.
        Entry::Former(_, former) => (former.bound, 0),
        _ => (place.seq, place.sub),
    }
}

/// A file that was read.
struct Kept {
    file: PlannedFile,
    is_open: bool,
}

/// Flags of a file, by bits.
fn flags(file: &PlannedFile, is_open: bool) -> u64 {
    let all = [
        is_open,
        file.replaces,
        file.supersedes,
        file.partial,
        file.is_covered,
        file.was_published,
        file.owner_changed,
        file.extended_changed,
    ];
    all.iter().enumerate().map(|(bit, is_set)| u64::from(*is_set) << bit).sum()
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text);
    }

    fn list<T>(&mut self, items: impl ExactSizeIterator<Item = T>, each: impl Fn(&mut Self, T)) {
        self.number(items.len() as u64);
        items.for_each(|item| each(self, item));
    }

    fn key(&mut self, key: ClaimKey) {
        self.number(key.0);
        self.number(u64::from(key.1));
    }

    fn place(&mut self, place: Place) {
        self.key((place.seq, place.sub));
    }

    fn staged(&mut self, staged: &Staged) {
        self.text(&staged.name());
    }

    fn guard(&mut self, guard: &Guard) {
        match guard {
            Guard::Nothing => self.number(0),
            Guard::Any => self.number(1),
            Guard::File(staged) => {
                self.number(2);
                self.staged(staged);
            }
            Guard::Symlink(target) => {
                self.number(3);
                self.text(target);
            }
        }
    }

    fn claim(&mut self, claim: &Claim) {
        match claim {
            Claim::Absent => self.number(0),
            Claim::Left => self.number(1),
            Claim::RemovedDir => self.number(2),
            Claim::File(staged) => {
                self.number(3);
                self.staged(staged);
            }
            Claim::Symlink(target) => {
                self.number(4);
                self.text(target);
            }
        }
    }

    fn entry(&mut self, entry: &Entry) {
        match entry {
            Entry::File(id) => {
                self.number(0);
                self.number(*id);
            }
            Entry::Former(id, former) => {
                self.number(1);
                self.number(*id);
                self.text(&former.name);
                self.number(former.bound);
            }
            Entry::Unlink(path, guard, time_ns) => {
                self.number(2);
                self.text(path);
                self.guard(guard);
                self.number(*time_ns);
            }
            Entry::Rmdir(path, time_ns) => {
                self.number(3);
                self.text(path);
                self.number(*time_ns);
            }
            Entry::Symlink(path, target, time_ns) => {
                self.number(4);
                self.text(path);
                self.text(target);
                self.number(*time_ns);
            }
        }
    }

    fn file(&mut self, file: &PlannedFile, tables: &Tables) {
        self.staged(&file.staged);
        self.number(flags(file, tables.open.contains(&file.staged.id)));
        for text in [&file.name, &file.part_dir] {
            self.text(text);
        }
        for number in [file.bound, file.open_until, file.generation, file.opened_ns, file.closed_ns] {
            self.number(number);
        }
        self.list(file.former.iter(), |out, name| out.text(name));
        self.list(file.left.iter(), |out, left| {
            out.number(left.seq);
            out.text(&left.name);
            out.guard(&left.guard);
            out.number(u64::from(left.is_mergeable));
        });
        for places in [file.place.as_slice(), &file.turns, file.removed_at.as_slice()] {
            self.list(places.iter(), |out, place| out.place(*place));
        }
        self.list(file.openers.iter(), |out, opener| {
            for number in [u64::from(opener.pid), u64::from(opener.boot), opener.began_ticks] {
                out.number(number);
            }
        });
    }
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let len = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(text.to_vec())
    }

    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let len = self.number()?;
        (0..len).map(|_| each(self)).collect()
    }

    fn flag(&mut self) -> Option<bool> {
        Some(self.number()? != 0)
    }

    fn key(&mut self) -> Option<ClaimKey> {
        Some((self.number()?, u32::try_from(self.number()?).ok()?))
    }

    fn place(&mut self) -> Option<Place> {
        let (seq, sub) = self.key()?;
        Some(Place { seq, sub })
    }

    fn staged(&mut self) -> Option<Staged> {
        Staged::parse(&self.text()?)
    }

    fn guard(&mut self) -> Option<Guard> {
        Some(match self.number()? {
            0 => Guard::Nothing,
            1 => Guard::Any,
            2 => Guard::File(self.staged()?),
            3 => Guard::Symlink(self.text()?),
            _ => return None,
        })
    }

    fn claim(&mut self) -> Option<Claim> {
        Some(match self.number()? {
            0 => Claim::Absent,
            1 => Claim::Left,
            2 => Claim::RemovedDir,
            3 => Claim::File(self.staged()?),
            4 => Claim::Symlink(self.text()?),
            _ => return None,
        })
    }

    fn entry(&mut self) -> Option<Entry> {
        Some(match self.number()? {
            0 => Entry::File(self.number()?),
            1 => Entry::Former(self.number()?, FormerName { name: self.text()?, bound: self.number()? }),
            2 => Entry::Unlink(self.text()?, self.guard()?, self.number()?),
            3 => Entry::Rmdir(self.text()?, self.number()?),
            4 => Entry::Symlink(self.text()?, self.text()?, self.number()?),
            _ => return None,
        })
    }

    fn left(&mut self) -> Option<LeftName> {
        let (seq, name, guard, is_mergeable) = (self.number()?, self.text()?, self.guard()?, self.flag()?);
        Some(LeftName { seq, name, guard, is_mergeable })
    }

    fn opener(&mut self) -> Option<Opener> {
        let (pid, boot) = (u32::try_from(self.number()?).ok()?, u32::try_from(self.number()?).ok()?);
        Some(Opener { pid, boot, began_ticks: self.number()? })
    }

    fn file(&mut self) -> Option<Kept> {
        let (staged, flags) = (self.staged()?, self.number()?);
        let is_set = |bit: u32| flags >> bit & 1 == 1;
        Some(Kept {
            is_open: is_set(0),
            file: PlannedFile {
                staged,
                name: self.text()?,
                part_dir: self.text()?,
                bound: self.number()?,
                open_until: self.number()?,
                generation: self.number()?,
                opened_ns: self.number()?,
                closed_ns: self.number()?,
                former: self.list(Self::text)?,
                left: self.list(Self::left)?,
                place: self.list(Self::place)?.pop(),
                turns: self.list(Self::place)?,
                removed_at: self.list(Self::place)?.pop(),
                openers: self.list(Self::opener)?,
                copy: CopyState::Waiting,
                in_flight: false,
                begun_bound: 0,
                replaces: is_set(1),
                supersedes: is_set(2),
                partial: is_set(3),
                is_covered: is_set(4),
                was_published: is_set(5),
                owner_changed: is_set(6),
                extended_changed: is_set(7),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Expectation, Planner};
    use monarch_abi::outputs::found;
    use monarch_abi::outputs::record::{Header, Op, Record, flag};

    /// A plan in which everything there may be is.
    fn full() -> Planner {
        let mut planner = Planner::default();
        let of = |id| Staged { id, dev: 1, ino: id + 1000, uid: 2, gid: 3 };
        let about = Header { pid: 7, boot: 8, began_ticks: 9, time_ns: 10, ..Header::default() };
        let mut seq = 0;
        let mut put = |op, id, flags, a: &[u8], b: &[u8]| {
            seq += 1;
            let node_news = u32::from(seq > 6) + u32::from(seq > 9);
            let header = Header { seq, id, flags, node_news, found: found::thing(seq, 1, 1), ..about };
            planner.record(&Record { header, op, a, b });
        };
        put(Op::Open, 1, flag::NEW, b"dir/open", &of(1).name());
        put(Op::Open, 2, flag::NEW | flag::PUBLISHED, b"best", &of(2).name());
        put(Op::Close, 2, 0, b"", b"");
        put(Op::Symlink, 0, 0, b"last", b"best");
        put(Op::Rename, 2, 0, b"best", b"\xff\0odd");
        put(Op::Rename, 1, flag::PUBLISHED, b"dir/open", b"open");
        put(Op::Open, 3, flag::NEW, b"gone", &of(3).name());
        put(Op::Attributes, 3, flag::OWNER | flag::EXTENDED, b"gone", b"");
        put(Op::Close, 3, 0, b"", b"");
        put(Op::Rmdir, 0, 0, b"old", b"");
        put(Op::Unlink, 3, 0, b"gone", b"");
        put(Op::RenameLink, 0, flag::PUBLISHED, b"last", b"newest\0best");
        assert!(!planner.tables.queue.removals().collect::<Vec<_>>().is_empty());
        assert!(planner.pending().any(|(_, entry)| matches!(entry, Entry::Former(..))));
        planner
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let mut planner = full();
        let bytes = planner.checkpoint(&[]).unwrap();
        let mut again = Planner::of_checkpoint(&bytes).unwrap();
        assert_eq!(again.pending().collect::<Vec<_>>(), planner.pending().collect::<Vec<_>>());
        assert_eq!((again.last_seq(), again.max_id()), (planner.last_seq(), planner.max_id()));
        assert_eq!(again.published(), planner.published());
        let files = |planner: &Planner| {
            let mut all: Vec<String> = planner.files().map(|file| format!("{file:?}")).collect();
            all.sort();
            all
        };
        assert_eq!(files(&again), files(&planner));
        let names = |planner: &Planner| {
            let mut all: Vec<_> = planner.names().map(|(name, claim)| (name.to_vec(), claim.clone())).collect();
            all.sort_by(|a, b| a.0.cmp(&b.0));
            all
        };
        assert_eq!(names(&again), names(&planner));
        let lists = |planner: &Planner| {
            let tables = &planner.tables;
            (format!("{:?}", tables.leaving), format!("{:?}", tables.open), format!("{:?}", tables.queue.others()))
        };
        assert_eq!(lists(&again), lists(&planner));
        for (name, of) in planner.tables.claims.all() {
            for key in of.keys() {
                assert_eq!(again.tables.expected.of(*key), planner.tables.expected.of(*key), "{name:?}");
            }
        }
        // The order in which files are written is not that of the plan.
        assert_eq!(again.checkpoint(&[]).unwrap().len(), bytes.len());
        assert_eq!(again.take_copies(9, |_| false).len(), planner.take_copies(9, |_| false).len());
    }

    #[test]
    fn bytes_that_are_cut_or_changed_are_no_plan() {
        let bytes = full().checkpoint(&[]).unwrap();
        for len in 0..bytes.len() {
            assert!(Planner::of_checkpoint(&bytes[..len]).is_none(), "{len} bytes");
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x10;
            assert!(Planner::of_checkpoint(&bytes).is_none(), "byte {at}");
        }
        let longer = [&bytes[..], &[0; 8]].concat();
        assert!(Planner::of_checkpoint(&longer).is_none());
    }

    #[test]
    fn what_is_to_be_dropped_is_dropped_after_a_restart() {
        let mut planner = full();
        let dropped = |id| Dropped {
            staged: Staged { id, dev: 1, ino: id, uid: 0, gid: 0 },
            part_dir: b"dir".to_vec(),
            name: b"name".to_vec(),
        };
        planner.tables.dropped = vec![dropped(50)];
        let mut again = Planner::of_checkpoint(&planner.checkpoint(&[dropped(51)]).unwrap()).unwrap();
        assert_eq!(again.take_dropped(), [dropped(50), dropped(51)]);
    }

    #[test]
    fn what_is_expected_at_a_former_name_is_kept() {
        let mut planner = full();
        let of_former = |planner: &Planner| {
            let (place, entry) = planner.pending().find(|(_, entry)| matches!(entry, Entry::Former(..))).unwrap();
            planner.tables.expected.of(key_of(place, entry))
        };
        let again = Planner::of_checkpoint(&planner.checkpoint(&[]).unwrap()).unwrap();
        assert_eq!(of_former(&again), of_former(&planner));
        assert_ne!(of_former(&again), found::UNKNOWN);
    }

    #[test]
    fn what_earlier_agents_may_have_published_is_kept() {
        let mut planner = Planner::default();
        planner.begin_replay();
        let staged = Staged { id: 1, dev: 1, ino: 1001, uid: 2, gid: 3 };
        let mut put = |seq, op, flags, a: &[u8], b: &[u8]| {
            let header = Header { seq, id: 1, flags, found: found::NOTHING, ..Header::default() };
            planner.record(&Record { header, op, a, b });
        };
        put(1, Op::Open, flag::NEW, b"a", &staged.name());
        put(2, Op::Close, 0, b"", b"");
        put(3, Op::Unlink, flag::PUBLISHED, b"a", b"");
        planner.end_replay();
        let expected = |planner: &Planner| planner.next_step().unwrap().expected;
        assert_eq!(expected(&planner), Expectation { found: found::NOTHING, own: vec![Guard::File(staged)] });
        for _ in 0..2 {
            let again = Planner::of_checkpoint(&planner.checkpoint(&[]).unwrap()).unwrap();
            assert_eq!(expected(&again), expected(&planner));
            planner = again;
        }
        let step = planner.next_step().unwrap();
        planner.begin(&step);
        planner.leaves(&step, found::NOTHING);
        planner.commit(&step);
        let bytes = planner.checkpoint(&[]).unwrap();
        assert_eq!(bytes[..8], MAGIC.to_le_bytes());
    }

    /// The agent gives a file its former name after it has kept the plan, and is killed.
    #[test]
    fn what_may_be_published_under_a_former_name_is_remembered() {
        let mut planner = full();
        let again = Planner::of_checkpoint(&planner.checkpoint(&[]).unwrap()).unwrap();
        let (_, Entry::Former(id, former)) =
            planner.pending().find(|(_, entry)| matches!(entry, Entry::Former(..))).unwrap()
        else {
            unreachable!()
        };
        let file = Guard::File(planner.file(*id).unwrap().staged);
        assert!(again.tables.unlogged.of(&former.name).contains(&file));
    }

    #[test]
    fn a_plan_of_a_newer_version_is_told_from_a_damaged_one() {
        let bytes = full().checkpoint(&[]).unwrap();
        assert!(!Planner::is_newer_checkpoint(&bytes));
        for version in 0..=u8::MAX {
            let other = [&bytes[..MAGIC_BYTES], &[version], &bytes[MAGIC_BYTES + 1..]].concat();
            assert_eq!(Planner::is_newer_checkpoint(&other), version > 2, "{version}");
        }
        for other in [&b""[..], b"MPLAN\0\0", b"NPLAN\0\0\x09"] {
            assert!(!Planner::is_newer_checkpoint(other), "{other:?}");
        }
    }

    #[test]
    fn there_is_none_while_a_step_is_done() {
        let mut planner = Planner::default();
        let header = Header { seq: 1, ..Header::default() };
        planner.record(&Record { header, op: Op::Symlink, a: b"a", b: b"b" });
        let step = planner.next_step().unwrap();
        planner.begin(&step);
        assert!(planner.checkpoint(&[]).is_none());
        planner.fail(step.place);
        assert!(planner.checkpoint(&[]).is_some());
    }
}
