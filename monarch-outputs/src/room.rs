//! Space in the tier for staged files: what creators may take, what open files grow by, clean
//! copies that make room.

use crate::admission::{Admission, BYTES_AHEAD, DiskInodes};
use crate::load::CleanCopy;
use crate::staging::StagingDir;
use monarch_abi::outputs::FIRST_RESERVATION;
use monarch_abi::outputs::names::{Link, Staged};
use monarch_storage::tier::Reservation;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files beyond this size get space allocated ahead of their writer.
const AHEAD_FROM_BYTES: u64 = 4 << 20;
/// How far ahead, at most.
const MAX_AHEAD_BYTES: u64 = 64 << 20;

/// Reserves bytes of the tier's ledger.
pub type Reserve = Arc<dyn Fn(u64) -> Option<Reservation> + Send + Sync>;
/// Makes the tier drop copies of data for so many bytes; whether it could.
pub type MakeRoom = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// The tier's side.
#[derive(Clone)]
pub struct TierSpace {
    /// Reserves bytes of its ledger.
    pub reserve: Reserve,
    /// Makes room for bytes.
    pub make_room: MakeRoom,
}

impl std::fmt::Debug for TierSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TierSpace").finish_non_exhaustive()
    }
}

/// A staged file and the bytes that are reserved for it.
#[derive(Debug)]
struct Charge {
    staged: Staged,
    size: u64,
    held: Vec<Reservation>,
    allocated: u64,
    is_open: bool,
}

impl Charge {
    fn bytes(&self) -> u64 {
        self.held.iter().map(Reservation::bytes).sum()
    }
}

#[derive(Debug, Default)]
struct Books {
    files: HashMap<u64, Charge>,
    /// For creators: what they have taken of it is assigned to files when their records are read.
    room: Vec<Reservation>,
    clean: VecDeque<CleanCopy>,
    clean_names: HashMap<Vec<u8>, u64>,
    admission: Admission,
    pending_bytes: u64,
    clean_bytes: u64,
}

/// The space of one output root.
#[derive(Debug)]
pub struct Room {
    staging: Arc<StagingDir>,
    tier: TierSpace,
    /// Most bytes of files that are not published.
    max_pending: AtomicU64,
    books: Mutex<Books>,
}

fn sum(held: &[Reservation]) -> u64 {
    held.iter().map(Reservation::bytes).sum()
}

impl Room {
    /// The space of a root, of which files and clean copies exist already.
    #[must_use]
    pub fn new(
        staging: Arc<StagingDir>,
        tier: TierSpace,
        max_pending: Option<u64>,
        files: impl Iterator<Item = Staged>,
        clean: Vec<CleanCopy>,
    ) -> Self {
        let max_pending = AtomicU64::new(max_pending.unwrap_or(u64::MAX));
        let room = Self { staging, tier, max_pending, books: Mutex::default() };
        // What an earlier agent had reserved is reserved no more.
        room.staging.state().room.store(0, Ordering::Release);
        files.for_each(|file| room.created(file));
        for copy in clean {
            room.created(copy.clean.file);
            room.published(copy);
        }
        // Before the first process looks: its file would go through.
        room.fill();
        room
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A staged file was created: its first bytes come out of the room.
    pub fn created(&self, staged: Staged) {
        let mut books = self.lock();
        let taken = sum(&books.room).saturating_sub(self.staging.state().room.load(Ordering::Acquire));
        let held = if taken >= FIRST_RESERVATION {
            split(&mut books.room, FIRST_RESERVATION).into_iter().collect()
        } else {
            (self.tier.reserve)(FIRST_RESERVATION).into_iter().collect()
        };
        let charge = Charge { staged, size: 0, held, allocated: 0, is_open: true };
        books.files.insert(staged.id, charge);
    }

    /// A staged file was removed.
    pub fn removed(&self, id: u64) {
        let mut books = self.lock();
        if let Some(charge) = books.files.remove(&id) {
            books.pending_bytes = books.pending_bytes.saturating_sub(charge.size);
        }
    }

    /// A staged file was published, and is kept as a clean copy.
    pub fn published(&self, copy: CleanCopy) {
        let mut books = self.lock();
        let size = copy.clean.size;
        if let Some(charge) = books.files.get_mut(&copy.clean.file.id) {
            charge.is_open = false;
            let before = std::mem::replace(&mut charge.size, 0);
            books.pending_bytes = books.pending_bytes.saturating_sub(before);
        }
        books.clean_bytes += size;
        books.clean_names.insert(copy.name.clone(), copy.clean.file.id);
        books.clean.push_back(copy);
    }

    /// The job has created a file of this name: a clean copy of it is not needed.
    pub fn replaced(&self, name: &[u8]) {
        let mut books = self.lock();
        let Some(id) = books.clean_names.remove(name) else { return };
        let Some(at) = books.clean.iter().position(|copy| copy.clean.file.id == id) else { return };
        let Some(copy) = books.clean.remove(at) else { return };
        books.clean_bytes = books.clean_bytes.saturating_sub(copy.clean.size);
        drop(books);
        self.staging.remove_data(&copy.clean.file);
        self.removed(id);
    }

    /// Bytes of files that are not published.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.lock().pending_bytes
    }

