//! Progress of long work on standard error. Without a terminal, staging writes a line every 10 s,
//! and no other progress is shown.

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};
use monarch_core::agent::protocol::Census;
use monarch_core::index::ScanProgress;
use std::cell::Cell;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often bars are redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Does work that counts entries, and shows its progress.
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
                std::thread::park_timeout(REDRAW_INTERVAL);
            }
            bar.finish_and_clear();
        });
        let out = work(&figures);
        done.store(true, Ordering::Relaxed);
        out
    })
}

/// Does work that counts opens, and shows its progress on a terminal.
pub(crate) fn while_counting<T>(quiet: bool, all: u64, work: impl FnOnce(&AtomicU64) -> T) -> T {
    let (opened, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(all) };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {human_pos} of {human_len} opens, {eta} left") {
        bar.set_style(style);
    }
    std::thread::scope(|s| {
        let shown = s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                bar.set_position(opened.load(Ordering::Relaxed));
                std::thread::park_timeout(REDRAW_INTERVAL);
            }
            bar.finish_and_clear();
        });
        let out = work(&opened);
        done.store(true, Ordering::Relaxed);
        shown.thread().unpark();
        out
    })
}

/// Time between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The progress of work that moves bytes.
pub(crate) struct Bar {
    bar: ProgressBar,
    /// Without a terminal: when the last line was written, and the bytes at the first call.
    lines: Option<(Cell<Instant>, Cell<Option<u64>>)>,
    start: Instant,
}

impl Bar {
    pub(crate) fn new(quiet: bool) -> Self {
        let start = Instant::now();
        let terminal = std::io::stderr().is_terminal();
        let lines = (!quiet && !terminal).then(|| (Cell::new(start), Cell::new(None)));
        let bar = if quiet || !terminal { ProgressBar::hidden() } else { ProgressBar::new(0) };
        Self { bar, lines, start }
    }

    fn style(&self, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
    }

    /// Shows a scan with this number of entries so far.
    pub(crate) fn scanning(&self, entries: u64) {
        self.style("{spinner} scanning: {msg} entries, {elapsed}");
        self.bar.set_message(entries.to_string());
        self.bar.tick();
        self.line(|| format!("scanning: {entries} entries"));
    }

    /// Shows that `done` of `all` bytes are done, with a note.
    pub(crate) fn at(&self, done: u64, all: u64, note: &str) {
        self.bar.set_message(note.to_owned());
        if self.bar.length() != Some(all) || self.bar.position() == 0 {
            self.style("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left, {msg}");
            self.bar.set_length(all);
        }
        self.bar.set_position(done);
        self.line(|| {
            let first = self.lines.as_ref().and_then(|(_, first)| first.get()).unwrap_or(done);
            let rate = done.saturating_sub(first) as f64 / self.start.elapsed().as_secs_f64().max(1e-3);
            let left = all.saturating_sub(done) as f64;
            let eta = if rate < 1.0 { "?".to_owned() } else { format!("{:.0} s", left / rate) };
            format!("{} of {}, {}/s, {eta} left, {note}", ByteSize(done), ByteSize(all), ByteSize(rate as u64))
        });
        if let Some((_, first)) = &self.lines
            && first.get().is_none()
        {
            first.set(Some(done));
        }
    }

    /// Shows the progress of staging; `held_up` says why nothing is fetched at present.
    pub(crate) fn staged(&self, c: &Census, held_up: Option<&str>) {
        let done = c.resident.bytes.saturating_add(c.chunks);
        let never = c.no_room.bytes.saturating_add(c.on_tape.bytes).saturating_add(c.bypassed.bytes);
        let wrong = c.failing.files + c.bypassed.files;
        let wrong = if wrong == 0 { String::new() } else { format!(", {wrong} failed") };
        let held_up = held_up.map_or_else(String::new, |why| format!(" ({why})"));
        let note = format!("{} of {} files{wrong}{held_up}", c.resident.files, c.all.files);
        self.at(done, c.all.bytes.saturating_sub(never).max(done), &note);
    }

    /// Writes a line if the last line is [`LINE_INTERVAL`] old.
    fn line(&self, text: impl FnOnce() -> String) {
        if let Some((last, _)) = &self.lines
            && last.get().elapsed() >= LINE_INTERVAL
        {
            last.set(Instant::now());
            crate::say::err(format_args!("{}\n", text()));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
