//! The bandwidth that all clients share: a virtual clock that advances by the transfer time of each
//! answer.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock::lock;

/// When the shared link is free again.
#[derive(Default)]
pub(super) struct Pacer(Mutex<Option<Instant>>);

impl Pacer {
    /// Queues a transfer of `bytes` at `rate` bytes per second (0 is unlimited) and returns when
    /// its last byte arrives.
    pub(super) fn due(&self, bytes: u64, rate: u64) -> Instant {
        self.due_from(Instant::now(), bytes, rate)
    }

    fn due_from(&self, now: Instant, bytes: u64, rate: u64) -> Instant {
        if rate == 0 || bytes == 0 {
            return now;
        }
        #[expect(clippy::cast_precision_loss, reason = "a part in 2^53 of a transfer time")]
        let transfer = Duration::try_from_secs_f64(bytes as f64 / rate as f64).unwrap_or(Duration::MAX / 4);
        let mut free = lock(&self.0);
        let end = free.unwrap_or(now).max(now) + transfer;
        *free = Some(end);
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_queue_behind_each_other() {
        let (pacer, now) = (Pacer::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(pacer.due_from(now, 10, 10), now + second);
        assert_eq!(pacer.due_from(now, 20, 10), now + second * 3);
        assert_eq!(pacer.due_from(now + second * 9, 10, 10), now + second * 10, "an idle link saves nothing up");
        assert_eq!(pacer.due_from(now, 10, 0), now);
    }
}