    /// Bytes of clean copies.
    #[must_use]
    pub fn clean_bytes(&self) -> u64 {
        self.lock().clean_bytes
    }

    /// Bytes of a file when it was looked at last.
    #[must_use]
    pub fn size_of(&self, id: u64) -> u64 {
        self.lock().files.get(&id).map_or(0, |charge| charge.size)
    }

    /// Looks at files that grow, and fills the room. `open`: staged files that are open. Whether
    /// any is, or creators wait for room.
    pub fn tick(&self, open: &HashSet<u64>) -> bool {
        let due: Vec<(Staged, bool)> = {
            let mut books = self.lock();
            let mut due = Vec::new();
            for (id, charge) in &mut books.files {
                let is_open = open.contains(id);
                // Once more when it was closed.
                if is_open || charge.is_open {
                    due.push((charge.staged, is_open));
                }
                charge.is_open = is_open;
            }
            due
        };
        for (staged, is_open) in due {
            self.observe(&staged, is_open);
        }
        self.fill();
        !open.is_empty() || self.staging.state().wanted_room.load(Ordering::Acquire) != 0
    }

    /// A staged file is about to be copied: its size is final, or it is copied again.
    pub fn closed(&self, staged: &Staged) {
        if let Some(charge) = self.lock().files.get_mut(&staged.id) {
            charge.is_open = false;
        }
        self.observe(staged, false);
    }

    fn observe(&self, staged: &Staged, is_open: bool) {
        let Ok(st) = self.staging.stat_data(staged) else { return };
        let (size, blocks) = (st.st_size as u64, st.st_blocks as u64 * 512);
        let ahead = match (is_open, size) {
            (false, _) => 0,
            (true, AHEAD_FROM_BYTES..) => (size / 2).min(MAX_AHEAD_BYTES),
            (true, _) => FIRST_RESERVATION,
        };
        let (mut want, allocated) = {
            let mut books = self.lock();
            if !is_open {
                books.admission.closed(size);
            }
            let Some(charge) = books.files.get_mut(&staged.id) else { return };
            let before = std::mem::replace(&mut charge.size, size);
            let want = blocks.max(size.min(blocks + ahead) + ahead);
            let (have, allocated) = (charge.bytes(), charge.allocated);
            books.pending_bytes = (books.pending_bytes + size).saturating_sub(before);
            (want.saturating_sub(have), allocated)
        };
        if want == 0 {
            if !is_open {
                self.shrink(staged.id, blocks);
            }
            return;
        }
        // In steps that are worth it.
        want = want.max(ahead / 2);
        let Some(reservation) = self.reserve(want) else { return };
        if let Some(charge) = self.lock().files.get_mut(&staged.id) {
            charge.held.push(reservation);
        }
        if is_open && size >= AHEAD_FROM_BYTES && allocated < size + ahead / 2 {
            let from = allocated.max(size);
            if self.staging.allocate(staged, from, size + ahead - from).is_ok()
                && let Some(charge) = self.lock().files.get_mut(&staged.id)
            {
                charge.allocated = size + ahead;
            }
        }
    }

    /// A closed file gives back what it does not need.
    fn shrink(&self, id: u64, blocks: u64) {
        let mut books = self.lock();
        let Some(charge) = books.files.get_mut(&id) else { return };
        let excess = charge.bytes().saturating_sub(blocks.next_multiple_of(4096));
        if excess > 0 {
            drop(split(&mut charge.held, excess));
        }
    }

    /// Reserves bytes; clean copies and copies of data make room.
    fn reserve(&self, bytes: u64) -> Option<Reservation> {
        loop {
            if let Some(reservation) = (self.tier.reserve)(bytes) {
                return Some(reservation);
            }
            if !self.evict_one() {
                break;
            }
        }
        (self.tier.make_room)(bytes).then(|| (self.tier.reserve)(bytes)).flatten()
    }

