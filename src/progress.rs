//! Progress of long work, for people: nothing is shown when standard error is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use monarch_core::index::ScanProgress;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the figures are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Does some work that counts entries, and shows how far it is.
pub(crate) fn while_scanning<T>(what: &str, work: impl FnOnce(&ScanProgress) -> T) -> T {
    let (figures, done) = (ScanProgress::default(), AtomicBool::new(false));
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}: {human_pos} entries, {per_sec}, {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                bar.set_position(figures.entries.load(Ordering::Relaxed));
                bar.tick();
                std::thread::park_timeout(TICK);
            }
            bar.finish_and_clear();
        });
        let out = work(&figures);
        done.store(true, Ordering::Relaxed);
        out
    })
}
