//! Lines of text of what `monarch top` shows, for a screen or a table.

use super::bars::{Look, Part};
use super::model::{AgentView, Column, PeerView, RootView, View};
use super::rates::Rates;
use crate::outputs::lines;
use crate::say;
use bytesize::ByteSize;
use monarch_core::agent::protocol::{Epoch, OutputStatus, TierStatus};
use monarch_core::shown::{self, ShowPath};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use std::time::Duration;

/// Epochs of a root where there is space for several.
const MAX_EPOCHS_SHOWN: usize = 4;
/// Shortest and longest bar, in characters.
const BAR_WIDTHS: (usize, usize) = (10, 30);
/// Characters that paths have at least.
const MIN_PATH: usize = 14;
/// Characters of a tier's path from which it is shown.
const MIN_TIER_PATH: usize = 6;
/// Lines and columns from which a screen has space for everything.
const ROOMY_LINES: usize = 24;
const ROOMY_COLUMNS: usize = 96;
/// Characters before a text that has a name.
const NAMED: usize = 16;
/// Longest graph, in characters.
const MAX_GRAPH: usize = 60;

/// The space that lines are made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    /// Characters of a line; `None`: as many as it takes.
    pub(super) columns: Option<usize>,
    /// Whether there is space for blank lines and earlier epochs.
    pub(super) is_roomy: bool,
}

impl Space {
    /// The space of a screen.
    pub(super) const fn of_screen(columns: usize, lines: usize) -> Self {
        Self { columns: Some(columns), is_roomy: lines >= ROOMY_LINES }
    }

    /// Whether all columns have space.
    fn is_wide(self) -> bool {
        self.columns.is_none_or(|columns| columns >= ROOMY_COLUMNS)
    }

    fn bar(self) -> usize {
        self.columns.map_or(BAR_WIDTHS.1, |columns| (columns / 5).clamp(BAR_WIDTHS.0, BAR_WIDTHS.1))
    }

    /// Characters for texts of these widths in a column beside `others` characters.
    fn column(self, texts: impl Iterator<Item = usize>, others: usize) -> usize {
        let longest = texts.max().unwrap_or(0).max(MIN_PATH);
        self.columns.map_or(longest, |columns| longest.min(columns.saturating_sub(others)).max(MIN_PATH))
    }
}

/// Lines, and which of them is selected.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    pub(super) lines: Vec<Line<'static>>,
    pub(super) selected: Option<usize>,
}

impl Lines {
    fn text(&mut self, text: String) {
        self.lines.push(Line::from(text));
    }

    fn quiet(&mut self, text: String) {
        self.lines.push(Line::styled(text, Look::quiet()));
    }

    fn gap(&mut self, space: Space) {
        if space.is_roomy {
            self.lines.push(Line::default());
        }
    }
}

/// Returns everything as plain text.
pub(super) fn table(view: &View<'_>, look: &Look) -> String {
    let lines = body(view, *look, Space { columns: None, is_roomy: true }).lines;
    lines.iter().map(|line| format!("{}\n", line.to_string().trim_end())).collect()
}

/// Returns the line above all others.
pub(super) fn head(view: &View<'_>, interval: Duration) -> String {
    let agents = match (view.agents.len(), view.all) {
        (_, 1) => "1 agent".to_owned(),
        (shown, all) if shown == all => format!("{all} agents"),
        (_, all) => format!("one of {all} agents"),
    };
    let order = if view.is_reversed { ", reversed" } else { "" };
    let pause = if view.is_paused { "  PAUSED" } else { "" };
    let sort = label(view.sort).to_lowercase();
    format!(" monarch top  {agents}, every {interval:?}, roots by {sort}{order}{pause}")
}

/// Returns the line below all others.
pub(super) fn foot(view: &View<'_>, columns: usize) -> String {
    if view.shows_help {
        return " q or ? ends this help".to_owned();
    }
    let all = " q quit  p pause  s sort  r reverse  j/k select  Tab agent  PgUp/PgDn scroll  ? help";
    if all.len() <= columns {
        all.to_owned()
    } else {
        " q quit  p pause  s sort  r reverse  j/k select  ? help".to_owned()
    }
}