    /// Drops the oldest clean copy; whether there was one.
    pub fn evict_one(&self) -> bool {
        let Some(copy) = ({
            let mut books = self.lock();
            let copy = books.clean.pop_front();
            if let Some(copy) = &copy {
                if books.clean_names.get(&copy.name) == Some(&copy.clean.file.id) {
                    books.clean_names.remove(&copy.name);
                }
                books.clean_bytes = books.clean_bytes.saturating_sub(copy.clean.size);
            }
            copy
        }) else {
            return false;
        };
        if let Ok(_lock) = self.staging.lock_journal() {
            let tree = self.staging.tree();
            let text = tree.read(&copy.name).ok().flatten().unwrap_or_default();
            if matches!(Link::parse(&text), Some(Link::Clean(clean)) if clean.file.id == copy.clean.file.id) {
                let _ = tree.remove(&copy.name);
            }
            self.staging.remove_data(&copy.clean.file);
        }
        self.removed(copy.clean.file.id);
        true
    }

    /// Sets the bound of bytes that are not published.
    pub fn set_max_pending(&self, max_pending: Option<u64>) {
        self.max_pending.store(max_pending.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Bytes of room that creators may find: [`FIRST_RESERVATION`] for each file that may be
    /// staged.
    fn admissible(&self, wanted: u64) -> u64 {
        let (mut files, expected) = {
            let books = self.lock();
            let left = self.max_pending.load(Ordering::Relaxed).saturating_sub(books.pending_bytes);
            let free = self.staging.disk_space().map_or(u64::MAX, |disk| disk.for_files());
            (books.admission.files(left, free, books.pending_bytes == 0), books.admission.expected_bytes())
        };
        files = files.min(self.disk_inodes().for_files());
        // What is free in the tier serves all of them; what has to be dropped for it, two.
        if files > 0 && (self.tier.reserve)(files.saturating_mul(expected)).is_none() {
            files = (1..=files.min(2)).rev().find(|files| self.reserve(files * expected).is_some()).unwrap_or(0);
        }
        files.saturating_mul(FIRST_RESERVATION).min(BYTES_AHEAD.max(wanted))
    }

    fn disk_inodes(&self) -> DiskInodes {
        let unknown = DiskInodes { free: 0, total: 0 };
        rustix::fs::fstatvfs(self.staging.data())
            .map_or(unknown, |st| DiskInodes { free: st.f_favail, total: st.f_files })
    }

    /// Keeps the room for creators filled, or takes it back where a bound is reached.
    fn fill(&self) {
        let state = self.staging.state();
        let wanted = state.wanted_room.load(Ordering::Acquire);
        let most = self.admissible(wanted);
        let room = state.room.load(Ordering::Acquire);
        if room > most {
            self.withdraw(most);
        }
        // Creators that wait go on without, when nothing is pending before them.
        let answer = || {
            if wanted > 0 {
                self.staging.map().notify_processes();
            }
        };
        if room >= most || (wanted == 0 && room >= most / 2) {
            return answer();
        }
        // Creators take the room without the lock: what is added is reserved before.
        let Some(reservation) = self.reserve(most - room) else { return answer() };
        let bytes = reservation.bytes();
        self.lock().room.push(reservation);
        state.room.fetch_add(bytes, Ordering::AcqRel);
        if wanted > 0 {
            let less = |n: u64| Some(n.saturating_sub(bytes));
            let _ = state.wanted_room.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
            self.staging.map().notify_processes();
        }
    }

    /// Takes back room that creators have not taken, but `most` bytes.
    fn withdraw(&self, most: u64) {
        let mut books = self.lock();
        let room = &self.staging.state().room;
        let before = room.fetch_update(Ordering::AcqRel, Ordering::Acquire, |room| Some(room.min(most)));
        let taken = before.map_or(0, |before| before.saturating_sub(most));
        drop(split(&mut books.room, taken));
    }

    /// Takes back what creators have taken and not used. No staged file is open or pending.
    pub fn settle(&self) {
        let mut books = self.lock();
        let unused = sum(&books.room).saturating_sub(self.staging.state().room.load(Ordering::Acquire));
        if unused > 0 {
            drop(split(&mut books.room, unused));
        }
    }
}

/// Takes bytes out of reservations.
fn split(held: &mut Vec<Reservation>, mut bytes: u64) -> Vec<Reservation> {
    let mut out = Vec::new();
    while bytes > 0 {
        let Some(last) = held.last_mut() else { break };
        if last.bytes() <= bytes {
            bytes -= last.bytes();
            out.extend(held.pop());
        } else {
            out.push(last.split(bytes));
            bytes = 0;
        }
    }
    out
}
