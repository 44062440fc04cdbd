//! [`ScanQueue`]: directories that a scan has yet to read, and those that other nodes read for it.
//!
//! The threads of this node take directories from the back of the queue. Directories that are in
//! line beyond those are lent to other nodes, from the front, in batches. What comes back is taken
//! in by the threads of this node, which thus do all that concerns the index. A directory has one
//! reader at a time whose listing counts: one that another node does not send is read here.

use super::listed::Listed;
use super::read_dir::DirScan;
use monarch_abi::index::Record;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread without other work waits at least for a directory that was lent before it
/// reads the directory itself.
const MIN_LENT_PATIENCE: Duration = Duration::from_secs(2);
/// The same, in multiples of the longest time that one which came took.
const PATIENCE_FACTOR: u32 = 3;
/// How often threads without work look again while directories are lent.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// Listings of other directories that are too many for a node that has sent no fitting one.
const MAX_STRANGE_LISTINGS: u32 = 3;

/// A directory that is to be read: its place in the tree, its path below the root, and what its
/// parent's listing says of it.
#[derive(Clone, Debug)]
pub(super) struct Todo {
    pub(super) at: u32,
    pub(super) path: Vec<u8>,
    pub(super) record: Record,
    /// (uid, gid); `None` where the kernel is to be asked.
    pub(super) owner: Option<u64>,
}

/// What is known of a node that helps.
#[derive(Debug, Default)]
pub(super) struct Helper {
    fitting: AtomicU32,
    strange: AtomicU32,
}

