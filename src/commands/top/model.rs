//! What `monarch top` shows, made of samples and keys: pure, time is handed in.

use super::bottleneck;
use super::rates::{Rates, Step};
use monarch_core::agent::protocol::{Epoch, RootStatus, Status};
use monarch_core::cluster::node::PeerStatus;
use monarch_core::shown::ShowPath;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Rates of each agent that are kept for graphs.
const MAX_HISTORY: usize = 240;
/// How long the end of an agent is shown.
const ENDED_SHOWN: Duration = Duration::from_secs(30);

/// The answers of all agents at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Since any fixed moment.
    pub(super) at: Duration,
    pub(super) agents: Vec<Status>,
    /// Runtime directories of agents that are alive and did not answer.
    pub(super) silent: Vec<PathBuf>,
}

/// The column that roots are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Column {
    #[default]
    Path,
    Files,
    Size,
    Opens,
    Local,
    Pfs,
    Waited,
}

impl Column {
    /// All of them, as they stand.
    pub(super) const ALL: [Self; 7] =
        [Self::Path, Self::Files, Self::Size, Self::Opens, Self::Local, Self::Pfs, Self::Waited];

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|c| *c == self).map_or(0, |at| at + 1);
        Self::ALL.get(at).copied().unwrap_or_default()
    }

    /// Compares two roots: paths from A, figures from the largest.
    fn compare(self, a: &RootView<'_>, b: &RootView<'_>) -> Ordering {
        let figure = |of: fn(&RootView<'_>) -> f64| of(b).total_cmp(&of(a));
        let epoch = |of: fn(&Epoch) -> f64| {
            let of = |r: &RootView<'_>| r.epoch().map_or(0.0, of);
            of(b).total_cmp(&of(a))
        };
        match self {
            Self::Path => Ordering::Equal,
            Self::Files => figure(|r| r.root.files as f64),
            Self::Size => figure(|r| r.root.bytes as f64),
            Self::Opens => figure(|r| r.opens.unwrap_or(0.0)),
            Self::Local => epoch(|e| {
                let (part, whole) = e.local_opens();
                part as f64 / whole.max(1) as f64
            }),
            Self::Pfs => epoch(|e| e.pfs_bytes as f64),
            Self::Waited => epoch(|e| e.wait_s),
        }
        .then_with(|| a.root.path.cmp(&b.root.path))
    }
}

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Pause,
    Sort,
    Reverse,
    /// Selects a root that stands this number of roots further down.
    Select(isize),
    /// Shows one agent after the other, and then all.
    Agent,
    /// Scrolls by this number of lines.
    Scroll(isize),
    Help,
}

/// An agent, as it was last seen.
#[derive(Clone, Debug)]
struct Track {
    at: Duration,
    now: Status,
    before: Option<(Duration, Status)>,
    /// Whether it did not answer the last time.
    is_silent: bool,
    /// The last rates, oldest first.
    history: VecDeque<Rates>,
}

impl Track {
    fn is(&self, s: &Status) -> bool {
        (self.now.pid, &self.now.runtime_dir) == (s.pid, &s.runtime_dir)
    }

    fn step(&self) -> Option<Step<'_>> {
        let (at, before) = self.before.as_ref()?;
        Step::new(before, &self.now, self.at.saturating_sub(*at).as_secs_f64())
    }
}

/// A root of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    pid: u32,
    root: PathBuf,
}

/// The agents, and what the user chose.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    tracks: Vec<Track>,
    /// The agent that ended last, and when.
    ended: Option<(u32, Duration)>,
    at: Duration,
    sort: Column,
    is_reversed: bool,
    is_paused: bool,
    shows_help: bool,
    /// The only agent that is shown.
    agent: Option<u32>,
    selected: Option<Place>,
    scroll: Scroll,
}

/// What part of the lines is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scroll {
    /// Lines above the screen.
    pub(super) above: usize,
    /// Whether the selected line is to be on the screen.
    pub(super) follows: bool,
}

