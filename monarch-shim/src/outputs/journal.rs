//! The journal of an output root: one process of the node at a time changes the overlay and appends
//! what it did.

use super::answer::GONE;
use super::as_agent::open_as_agent;
use super::began;
use super::kernel::{self, Errno, SignalsBlocked};
use super::limited;
use super::order;
use super::roots::Root;
use super::spare;
use core::cell::Cell;
use core::sync::atomic::{AtomicI32, Ordering};
use monarch_abi::outputs::record::{self, Header, Op};
use monarch_abi::outputs::state::{closed, flag};
use monarch_abi::scratch::{BLOCK_BYTES, Scratch};
use monarch_guest::sys::{self, Fd};

/// The journal, locked. No signal handler of this thread runs meanwhile: it might want the lock.
pub struct Journal<'r> {
    root: &'r Root,
    file: Fd,
    /// The last entry that was appended, or 0.
    entry: Cell<u64>,
    /// Bytes of the file, where this process may not make it longer; 0: it may.
    mapped_to: u64,
    /// Always there, until the lock is given back.
    signals: Option<SignalsBlocked>,
}

/// What a record says beside its texts.
#[derive(Clone, Copy, Default)]
pub struct About {
    /// The staged file, or 0.
    pub id: u64,
    /// Bits of [`record::flag`].
    pub flags: u16,
    /// What the PFS had at the name: [`monarch_abi::outputs::found`].
    pub found: u64,
}

/// How often [`Journal::lock_soon`] tries, a millisecond apart.
const TRIES: usize = 30;
/// How often a process that waits for the lock looks at once, and then [`SHORT_PAUSE_US`] apart:
/// others hold it for some 20 microseconds. After that the holder may be stopped, and this process
/// takes its signals between two looks.
const QUICK_TRIES: usize = 8;
const SHORT_TRIES: usize = 400;
const SHORT_PAUSE_US: i64 = 50;
const LONG_PAUSE_US: i64 = 2_000;

/// Descriptors of journals that threads of this process have locked, or -1: a child of `fork`
/// closes them, as it would keep the lock if its parent were killed.
static LOCKED: [AtomicI32; 8] = [const { AtomicI32::new(-1) }; 8];

/// In a child of `fork`. (The threads that held the locks are not there.)
pub fn forked() {
    for slot in &LOCKED {
        let fd = slot.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            drop(Fd(fd));
        }
    }
}

fn exchange(from: i32, to: i32) {
    let _ = LOCKED.iter().any(|slot| slot.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok());
}

impl<'r> Journal<'r> {
    /// Waits for the lock. EFBIG: this process may not append to a file of that length.
    pub fn lock(root: &'r Root) -> Result<Self, Errno> {
        let journal = Self::lock_of_any_length(root)?;
        if limited::may_append(root.state().tail.load(Ordering::Acquire)) {
            return Ok(journal);
        }
        Self::with_room(root, journal)
    }

    /// A locked journal with room behind its end; EFBIG where the agent does not make any.
    #[cold]
    #[inline(never)]
    fn with_room(root: &'r Root, mut journal: Self) -> Result<Self, Errno> {
        let began = sys::coarse_ms();
        loop {
            let len = sys::fstat_local(journal.file.0).map_or(0, |st| st.st_size as u64);
            if limited::has_room(root, len) {
                journal.mapped_to = len;
                return Ok(journal);
            }
            drop(journal);
            limited::wait_for_room(root, began)?;
            journal = Self::lock_of_any_length(root)?;
        }
    }

    fn lock_of_any_length(root: &'r Root) -> Result<Self, Errno> {
        Self::lock_by(root, |file, signals| {
            for turn in 0_usize.. {
                if sys::lock(file.0, libc::LOCK_EX | libc::LOCK_NB) {
                    break;
                }
                match turn {
                    0..QUICK_TRIES => sys::pause(),
                    QUICK_TRIES..SHORT_TRIES => sys::sleep_us(SHORT_PAUSE_US),
                    _ => {
                        drop(signals.take());
                        sys::sleep_us(LONG_PAUSE_US);
                        *signals = Some(SignalsBlocked::begin());
                    }
                }
            }
            true
        })
    }

    /// Waits for the lock, but not for long: this thread may have it already. Nothing is appended.
    pub fn lock_soon(root: &'r Root) -> Result<Self, Errno> {
        Self::lock_by(root, |file, _| {
            (0..TRIES).any(|turn| {
                if turn > 0 {
                    order::sleep_up_to(root, root.state().done.load(Ordering::Acquire), 1);
                }
                sys::lock(file.0, libc::LOCK_EX | libc::LOCK_NB)
            })
        })
    }

