//! The terminal of `monarch top`: raw mode and the alternate screen, from [`Taken::take`] until the
//! value is dropped, a panic begins, or Ctrl-Z stops the program.

use super::bars::Look;
use super::model::{Key, Model, Sample};
use super::view::{self, Space};
use crate::job::child::{self, EndSignal, Ended};
use anyhow::{Context, Result};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::{Frame, Terminal};
use std::io::{self, Stdout};
use std::process::ExitCode;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Longest time until a signal or a new sample is seen.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Lines that a page key scrolls by.
const PAGE_LINES: isize = 8;
const TERMINAL: &str = "the terminal cannot be used";

/// Whether the terminal can place text.
pub(super) fn can_draw() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// The terminal while it is taken.
struct Taken {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Taken {
    fn take() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        // A terminal without an alternate screen has text on it. (`Terminal::clear` would ask for
        // the cursor's position, which not every terminal answers.)
        let entered = execute!(io::stdout(), EnterAlternateScreen, cursor::Hide, Clear(ClearType::All));
        let terminal = entered.and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        // Given back when only one of the steps went well, too.
        terminal.map(|terminal| Self { terminal }).inspect_err(|_| give_back())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back as it was. Errors are ignored: the terminal may have gone.
fn give_back() {
    // Without an alternate screen the shell continues in the last line.
    let last = terminal::size().map_or(0, |(_, lines)| lines.saturating_sub(1));
    let _ = execute!(io::stdout(), cursor::MoveTo(0, last), Clear(ClearType::CurrentLine));
    let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
    let _ = terminal::disable_raw_mode();
}

/// Why the screen is left.
enum Left {
    Quit,
    /// To be stopped, and to come back.
    Stop,
}

/// Shows samples until the user quits, or a signal arrives, by which the process then dies.
///
/// # Errors
/// When the terminal cannot be used.
pub(super) fn show(
    model: &mut Model,
    samples: &Receiver<Sample>,
    end_signal: &EndSignal,
    interval: Duration,
) -> Result<ExitCode> {
    let before = std::panic::take_hook();
    // The message of a panic is printed to the terminal as it was.
    std::panic::set_hook(Box::new(move |info| {
        give_back();
        before(info);
    }));
    loop {
        let mut taken = Taken::take().context(TERMINAL)?;
        let left = run(&mut taken, model, samples, end_signal, interval);
        drop(taken);
        if let Some(signal) = end_signal.received() {
            return Ok(child::end_like(Ended::Killed(signal)));
        }
        match left.context(TERMINAL)? {
            Left::Quit => return Ok(ExitCode::SUCCESS),
            // Returns when the shell continues this process.
            Left::Stop => rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TSTP)?,
        }
    }
}

fn run(
    taken: &mut Taken,
    model: &mut Model,
    samples: &Receiver<Sample>,
    end_signal: &EndSignal,
    interval: Duration,
) -> io::Result<Left> {
    let look = Look::of_terminal();
    loop {
        taken.terminal.draw(|frame| draw(frame, model, look, interval))?;
        loop {
            // A signal may interrupt the wait.
            let is_ready = match event::poll(POLL_INTERVAL) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => false,
                ready => ready?,
            };
            if end_signal.received().is_some() {
                return Ok(Left::Quit);
            }
            if is_ready {
                match event::read()? {
                    Event::Key(key) if is_control(key, 'z') => return Ok(Left::Stop),
                    Event::Key(key) if is_control(key, 'c') => return Ok(Left::Quit),
                    Event::Key(key) => match meaning(key) {
                        Some(key) if !model.press(key) => return Ok(Left::Quit),
                        Some(_) => break,
                        None => {}
                    },
                    Event::Resize(..) => break,
                    _ => {}
                }
            }
            if let Ok(sample) = samples.try_recv() {
                model.take(sample);
                break;
            }
        }
    }
}

/// Draws everything, and notes what part of it is shown.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model, look: Look, interval: Duration) {
    let area = frame.area();
    let (columns, height) = (usize::from(area.width), usize::from(area.height));
    let view = model.view();
    let bar = |text: String| Line::styled(format!("{text:<columns$}"), Style::new().add_modifier(Modifier::REVERSED));
    let lines = view::body(&view, look, Space::of_screen(columns, height));
    let window = height.saturating_sub(2);
    let scroll = view.scroll.fit(lines.lines.len(), window, lines.selected);
    let row = |at: usize| Rect { y: area.y + at as u16, height: 1, ..area };
    if height > 0 {
        frame.render_widget(bar(view::head(&view, interval)), row(0));
    }
    for (at, line) in lines.lines.into_iter().skip(scroll.above).take(window).enumerate() {
        let is_cut = line.width() > columns;
        frame.render_widget(line, row(at + 1));
        if is_cut && columns > 0 {
            let mark = if look.has_utf8 { "…" } else { ">" };
            frame.render_widget(Line::raw(mark), Rect { x: area.right() - 1, width: 1, ..row(at + 1) });
        }
    }
    if height > 1 {
        frame.render_widget(bar(view::foot(&view, columns)), row(height - 1));
    }
    model.set_scroll(scroll);
}

/// Whether it is this letter with Ctrl: raw mode delivers as a key what is a signal otherwise.
fn is_control(key: KeyEvent, letter: char) -> bool {
    let is_letter = key.code == KeyCode::Char(letter) && key.modifiers.contains(KeyModifiers::CONTROL);
    is_letter && key.kind == KeyEventKind::Press
}

fn meaning(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release || key.modifiers.contains(KeyModifiers::CONTROL) {
        return None;
    }
    Some(match key.code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('p' | 'P' | ' ') => Key::Pause,
        KeyCode::Char('s' | 'S') => Key::Sort,
        KeyCode::Char('r' | 'R') => Key::Reverse,
        KeyCode::Down | KeyCode::Char('j') => Key::Select(1),
        KeyCode::Up | KeyCode::Char('k') => Key::Select(-1),
        KeyCode::Tab | KeyCode::Char('a' | 'A') => Key::Agent,
        KeyCode::PageDown => Key::Scroll(PAGE_LINES),
        KeyCode::PageUp => Key::Scroll(-PAGE_LINES),
        KeyCode::Char('?' | 'h' | 'H') => Key::Help,
        _ => return None,
    })
}