impl Scroll {
    /// Moves as little as needed, for `lines` in a window of `height`.
    pub(super) fn fit(self, lines: usize, height: usize, selected: Option<usize>) -> Self {
        let mut above = self.above;
        if let Some(at) = selected.filter(|_| self.follows) {
            above = above.min(at).max((at + 1).saturating_sub(height));
        }
        Self { above: above.min(lines.saturating_sub(height)), ..self }
    }
}

impl Model {
    /// Whether an agent is shown.
    pub(super) fn has_agents(&self) -> bool {
        !self.tracks.is_empty()
    }

    /// Takes a sample, unless the user has paused.
    pub(super) fn take(&mut self, sample: Sample) {
        if self.is_paused {
            return;
        }
        self.at = sample.at;
        let mut earlier = std::mem::take(&mut self.tracks);
        for now in sample.agents {
            let track = match earlier.iter().position(|t| t.is(&now)) {
                Some(at) => {
                    let old = earlier.swap_remove(at);
                    Track { at: sample.at, now, before: Some((old.at, old.now)), is_silent: false, ..old }
                }
                None => Track { at: sample.at, now, before: None, is_silent: false, history: VecDeque::new() },
            };
            self.tracks.push(track);
        }
        for track in earlier {
            if sample.silent.contains(&track.now.runtime_dir) {
                self.tracks.push(Track { is_silent: true, ..track });
            } else {
                self.ended = Some((track.now.pid, sample.at));
            }
        }
        self.tracks.sort_by_key(|t| t.now.pid);
        for track in self.tracks.iter_mut().filter(|t| !t.is_silent) {
            let Some(rates) = track.step().map(|step| step.rates()) else { continue };
            track.history.push_back(rates);
            if track.history.len() > MAX_HISTORY {
                track.history.pop_front();
            }
        }
        // An agent that has gone is not chosen any more.
        self.agent = self.agent.filter(|pid| self.tracks.iter().any(|t| t.now.pid == *pid));
    }

    /// Does what a key means. Returns whether the program continues.
    pub(super) fn press(&mut self, key: Key) -> bool {
        match key {
            Key::Quit if self.shows_help => self.shows_help = false,
            Key::Quit => return false,
            Key::Pause => self.is_paused = !self.is_paused,
            Key::Sort => self.sort = self.sort.next(),
            Key::Reverse => self.is_reversed = !self.is_reversed,
            Key::Select(by) => self.select(by),
            Key::Agent => self.next_agent(),
            Key::Scroll(by) => {
                self.scroll = Scroll { above: self.scroll.above.saturating_add_signed(by), follows: false };
            }
            Key::Help => self.shows_help = !self.shows_help,
        }
        true
    }

    fn select(&mut self, by: isize) {
        let places: Vec<Place> = self.view().places().collect();
        let at = self.selected.as_ref().and_then(|s| places.iter().position(|p| p == s));
        let next = match at {
            Some(at) => at.saturating_add_signed(by).min(places.len().saturating_sub(1)),
            None if by < 0 => places.len().saturating_sub(1),
            None => 0,
        };
        self.selected = places.into_iter().nth(next);
        self.scroll.follows = true;
    }

    fn next_agent(&mut self) {
        let next = match self.agent {
            None => 0,
            Some(pid) => self.tracks.iter().position(|t| t.now.pid == pid).map_or(0, |at| at + 1),
        };
        self.agent = self.tracks.get(next).map(|t| t.now.pid);
        self.scroll = Scroll::default();
    }

    /// Notes what part of the lines is shown.
    pub(super) fn set_scroll(&mut self, scroll: Scroll) {
        self.scroll = scroll;
    }

    fn notes(&self) -> Vec<String> {
        let is_recent = |at: Duration| self.at.saturating_sub(at) < ENDED_SHOWN;
        let ended = self.ended.filter(|(_, at)| is_recent(*at) || self.tracks.is_empty());
        let ended = ended.map(|(pid, _)| format!("agent {pid} has ended"));
        let none = "no agent of yours is running on this node; waiting for the next one";
        ended.into_iter().chain(self.tracks.is_empty().then(|| none.to_owned())).collect()
    }