    fn lock_by(root: &'r Root, take: impl FnOnce(&Fd, &mut Option<SignalsBlocked>) -> bool) -> Result<Self, Errno> {
        let mut signals = Some(SignalsBlocked::begin());
        let mut path = root.journal().ok_or(libc::ENAMETOOLONG)?;
        let path = path.c_str().ok_or(libc::ENAMETOOLONG)?;
        let is_gone = || root.state().closed.load(Ordering::Acquire) == closed::GONE;
        let file = match spare::open_own(path, libc::O_RDWR | libc::O_NOFOLLOW) {
            Err(_) if is_gone() => return Err(GONE),
            Err(libc::EACCES) => {
                let open = || spare::open_own(path, libc::O_RDWR | libc::O_NOFOLLOW);
                open_as_agent(&root.ctx, open).ok_or(libc::EACCES)?
            }
            file => file?,
        };
        if !take(&file, &mut signals) {
            return Err(libc::ENOLCK);
        }
        exchange(-1, file.0);
        let locked = Self { root, file, entry: Cell::new(0), mapped_to: 0, signals };
        // (Its directory was renamed while this process waited.)
        if is_gone() {
            return Err(GONE);
        }
        Ok(locked)
    }

    /// Its descriptor.
    pub const fn fd(&self) -> i32 {
        self.file.0
    }

    fn write(&self, record: &[u8], at: u64) -> Result<(), Errno> {
        match self.mapped_to {
            0 => kernel::write_all_at(self.file.0, record, at),
            len if at.saturating_add(record.len() as u64) <= len => limited::write(self.file.0, record, at),
            _ => Err(libc::EFBIG),
        }
    }

    /// Appends a record.
    pub fn append(&self, op: Op, about: About, a: &[u8], b: &[u8]) -> Result<(), Errno> {
        let state = self.root.state();
        let len = record::len(a.len(), b.len()).ok_or(libc::ENAMETOOLONG)?;
        let mut room = Scratch::take();
        let base = room.bytes().ok_or(libc::ENOMEM)?.as_mut_ptr().cast::<u8>();
        // SAFETY: a block holds a record of any length, and as many bytes of it are written here.
        let out = unsafe {
            base.write_bytes(0, len.min(BLOCK_BYTES));
            core::slice::from_raw_parts_mut(base, len.min(BLOCK_BYTES))
        };
        let seq = state.seq.load(Ordering::Acquire).wrapping_add(1);
        let node_news = state.node_news.load(Ordering::Acquire);
        let began = began::this_process(&self.root.ctx);
        let header = Header {
            seq,
            node_news,
            id: about.id,
            flags: about.flags,
            time_ns: kernel::now_ns(),
            pid: began.pid,
            began_ticks: began.ticks,
            boot: state.boot.load(Ordering::Relaxed),
            found: about.found,
            ..Header::default()
        };
        let record = record::write(out, header, op, a, b).ok_or(libc::ENAMETOOLONG)?;
        let tail = state.tail.load(Ordering::Acquire);
        if let Err(errno) = self.write(record, tail) {
            if errno == libc::EFBIG {
                // (The limit was set since the lock was taken.)
                kernel::forget_signal(libc::SIGXFSZ);
            }
            return Err(errno);
        }
        // A process that is killed between two of these leaves a gap in the numbers, and no number
        // twice.
        state.seq.store(seq, Ordering::Release);
        state.appended(op, about.id, node_news);
        state.tail.store(tail.wrapping_add(record.len() as u64), Ordering::Release);
        if op != Op::Open {
            state.last_entry.store(seq, Ordering::Release);
            self.entry.set(seq);
        }
        self.root.map.notify_agent();
        Ok(())
    }

    /// Writes what was appended to the disk.
    pub fn sync(&self) -> Result<(), Errno> {
        kernel::sync(self.file.0)
    }
}

impl Drop for Journal<'_> {
    fn drop(&mut self) {
        self.root.map.plain_calls.end_entering();
        // At once, not by the close: a child forked meanwhile has the descriptor, too.
        let _ = sys::lock(self.file.0, libc::LOCK_UN);
        exchange(self.file.0, -1);
        drop(self.signals.take());
        // What this call does comes after what other nodes have done.
        if self.entry.get() != 0 && self.root.state().flags.load(Ordering::Acquire) & flag::NODES_ORDER != 0 {
            order::wait_for_order(self.root, self.entry.get());
        }
    }
}