/// Returns what stands between head and foot.
pub(super) fn body(view: &View<'_>, look: Look, space: Space) -> Lines {
    let mut out = Lines::default();
    if view.shows_help {
        help(&mut out, look);
        return out;
    }
    for note in &view.notes {
        for part in wrapped(note, space.columns) {
            out.lines.push(Line::styled(part, look.colour(Color::Yellow)));
        }
    }
    for (at, a) in view.agents.iter().enumerate() {
        if at > 0 {
            out.lines.push(Line::default());
        }
        agent(&mut out, a, view.sort, look, space);
    }
    out
}

fn agent(out: &mut Lines, a: &AgentView<'_>, sort: Column, look: Look, space: Space) {
    let s = a.status;
    let up = humantime::format_duration(Duration::from_secs(s.uptime_s as u64));
    let nodes = if s.nodes > 1 { format!(", {} nodes", s.nodes) } else { String::new() };
    let silent = if a.is_silent { ", does not answer" } else { "" };
    let title = format!(
        "agent {}: {}, up {up}{nodes}, policy {}, engine {}, version {}{silent}",
        s.pid,
        say::counted(s.jobs, "job"),
        s.policy,
        s.engine,
        s.version
    );
    out.lines.push(Line::styled(title, Style::new().add_modifier(Modifier::BOLD)));
    out.gap(space);
    roots(out, &a.roots, sort, look, space);
    out.gap(space);
    tiers(out, &s.tiers, look, space);
    out.gap(space);
    traffic(out, a, look, space);
    out.gap(space);
    prefetch(out, a, look, space);
    if !s.outputs.is_empty() {
        out.gap(space);
        outputs(out, &s.outputs, look, space);
    }
    if !a.peers.is_empty() {
        out.gap(space);
        peers(out, &a.peers, look, space);
    }
}

/// The heading of a column.
const fn label(column: Column) -> &'static str {
    match column {
        Column::Path => "PATH",
        Column::Files => "FILES",
        Column::Size => "SIZE",
        Column::Opens => "OPENS/S",
        Column::Local => "LOCAL",
        Column::Pfs => "PFS",
        Column::Waited => "WAITED",
    }
}

/// Characters of a column, the space before it included.
const fn width(column: Column) -> usize {
    match column {
        Column::Path => 0,
        Column::Files => 12,
        Column::Size | Column::Pfs => 11,
        Column::Opens => 9,
        Column::Local | Column::Waited => 9,
    }
}

fn columns(space: Space) -> Vec<Column> {
    let is_shown = |c: &Column| space.is_wide() || !matches!(c, Column::Path | Column::Files | Column::Pfs);
    Column::ALL.into_iter().filter(|c| *c != Column::Path && is_shown(c)).collect()
}

fn cell(r: &RootView<'_>, column: Column) -> String {
    let epoch = r.epoch();
    match column {
        Column::Path => r.path(),
        Column::Files => say::count(r.root.files),
        Column::Size => ByteSize(r.root.bytes).to_string(),
        Column::Opens => r.opens.map_or_else(missing, number),
        Column::Local => epoch.and_then(Epoch::local_percent).unwrap_or_else(missing),
        Column::Pfs => epoch.map_or_else(missing, |e| ByteSize(e.pfs_bytes).to_string()),
        Column::Waited => epoch.map_or_else(missing, |e| format!("{:.1} s", e.wait_s)),
    }
}

fn missing() -> String {
    "-".to_owned()
}

