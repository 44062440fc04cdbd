//! The end of an agent, as its threads see it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Says to the threads of an agent that it ends. Threads that sleep are woken, so that they may
/// sleep long, and what they hold is free when the agent has ended.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    sleepers: Arc<(Mutex<()>, Condvar)>,
}

impl Stop {
    /// Ends the threads.
    pub fn set(&self) {
        let (lock, woken) = &*self.sleepers;
        let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.flag.store(true, Ordering::Relaxed);
        drop(guard);
        woken.notify_all();
    }

    /// Whether the agent ends.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Sleeps for `period`, or until the agent ends: whether it does.
    #[must_use]
    pub fn sleep(&self, period: Duration) -> bool {
        let (lock, woken) = &*self.sleepers;
        let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let awake = woken.wait_timeout_while(guard, period, |()| !self.is_set());
        drop(awake.unwrap_or_else(PoisonError::into_inner));
        self.is_set()
    }

    /// The flag itself, for components that only look at it.
    #[must_use]
    pub const fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_thread_that_sleeps_is_woken_by_the_end() {
        let stop = Stop::default();
        assert!(!stop.sleep(Duration::from_millis(1)));
        let sleeper = {
            let stop = stop.clone();
            std::thread::spawn(move || stop.sleep(Duration::from_secs(60)))
        };
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        stop.set();
        assert!(sleeper.join().unwrap());
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(stop.flag().load(Ordering::Relaxed));
    }
}