impl Helper {
    /// Notes whether a listing of this node was of the directory that this node means.
    fn note(&self, fits: bool) {
        let of = if fits { &self.fitting } else { &self.strange };
        of.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it sees the same file system, as far as its listings tell.
    pub(super) fn is_fit(&self) -> bool {
        self.fitting.load(Ordering::Relaxed) > 0 || self.strange.load(Ordering::Relaxed) < MAX_STRANGE_LISTINGS
    }
}

/// The next task of a thread of this node.
pub(super) enum Task {
    /// Read this directory.
    Read(Todo),
    /// Take in the listing of a directory that another node has read.
    TakeIn(Todo, Box<Listed>),
}

#[derive(Default)]
struct State {
    todo: VecDeque<Todo>,
    /// Directories that this node alone reads: another one has left them out, or sent something
    /// else.
    own: Vec<Todo>,
    /// Tasks that threads of this node have taken.
    busy: usize,
    lent: HashMap<u32, (Todo, Instant)>,
    came: Vec<(Todo, Box<Listed>)>,
    /// The longest time that a directory which came was lent.
    slowest: Duration,
    /// Threads that lend.
    lenders: usize,
    dirs: Vec<DirScan>,
    is_closed: bool,
}

/// Directories that are to be read. It is shared with threads that wait for other nodes, which may
/// outlive the scan: then it is closed.
pub(super) struct ScanQueue {
    state: Mutex<State>,
    /// For the threads of this node, and those that look for its end.
    changed: Condvar,
    /// For those that lend: there is more than this node takes next.
    spare: Condvar,
    /// Threads of this node.
    threads: usize,
}

impl ScanQueue {
    /// A queue of the root alone, for this number of threads.
    pub(super) fn new(root: Todo, threads: usize) -> Self {
        let state = State { todo: VecDeque::from([root]), dirs: vec![DirScan::default()], ..State::default() };
        Self { state: Mutex::new(state), changed: Condvar::new(), spare: Condvar::new(), threads }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes as many threads that lend as have something to lend now.
    fn wake_lenders(&self, state: &State) {
        let spare = state.todo.len().saturating_sub(self.threads);
        (0..spare.min(state.lenders)).for_each(|_| self.spare.notify_one());
    }

    /// The next task; `None` when all directories have been read. While `is_cancelled`, no thread
    /// waits for other nodes.
    pub(super) fn next(&self, is_cancelled: impl Fn() -> bool) -> Option<Task> {
        let mut state = self.state();
        loop {
            if let Some((todo, listed)) = state.came.pop() {
                state.busy += 1;
                return Some(Task::TakeIn(todo, listed));
            }
            if let Some(todo) = state.own.pop().or_else(|| state.todo.pop_back()) {
                state.busy += 1;
                return Some(Task::Read(todo));
            }
            let patience = MIN_LENT_PATIENCE.max(state.slowest * PATIENCE_FACTOR);
            let oldest = state.lent.values().map(|&(ref todo, since)| (since, todo.at)).min();
            match oldest {
                Some((since, at)) if is_cancelled() || since.elapsed() >= patience => {
                    let late = state.lent.remove(&at);
                    state.todo.extend(late.map(|(todo, _)| todo));
                }
                Some(_) => {
                    let woken = self.changed.wait_timeout(state, LOOK_PERIOD);
                    state = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
                None if state.busy == 0 => {
                    state.is_closed = true;
                    self.changed.notify_all();
                    self.spare.notify_all();
                    return None;
                }
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Takes a directory as read: `queue` puts the directories in it into the tree, and gives those
    /// that are to be read.
    pub(super) fn done(
        &self,
        at: u32,
        mut dir: DirScan,
        queue: impl FnOnce(&mut DirScan, &mut Vec<DirScan>) -> Vec<Todo>,
    ) {
        let mut state = self.state();
        let found = queue(&mut dir, &mut state.dirs);
        if !found.is_empty() {
            state.todo.extend(found);
            self.wake_lenders(&state);
        }
        if let Some(slot) = state.dirs.get_mut(at as usize) {
            *slot = dir;
        }
        state.busy -= 1;
        drop(state);
        self.changed.notify_all();
    }

    /// All directories, when [`ScanQueue::next`] has said that they have been read.
    pub(super) fn take_dirs(&self) -> Vec<DirScan> {
        std::mem::take(&mut self.state().dirs)
    }

    /// Notes that one more thread lends.
    pub(super) fn add_lender(&self) {
        self.state().lenders += 1;
    }

    /// Lends up to `most` directories at the front of the queue, once there are more than the
    /// threads of this node take next; `None` when the scan is over.
    pub(super) fn lend(&self, most: usize) -> Option<Vec<Todo>> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            let spare = state.todo.len().saturating_sub(self.threads);
            if spare > 0 {
                let share = spare / (2 * (self.threads + state.lenders));
                let batch: Vec<Todo> = state.todo.drain(..share.clamp(1, most)).collect();
                let now = Instant::now();
                state.lent.extend(batch.iter().map(|todo| (todo.at, (todo.clone(), now))));
                return Some(batch);
            }
            state = self.spare.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes back a batch that was lent, with the listings that have come. Directories without one
    /// are read by this node, unless it has done so meanwhile; those of which none has come may be
    /// lent again.
    pub(super) fn give_back(&self, batch: &[Todo], listings: Vec<Option<Listed>>, helper: &Arc<Helper>) {
        let mut state = self.state();
        let mut listings = listings.into_iter();
        for lent in batch {
            let answer = listings.next();
            let Some((todo, since)) = state.lent.remove(&lent.at) else { continue };
            match answer {
                Some(Some(listed)) => {
                    state.slowest = state.slowest.max(since.elapsed());
                    let fits = listed.is_of(&todo.record, todo.owner);
                    helper.note(fits);
                    match fits {
                        true => state.came.push((todo, Box::new(listed))),
                        false => state.own.push(todo),
                    }
                }
                Some(None) => state.own.push(todo),
                None => state.todo.push_back(todo),
            }
        }
        self.wake_lenders(&state);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the scan is over, for `most` at most; whether it is.
    pub(super) fn is_over_within(&self, most: Duration) -> bool {
        let until = Instant::now() + most;
        let mut state = self.state();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.is_closed || left.is_zero() {
                return state.is_closed;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn todo(at: u32) -> Todo {
        Todo { at, path: vec![b'd'], record: Record::default(), owner: None }
    }

    /// A queue of `n` directories, which one thread of this node reads.
    fn queue(n: u32) -> ScanQueue {
        let queue = ScanQueue::new(todo(0), 1);
        assert!(matches!(queue.next(|| false), Some(Task::Read(todo)) if todo.at == 0));
        queue.done(0, DirScan::default(), |_, dirs| {
            dirs.extend((1..n).map(|_| DirScan::default()));
            (1..n).map(todo).collect()
        });
        queue
    }

    fn read_here(queue: &ScanQueue, is_cancelled: bool) -> Vec<u32> {
        let mut read = Vec::new();
        while let Some(task) = queue.next(|| is_cancelled) {
            let (Task::Read(todo) | Task::TakeIn(todo, ..)) = task;
            read.push(todo.at);
            queue.done(todo.at, DirScan::default(), |_, _| Vec::new());
        }
        read
    }

    #[test]
    fn directories_that_were_lent_and_did_not_come_are_read_here_once() {
        let queue = queue(10);
        let (first, second) = (queue.lend(32).unwrap(), queue.lend(32).unwrap());
        assert!(first.iter().chain(&second).all(|todo| todo.at < 9), "the last is this node's");
        queue.give_back(&first, Vec::new(), &Arc::default());
        // The second batch never comes back.
        let mut read = read_here(&queue, true);
        read.sort_unstable();
        assert_eq!(read, (1..10).collect::<Vec<_>>());
        // What comes too late is dropped, and no more is lent.
        queue.give_back(&second, Vec::new(), &Arc::default());
        assert!(queue.lend(32).is_none() && queue.is_over_within(Duration::ZERO));
        assert!(queue.next(|| false).is_none());
    }

    /// It was read there in vain: no other node is to do the same.
    #[test]
    fn a_directory_that_a_node_leaves_out_is_not_lent_again() {
        let queue = queue(4);
        let lent = queue.lend(32).unwrap();
        queue.give_back(&lent, vec![None], &Arc::default());
        let mut again = queue.lend(32).unwrap();
        assert!(again.iter().all(|todo| todo.at != lent[0].at));
        // What a node did not answer at all is.
        queue.give_back(&again, Vec::new(), &Arc::default());
        again = queue.lend(32).unwrap();
        assert_eq!(again.len(), 1);
        assert!(matches!(queue.next(|| false), Some(Task::Read(todo)) if todo.at == lent[0].at));
    }

    #[test]
    fn the_last_directories_are_not_waited_for_without_end() {
        let queue = queue(3);
        let lent = queue.lend(32).unwrap();
        assert_eq!(lent.len(), 1);
        let mut read = read_here(&queue, false);
        read.sort_unstable();
        assert_eq!(read, [1, 2]);
    }

    #[test]
    fn a_node_that_sees_something_else_is_not_asked_for_long() {
        let helper = Helper::default();
        (0..MAX_STRANGE_LISTINGS - 1).for_each(|_| helper.note(false));
        assert!(helper.is_fit());
        helper.note(false);
        assert!(!helper.is_fit());
        // A directory that changes meanwhile says nothing of its node.
        let helper = Helper::default();
        helper.note(true);
        (0..9).for_each(|_| helper.note(false));
        assert!(helper.is_fit());
    }
}