    /// What is to be shown.
    pub(super) fn view(&self) -> View<'_> {
        let shown = self.tracks.iter().filter(|t| self.agent.is_none_or(|pid| pid == t.now.pid));
        View {
            agents: shown.map(|t| self.agent_view(t)).collect(),
            all: self.tracks.len(),
            notes: self.notes(),
            sort: self.sort,
            is_reversed: self.is_reversed,
            is_paused: self.is_paused,
            shows_help: self.shows_help,
            scroll: self.scroll,
        }
    }

    fn agent_view<'a>(&self, track: &'a Track) -> AgentView<'a> {
        let (status, step) = (&track.now, track.step());
        let is_selected = |path: &Path| self.selected.as_ref().is_some_and(|s| s.pid == status.pid && s.root == path);
        let root = |root: &'a RootStatus| RootView {
            root,
            opens: step.and_then(|step| step.root_opens(root)),
            is_selected: is_selected(&root.path),
        };
        let mut roots: Vec<RootView<'_>> = status.roots.iter().map(root).collect();
        roots.sort_by(|a, b| self.sort.compare(a, b));
        if self.is_reversed {
            roots.reverse();
        }
        let rates = step.map(|step| step.rates());
        let peer = |peer: &'a PeerStatus| PeerView { peer, rates: step.and_then(|step| step.peer(peer)) };
        AgentView {
            status,
            rates,
            history: &track.history,
            waits_for: bottleneck::of(status, rates.as_ref()),
            is_silent: track.is_silent,
            roots,
            peers: status.peers.iter().map(peer).collect(),
        }
    }
}

/// What a screen or table shows.
#[derive(Clone, Debug)]
pub(super) struct View<'a> {
    pub(super) agents: Vec<AgentView<'a>>,
    /// Agents, those that are not shown included.
    pub(super) all: usize,
    /// What the user should know.
    pub(super) notes: Vec<String>,
    pub(super) sort: Column,
    pub(super) is_reversed: bool,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    pub(super) scroll: Scroll,
}

impl View<'_> {
    fn places(&self) -> impl Iterator<Item = Place> {
        self.agents.iter().flat_map(|a| a.roots.iter().map(|r| Place { pid: a.status.pid, root: r.root.path.clone() }))
    }
}

/// An agent.
#[derive(Clone, Debug)]
pub(super) struct AgentView<'a> {
    pub(super) status: &'a Status,
    /// `None` until there are two samples of it.
    pub(super) rates: Option<Rates>,
    /// The last rates, oldest first.
    pub(super) history: &'a VecDeque<Rates>,
    /// What prefetch waits for.
    pub(super) waits_for: String,
    /// Whether it did not answer the last time: the figures are older.
    pub(super) is_silent: bool,
    pub(super) roots: Vec<RootView<'a>>,
    pub(super) peers: Vec<PeerView<'a>>,
}

/// A root.
#[derive(Clone, Copy, Debug)]
pub(super) struct RootView<'a> {
    pub(super) root: &'a RootStatus,
    /// Opens a second.
    pub(super) opens: Option<f64>,
    pub(super) is_selected: bool,
}

impl<'a> RootView<'a> {
    /// The epoch in progress, or the last one.
    pub(super) fn epoch(&self) -> Option<&'a Epoch> {
        self.root.epochs.last()
    }

    /// The last epochs, each with the number of opens that it has when it is complete: those of the
    /// epoch before, or one for each file.
    pub(super) fn epochs(&self, most: usize) -> impl Iterator<Item = (&'a Epoch, u64)> {
        let epochs = &self.root.epochs;
        let before = [self.root.files].into_iter().chain(epochs.iter().map(|e| e.opens));
        let all = epochs.iter().zip(before);
        all.skip(epochs.len().saturating_sub(most))
            .map(|(e, before)| (e, if e.complete { e.opens } else { before.max(e.opens) }))
    }

    /// Its path as it is shown.
    pub(super) fn path(&self) -> String {
        self.root.path.shown().to_string()
    }
}

/// Another node.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerView<'a> {
    pub(super) peer: &'a PeerStatus,
    /// Bytes a second from it, and to it.
    pub(super) rates: Option<(f64, f64)>,
}
