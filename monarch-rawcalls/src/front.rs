//! Receives notifications, and has them answered.
//!
//! One thread receives. It never waits for a file system or for a lock: what concerns no root it
//! lets the kernel do at once. A change below a root goes to a worker, since it may wait for
//! publications; the number of workers grows with the calls that wait. So a caller that holds a
//! lock of Monarch while it makes a call that is notified (of its own staging directory) goes on
//! whatever the workers wait for.
//!
//! Whatever fails on the way ends in the kernel's own call.

use crate::calls::{self, Call, Kind, Text};
use crate::perform::Directories;
use crate::request::{Path, Request};
use crate::scope::{Scope, Verdict};
use crate::shared::Shared;
use crate::sys::{self, Notification};
use crate::target::{self, Caller, Identity, Restricted};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Most calls that wait for a publication at a time; more wait in the queue.
const MAX_WORKERS: usize = 512;
/// Most workers that wait for work.
const MAX_IDLE_WORKERS: usize = 8;

/// Who makes changes.
pub(crate) trait Performer: Send + Sync + 'static {
    /// What a worker keeps between two changes.
    type Channel: Default;

    /// Makes a change; `None` if it was not made, and the kernel is to make it.
    fn perform(&self, channel: &mut Self::Channel, request: &mut Request, directories: &Directories) -> Option<i64>;
}

/// A change below a root.
#[derive(Debug)]
struct Work {
    notification: Notification,
    call: Call,
    texts: [CString; 2],
    /// Paths of which only the kernel knows where they lead.
    unclear: Vec<Vec<u8>>,
    is_inside: bool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Work>,
    workers: usize,
    idle: usize,
}

/// The receiving end of a filter.
pub(crate) struct Front<P> {
    listener: OwnedFd,
    shared: Shared,
    scope: Scope,
    own: Identity,
    performer: P,
    restricted: Mutex<Restricted>,
    queue: Mutex<Queue>,
    ready: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P: Performer> Front<P> {
    pub(crate) fn new(listener: OwnedFd, shared: Shared, scope: Scope, performer: P) -> io::Result<Self> {
        let own = Caller::own().ok_or(io::ErrorKind::NotFound)?.identity;
        sys::wake_in_turn(listener.as_fd());
        let restricted = if shared.is_restricted() { Restricted::all() } else { Restricted::default() };
        let (restricted, queue) = (Mutex::new(restricted), Mutex::default());
        Ok(Self { listener, shared, scope, own, performer, restricted, queue, ready: Condvar::new() })
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Receives until no process has the filter any more.
    pub(crate) fn run(self: &Arc<Self>) {
        loop {
            let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let events = fds[0].revents();
            if !events.contains(PollFlags::IN) {
                if events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
                    return;
                }
                continue;
            }
            // (An error: the caller was killed, or a signal.)
            let Ok(notification) = sys::receive(self.listener()) else { continue };
            self.shared.received(notification.id);
            match self.look(notification) {
                Some(work) => self.hand_over(work),
                None => self.answer(notification.id, None),
            }
        }
    }

    fn answer(&self, id: u64, result: Option<i64>) {
        // (An error: the caller was killed.)
        let _ = sys::answer(self.listener(), id, result);
    }

    /// Reads the paths of a call; `None` if the kernel is to make it.
    fn look(&self, notification: Notification) -> Option<Work> {
        let call = calls::decode(notification.call, notification.arguments)?;
        let thread = notification.thread;
        if call.kind == Kind::Restrict {
            self.shared.restrict();
            lock(&self.restricted).add(thread);
            return None;
        }
        let mut work = Work {
            notification,
            call,
            texts: [CString::default(), CString::default()],
            unclear: vec![],
            is_inside: false,
        };
        for (n, text) in [call.first, call.second].into_iter().enumerate() {
            let Some(text) = text else { continue };
            work.texts[n] = target::text(thread, text.address)?;
            if text.dir.is_none() {
                continue;
            }
            let path = target::absolute(thread, text, work.texts[n].as_bytes())?;
            match self.scope.verdict(&path) {
                Verdict::Own => return None,
                Verdict::Inside => work.is_inside = true,
                Verdict::Unclear => work.unclear.push(path),
                Verdict::Outside => {}
            }
        }
        (work.is_inside || !work.unclear.is_empty()).then_some(work)
    }

    fn hand_over(self: &Arc<Self>, work: Work) {
        let mut queue = lock(&self.queue);
        let id = work.notification.id;
        queue.waiting.push_back(work);
        if queue.idle < queue.waiting.len() && queue.workers < MAX_WORKERS {
            let front = self.clone();
            let started = std::thread::Builder::new().name("raw-call".to_owned()).spawn(move || front.work());
            match started {
                Ok(_) => queue.workers += 1,
                Err(_) if queue.workers == 0 => {
                    queue.waiting.pop_back();
                    drop(queue);
                    return self.answer(id, None);
                }
                Err(_) => {}
            }
        }
        drop(queue);
        self.ready.notify_one();
    }

    /// Answers calls from the queue.
    fn work(&self) {
        sys::unshare_directories();
        let mut channel = P::Channel::default();
        loop {
            let mut queue = lock(&self.queue);
            let work = loop {
                if let Some(work) = queue.waiting.pop_front() {
                    break work;
                }
                if queue.idle >= MAX_IDLE_WORKERS {
                    queue.workers -= 1;
                    return;
                }
                queue.idle += 1;
                queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            };
            drop(queue);
            let result = self.result(&mut channel, &work);
            self.answer(work.notification.id, result);
        }
    }

    /// Has a change made; `None` if the kernel is to make it.
    fn result(&self, channel: &mut P::Channel, work: &Work) -> Option<i64> {
        let verdicts: Vec<Verdict> = work.unclear.iter().map(|path| self.scope.settled(path)).collect();
        if verdicts.contains(&Verdict::Own) || !work.is_inside && !verdicts.contains(&Verdict::Inside) {
            return None;
        }
        let (thread, call) = (work.notification.thread, work.call);
        let caller = Caller::of(thread)?;
        if caller.identity != self.own || lock(&self.restricted).holds(caller.process) {
            return None;
        }
        let times = target::times(thread, call.times)?;
        let mut directories = [None, None];
        let mut path = |n: usize, text: Option<Text>| {
            let bytes = &work.texts[n];
            let dir = text.and_then(|text| text.dir).filter(|_| bytes.as_bytes().first() != Some(&b'/'));
            if let Some(dir) = dir {
                directories[n] = Some(target::open_directory(thread, dir)?);
            }
            Some(Path { text: bytes.clone(), is_relative: dir.is_some() })
        };
        let (first, second) = (path(0, call.first)?, path(1, call.second)?);
        let mut request = Request {
            id: work.notification.id,
            kind: call.kind,
            numbers: call.numbers,
            times,
            umask: caller.umask,
            is_retry: false,
            first,
            second,
        };
        // All that was read above is of the thread that waits, and of no later one of its number.
        if !sys::is_waiting(self.listener(), work.notification.id) {
            return None;
        }
        self.performer.perform(channel, &mut request, &directories)
    }
}
