//! Answers held back by a fault rule: for a time, or until the rules are cleared or the mount ends.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::lock::lock;

type Send_ = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    parked: Vec<(Option<Instant>, Send_)>,
    closed: bool,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

/// The stalled answers.
pub(super) struct Stalls(Arc<Inner>);

impl Stalls {
    /// Starts the thread that ends timed stalls.
    pub(super) fn start() -> io::Result<Self> {
        let inner = Arc::new(Inner::default());
        let run = Arc::clone(&inner);
        thread::Builder::new().name("slowfs-stall".into()).spawn(move || run.run())?;
        Ok(Self(inner))
    }

    /// Holds `send` back until the given time, or without end.
    pub(super) fn park(&self, until: Option<Instant>, send: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.0.state);
        if state.closed {
            drop(state);
            return send();
        }
        state.parked.push((until, Box::new(send)));
        drop(state);
        self.0.changed.notify_one();
    }

    /// Sends all answers.
    pub(super) fn release(&self) {
        let parked = std::mem::take(&mut lock(&self.0.state).parked);
        for (_, send) in parked {
            send();
        }
    }

    /// Sends all answers, and from now on every new one at once.
    pub(super) fn close(&self) {
        lock(&self.0.state).closed = true;
        self.release();
    }
}

impl Inner {
    fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            let due: Vec<_> =
                state.parked.extract_if(.., |(until, _)| until.is_some_and(|until| until <= now)).collect();
            if !due.is_empty() {
                drop(state);
                for (_, send) in due {
                    send();
                }
                state = lock(&self.state);
                continue;
            }
            state = match state.parked.iter().filter_map(|(until, _)| *until).min() {
                Some(next) => self.changed.wait_timeout(state, next - now).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