fn roots(out: &mut Lines, roots: &[RootView<'_>], sort: Column, look: Look, space: Space) {
    let columns = columns(space);
    let others = 2 + columns.iter().map(|c| width(*c)).sum::<usize>();
    let paths: Vec<String> = roots.iter().map(RootView::path).collect();
    let path_width = space.column(paths.iter().map(|p| Span::raw(p).width()), others);
    let heading = |column: Column| {
        let style = if column == sort { Style::new().add_modifier(Modifier::UNDERLINED) } else { Look::quiet() };
        let text = label(column);
        let before = width(column).saturating_sub(text.len());
        [Span::raw(" ".repeat(before)), Span::styled(text, style)]
    };
    let mut head = vec![Span::raw("  ")];
    head.extend(heading(Column::Path));
    head.push(Span::raw(" ".repeat(path_width.saturating_sub(label(Column::Path).len()))));
    head.extend(columns.iter().flat_map(|c| heading(*c)));
    out.lines.push(Line::from(head));
    for (r, path) in roots.iter().zip(&paths) {
        let mark = if r.is_selected { "> " } else { "  " };
        let mut row = format!("{mark}{}", padded(&end_of(path, path_width, look), path_width));
        for column in &columns {
            row += &format!("{:>1$}", cell(r, *column), width(*column));
        }
        let style = if r.is_selected { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        if r.is_selected {
            out.selected = Some(out.lines.len());
        }
        out.lines.push(Line::styled(row, style));
        if r.root.state != "ready" {
            let entries = say::count(r.root.entries);
            let text = if r.root.state == "scanning" {
                format!("scanning: {entries} entries")
            } else {
                one_line(&r.root.state)
            };
            out.lines.push(Line::styled(format!("  {text}"), look.colour(Color::Yellow)));
        }
        epochs(out, r, look, space);
        if space.is_roomy {
            r.root.notices().iter().for_each(|notice| out.quiet(format!("  notice: {}", one_line(notice))));
        }
    }
}

fn epochs(out: &mut Lines, r: &RootView<'_>, look: Look, space: Space) {
    let most = if space.is_roomy { MAX_EPOCHS_SHOWN } else { 1 };
    for (e, all) in r.epochs(most) {
        let share = |opens: u64| opens as f64 / all.max(1) as f64;
        let parts =
            [(share(e.local), Part::Copy), (share(e.waited + e.chunked), Part::Wait), (share(e.pfs), Part::Pfs)];
        let mut line = vec![Span::raw("  ")];
        line.extend(look.bar(space.bar(), &parts));
        line.push(Span::raw(format!(" {e}")));
        out.lines.push(Line::from(line));
    }
}

fn tiers(out: &mut Lines, tiers: &[TierStatus], look: Look, space: Space) {
    let bar = space.bar();
    // Share, used, quota; copies where there is space for them.
    let others = 2 + 1 + bar + 7 + 11 + 11 + if space.is_wide() { 12 } else { 0 };
    let names: Vec<String> = tiers.iter().map(|t| one_line(&t.name)).collect();
    let paths: Vec<String> = tiers.iter().map(|t| t.path.shown().to_string()).collect();
    let longest = names.iter().map(|n| Span::raw(n).width()).max().unwrap_or(0);
    let name_width = space.column(paths.iter().map(|p| longest + 1 + Span::raw(p).width()), others);
    let named = |name: &str, path: &str| match name_width.checked_sub(longest + 1) {
        Some(rest) if rest >= MIN_TIER_PATH => format!("{} {}", padded(name, longest), end_of(path, rest, look)),
        _ => end_of(name, name_width, look),
    };
    let copies = |text: &str| if space.is_wide() { format!("{text:>12}") } else { String::new() };
    out.quiet(format!(
        "  {}{:>bar$}{:>8}{:>11}{:>11}{}",
        padded("TIER", name_width),
        "",
        "FULL",
        "USED",
        "QUOTA",
        copies("COPIES")
    ));
    for ((t, name), path) in tiers.iter().zip(&names).zip(&paths) {
        let share = |bytes: u64| bytes as f64 / t.capacity.max(1) as f64;
        let mut line = vec![Span::raw(format!("  {} ", padded(&named(name, path), name_width)))];
        line.extend(look.bar(bar, &[(share(t.used), Part::Copy), (share(t.reserved), Part::Wait)]));
        line.push(Span::raw(format!(
            "{:>5.0} %{:>11}{:>11}{}",
            // Rounded down: 100 % is all.
            (share(t.used) * 100.0).floor(),
            ByteSize(t.used).to_string(),
            ByteSize(t.capacity).to_string(),
            copies(&say::count(t.files))
        )));
        if t.resting {
            line.push(Span::styled("  resting", look.colour(Color::Red)));
        }
        out.lines.push(Line::from(line));
        if space.is_roomy && t.packed.files > 0 {
            let (bytes, stored) = (ByteSize(t.packed.bytes), ByteSize(t.packed.stored));
            out.quiet(format!("  {} of them compressed: {bytes} in {stored}", say::count(t.packed.files)));
        }
    }
}

/// A row of rates.
struct Flow {
    name: &'static str,
    bytes: fn(&Rates) -> f64,
    opens: fn(&Rates) -> f64,
    note: fn(&Rates) -> String,
}

const FLOWS: [Flow; 4] = [
    Flow {
        name: "from the PFS",
        bytes: |r| r.pfs_bytes,
        opens: |r| r.pfs_opens,
        note: |r| format!("{} calls/s", number(r.pfs_calls)),
    },
    Flow { name: "from tiers", bytes: |r| r.tier_bytes, opens: |r| r.tier_opens, note: |_| String::new() },
    Flow { name: "from peers", bytes: |r| r.received_bytes, opens: |r| r.received, note: |_| String::new() },
    Flow { name: "to peers", bytes: |r| r.sent_bytes, opens: |r| r.sent, note: |_| String::new() },
];

fn traffic(out: &mut Lines, a: &AgentView<'_>, look: Look, space: Space) {
    let flows = if a.peers.is_empty() { &FLOWS[..2] } else { &FLOWS[..] };
    out.quiet(format!("  {:<14}{:>13}{:>11}", "TRAFFIC", "BYTES/S", "OPENS/S"));
    for flow in flows {
        let (bytes, opens, note) = match &a.rates {
            Some(r) => (ByteSize((flow.bytes)(r) as u64).to_string(), number((flow.opens)(r)), (flow.note)(r)),
            None => (missing(), missing(), String::new()),
        };
        let mut line = vec![Span::raw(format!("  {:<14}{bytes:>13}{opens:>11}  {note:<14}", flow.name))];
        if let Some(room) = space.columns.filter(|_| space.is_wide()).map(|columns| columns.saturating_sub(58)) {
            let graph = look.graph(room.min(MAX_GRAPH), a.history.iter().map(flow.bytes));
            line.push(Span::styled(graph, look.colour(Color::Cyan)));
        }
        out.lines.push(Line::from(line));
    }
    let waited = |r: &Rates| format!("{:.2} readers at a time, {} opens/s", r.waiting, number(r.waits));
    let is_waiting = a.rates.as_ref().is_some_and(|r| r.waiting > 0.0);
    let waited = a.rates.as_ref().map_or_else(missing, waited);
    let style = if is_waiting { look.colour(Color::Yellow) } else { Style::new() };
    out.lines.push(Line::from(vec![Span::raw(format!("  {:<1$}", "waiting", NAMED - 2)), Span::styled(waited, style)]));
}

fn prefetch(out: &mut Lines, a: &AgentView<'_>, look: Look, space: Space) {
    let l = &a.status.load;
    let for_readers = (l.running + l.remote).saturating_sub(l.ahead);
    let mut text = format!("{} in flight (limit {}), {for_readers} for readers", l.ahead, l.width);
    let queued = l.demands + l.remote_demands;
    if queued > 0 {
        text += &format!(", {queued} queued");
    }
    let again = l.retries + l.paused;
    if again > 0 {
        text += &format!(", {again} to retry");
    }
    if let Some((now, best)) = l.opens_us {
        text += &format!(", opens {} (best {})", latency(now), latency(best));
    }
    let held = if a.status.prefetch.trouble().is_some() { look.colour(Color::Yellow) } else { Style::new() };
    let width = space.columns.map(|columns| columns.saturating_sub(NAMED));
    let name = |name: &str| Span::styled(format!("  {name:<0$}", NAMED - 2), Look::quiet());
    let texts = [("PREFETCH", one_line(&a.waits_for), held), ("", text, Style::new())];
    for (label, text, style) in texts {
        for (at, part) in wrapped(&text, width).into_iter().enumerate() {
            let label = if at == 0 { label } else { "" };
            out.lines.push(Line::from(vec![name(label), Span::styled(part, style)]));
        }
    }
}

fn outputs(out: &mut Lines, outputs: &[OutputStatus], look: Look, space: Space) {
    let width = space.columns.map(|columns| columns.saturating_sub(NAMED));
    let mut label = "OUTPUTS";
    for s in outputs {
        let text = format!("{}: {}", one_line(&s.path.shown().to_string()), lines::summary(s));
        let held = s.held.iter().map(|held| (one_line(&format!("held: {held}")), look.colour(Color::Yellow)));
        for (text, style) in std::iter::once((text, Style::new())).chain(held) {
            for part in wrapped(&text, width) {
                let name = Span::styled(format!("  {:<1$}", std::mem::take(&mut label), NAMED - 2), Look::quiet());
                out.lines.push(Line::from(vec![name, Span::styled(part, style)]));
            }
        }
    }
}

fn peers(out: &mut Lines, peers: &[PeerView<'_>], look: Look, space: Space) {
    let names: Vec<String> = peers.iter().map(|p| one_line(&p.peer.name)).collect();
    let name_width = space.column(names.iter().map(|n| Span::raw(n).width()), 2 + 10 + 13 + 13);
    out.quiet(format!("  {}{:>10}{:>13}{:>13}", padded("NODE", name_width), "STATE", "RECEIVED/S", "SENT/S"));
    for (p, name) in peers.iter().zip(&names) {
        let rate = |of: fn((f64, f64)) -> f64| p.rates.map_or_else(missing, |r| ByteSize(of(r) as u64).to_string());
        let style = if p.peer.state == "up" { Style::new() } else { look.colour(Color::Yellow) };
        out.lines.push(Line::from(vec![
            Span::raw(format!("  {}", padded(&end_of(name, name_width, look), name_width))),
            Span::styled(format!("{:>10}", p.peer.state), style),
            Span::raw(format!("{:>13}{:>13}", rate(|r| r.0), rate(|r| r.1))),
        ]));
    }
}

fn help(out: &mut Lines, look: Look) {
    for (keys, meaning) in [
        ("q, Esc, Ctrl-C", "quit"),
        ("p, space", "pause, and continue"),
        ("s", "sort the roots by the next column"),
        ("r", "reverse the order"),
        ("j, k, arrows", "select a root"),
        ("Tab, a", "one agent after the other, then all"),
        ("PgUp, PgDn", "scroll"),
        ("Ctrl-Z", "stop; `fg` continues"),
        ("?, h", "this help"),
    ] {
        out.text(format!("  {keys:<16}{meaning}"));
    }
    out.lines.push(Line::default());
    let sample = |part, text: &'static str| [Span::raw("  "), look.sample(part), Span::raw(text)];
    let bars = [
        sample(Part::Copy, " served by a copy"),
        sample(Part::Wait, " after a wait, or in chunks"),
        sample(Part::Pfs, " by the PFS"),
    ];
    out.lines.push(Line::from(bars.concat()));
    out.text("  LOCAL, PFS and WAITED are those of the last epoch. Waiting readers: seconds that".to_owned());
    out.text("  readers waited in a second. Limit: files from the PFS at which prefetch waits.".to_owned());
}

/// A number for people: with a decimal below 10.
fn number(n: f64) -> String {
    if n > 0.0 && n < 9.95 { format!("{n:.1}") } else { say::count(n.round() as u64) }
}

fn latency(us: u64) -> String {
    if us < 10_000 { format!("{:.1} ms", us as f64 / 1e3) } else { format!("{} ms", us / 1000) }
}

fn one_line(text: &str) -> String {
    shown::one_line(text).into_owned()
}

/// Breaks a text between words into lines of `width` characters.
fn wrapped(text: &str, width: Option<usize>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line)
                if width
                    .is_none_or(|width| Span::raw(line.as_str()).width() + 1 + Span::raw(word).width() <= width) =>
            {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Fills a text up with spaces.
fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(Span::raw(text).width())))
}

/// Leaves out the beginning of a text that is too long: paths differ at their ends.
fn end_of(text: &str, width: usize, look: Look) -> String {
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let mark = if look.has_utf8 { "…" } else { "..." };
    let mut rest = text;
    while Span::raw(rest).width() + Span::raw(mark).width() > width {
        let mut chars = rest.chars();
        if chars.next().is_none() {
            break;
        }
        rest = chars.as_str();
    }
    format!("{mark}{rest}")
}
