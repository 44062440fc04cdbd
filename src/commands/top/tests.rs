//! Tests of figures, order and pictures.

use super::bars::Look;
use super::model::{Column, Key, Model, RootView, Sample, Scroll};
use super::rates::Step;
use super::{bottleneck, interval, screen, view};
use monarch_core::agent::protocol::{Ahead, Epoch, Load, Opens, OutputStatus, RootStatus, Status, TierStatus};
use monarch_core::cluster::node::{PeerStatus, Traffic};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const PLAIN: Look = Look { has_colour: false, has_utf8: false };
const MIB: u64 = 1 << 20;

fn counters(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
    of.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
}

fn root(path: &str, files: u64, epochs: Vec<Epoch>) -> RootStatus {
    let state = "ready".to_owned();
    RootStatus { path: path.into(), state, files, bytes: files * MIB, epochs, ..RootStatus::default() }
}

/// An epoch in which half of the opens were local, and a tenth went to the PFS.
fn epoch(number: u32, opens: u64, complete: bool) -> Epoch {
    Epoch {
        number,
        complete,
        seconds: 10.0,
        opens,
        bytes: opens * MIB,
        local: opens / 2,
        waited: opens - opens / 2 - opens / 10,
        pfs: opens / 10,
        pfs_bytes: opens / 10 * MIB,
        wait_s: opens as f64 / 100.0,
        ..Epoch::default()
    }
}

/// An agent after `seconds`, with counters that grow by the second.
fn agent(pid: u32, seconds: u64) -> Status {
    Status {
        version: "1.2.3".to_owned(),
        pid,
        uptime_s: seconds as f64,
        incarnation: 1,
        runtime_dir: format!("/dev/shm/monarch-{pid}").into(),
        jobs: 1,
        engine: "uring".to_owned(),
        policy: "first_epoch".to_owned(),
        nodes: 1,
        prefetch: Ahead::Running,
        load: Load {
            running: 7,
            ahead: 5,
            demands: 3,
            width: 16,
            pfs_calls: 300 * seconds,
            pfs_bytes: 10 * MIB * seconds,
            opens_us: Some((12_345, 4567)),
            ..Load::default()
        },
        pfs_opens: vec![Opens { up_to_s: None, opens: 90 * seconds }],
        roots: vec![
            root("/scratch/sets/audio", 100, vec![]),
            root("/scratch/sets/imagenet", 1000, vec![epoch(1, 1000, true), epoch(2, 10 * seconds, false)]),
        ],
        tiers: vec![TierStatus {
            name: "nvme".to_owned(),
            path: "/local/monarch-0".into(),
            capacity: 2000 * MIB,
            used: 500 * MIB,
            reserved: 100 * MIB,
            files: 480,
            ..TierStatus::default()
        }],
        counters: counters(&[
            ("hits", 40 * seconds),
            ("hit_bytes", 40 * MIB * seconds),
            ("waited", 4 * seconds),
            ("wait_us", 500_000 * seconds),
            ("absent", 10 * seconds),
            ("miss_bytes", 10 * MIB * seconds),
        ]),
        agent: counters(&[("source_bytes", 10 * MIB * seconds)]),
        ..Status::default()
    }
}

fn with_peer(mut s: Status, seconds: u64) -> Status {
    let traffic = Traffic {
        received: 3 * seconds,
        received_bytes: 3 * MIB * seconds,
        sent: 2 * seconds,
        sent_bytes: 2 * MIB * seconds,
        failed: 0,
    };
    s.nodes = 2;
    s.peers = vec![PeerStatus { name: "node2".to_owned(), address: None, state: "up".to_owned(), seen: true, traffic }];
    s
}

fn sample(at: u64, agents: Vec<Status>) -> Sample {
    Sample { at: Duration::from_secs(at), agents, silent: Vec::new() }
}

/// A model that has taken two samples of an agent, two seconds apart.
fn model() -> Model {
    let mut model = Model::default();
    model.take(sample(0, vec![agent(10, 10)]));
    model.take(sample(2, vec![agent(10, 12)]));
    model
}

#[test]
fn rates_are_differences_by_the_time_between() {
    let (before, now) = (with_peer(agent(10, 10), 10), with_peer(agent(10, 14), 14));
    let step = Step::new(&before, &now, 2.0).unwrap();
    let r = step.rates();
    // Four seconds of counters in two: as the agent's clock is not that of the samples.
    assert_eq!((r.pfs_bytes, r.pfs_opens, r.pfs_calls), (40.0 * MIB as f64, 200.0, 600.0));
    assert_eq!((r.tier_bytes, r.tier_opens, r.waits, r.waiting), (80.0 * MIB as f64, 88.0, 8.0, 1.0));
    assert_eq!((r.received, r.received_bytes, r.sent, r.sent_bytes), (6.0, 6.0 * MIB as f64, 4.0, 4.0 * MIB as f64));
    assert_eq!(step.root_opens(&now.roots[1]), Some(20.0));
    assert_eq!(step.peer(&now.peers[0]), Some((6.0 * MIB as f64, 4.0 * MIB as f64)));
    assert_eq!(step.root_opens(&root("/new", 1, vec![])), None);
}

#[test]
fn counters_that_began_again_give_no_rates() {
    let before = agent(10, 10);
    let is_step = |now: &Status, seconds| Step::new(&before, now, seconds).is_some();
    assert!(is_step(&agent(10, 11), 1.0) && !is_step(&agent(10, 11), 0.0));
    assert!(!is_step(&agent(10, 9), 1.0), "it was started again");
    assert!(!is_step(&Status { incarnation: 2, ..agent(10, 11) }, 1.0));
    assert!(!is_step(&agent(11, 11), 1.0), "another process");
    // One counter that fell does not make all others wrong.
    let fell = Status { agent: counters(&[("source_bytes", 0)]), ..agent(10, 11) };
    let rates = Step::new(&before, &fell, 1.0).unwrap().rates();
    assert_eq!((rates.pfs_bytes, rates.pfs_opens), (0.0, 100.0));
}

#[test]
fn an_agent_that_follows_another_one_has_no_rates_at_first() {
    let mut model = model();
    assert!(model.view().agents[0].rates.is_some());
    model.take(sample(3, vec![Status { pid: 11, ..agent(10, 1) }]));
    let view = model.view();
    assert!(view.agents[0].rates.is_none() && view.agents[0].roots[1].opens.is_none());
    assert_eq!(view.notes, ["agent 10 has ended"]);
    // It is shown for a while only.
    model.take(sample(40, vec![Status { pid: 11, ..agent(10, 38) }]));
    assert!(model.view().notes.is_empty() && model.view().agents[0].rates.is_some());
}

#[test]
fn without_an_agent_the_screen_says_so_as_long_as_that_lasts() {
    let mut model = model();
    model.take(sample(3, vec![]));
    assert!(!model.has_agents());
    model.take(sample(3000, vec![]));
    let said = ["agent 10 has ended", "no agent of yours is running on this node; waiting for the next one"];
    assert_eq!(model.view().notes, said);
}

#[test]
fn an_agent_that_does_not_answer_keeps_its_last_figures() {
    let mut model = model();
    let silent = vec![PathBuf::from("/dev/shm/monarch-10")];
    model.take(Sample { silent, ..sample(7, vec![]) });
    let view = model.view();
    assert!(view.agents[0].is_silent && view.notes.is_empty());
    assert_eq!(view.agents[0].rates.unwrap().waits, 4.0);
    drop(view);
    // The time in between counts.
    model.take(sample(12, vec![agent(10, 22)]));
    assert_eq!(model.view().agents[0].rates.unwrap().waits, 4.0);
}

#[test]
fn roots_are_sorted_by_each_column_and_stay_selected() {
    let mut model = Model::default();
    let mut s = agent(10, 10);
    s.roots = vec![
        root("/c", 5, vec![Epoch { local: 9, opens: 10, pfs_bytes: 1, wait_s: 3.0, ..Epoch::default() }]),
        root("/a", 9, vec![Epoch { local: 1, opens: 10, pfs_bytes: 7, wait_s: 1.0, ..Epoch::default() }]),
        root("/b", 7, vec![]),
    ];
    model.take(sample(0, vec![s.clone()]));
    s.roots[0].epochs[0].opens = 1000;
    model.take(sample(1, vec![s]));
    let order = |model: &Model| -> Vec<String> { model.view().agents[0].roots.iter().map(RootView::path).collect() };
    assert_eq!(order(&model), ["/a", "/b", "/c"]);
    model.press(Key::Select(1));
    for want in [
        ["/a", "/b", "/c"], // files
        ["/a", "/b", "/c"], // size
        ["/c", "/a", "/b"], // opens
        ["/a", "/c", "/b"], // local: 9 of 1000
        ["/a", "/c", "/b"], // bytes from the PFS
        ["/c", "/a", "/b"], // time waited
    ] {
        model.press(Key::Sort);
        assert_eq!(order(&model), want, "{:?}", model.view().sort);
    }
    model.press(Key::Reverse);
    assert_eq!(order(&model), ["/b", "/a", "/c"]);
    let view = model.view();
    let selected: Vec<String> = view.agents[0].roots.iter().filter(|r| r.is_selected).map(RootView::path).collect();
    assert_eq!((selected, view.sort), (vec!["/a".to_owned()], Column::Waited));
    model.press(Key::Sort);
    assert_eq!(model.view().sort, Column::Path);
}

#[test]
fn keys_select_pause_and_choose() {
    let mut model = Model::default();
    let two = || vec![agent(20, 10), agent(10, 10)];
    model.take(sample(0, two()));
    let selected = |model: &Model| -> Vec<(u32, String)> {
        let view = model.view();
        let of = |a: &super::model::AgentView<'_>| {
            let chosen = a.roots.iter().filter(|r| r.is_selected);
            chosen.map(|r| (a.status.pid, r.path())).collect::<Vec<_>>()
        };
        view.agents.iter().flat_map(of).collect()
    };
    assert!(selected(&model).is_empty());
    model.press(Key::Select(-1));
    assert_eq!(selected(&model), [(20, "/scratch/sets/imagenet".to_owned())], "the last");
    (0..9).for_each(|_| assert!(model.press(Key::Select(-1))));
    assert_eq!(selected(&model), [(10, "/scratch/sets/audio".to_owned())], "agents are in order of their processes");
    let shown = |model: &Model| model.view().agents.iter().map(|a| a.status.pid).collect::<Vec<_>>();
    let mut seen = vec![shown(&model)];
    for _ in 0..3 {
        model.press(Key::Agent);
        seen.push(shown(&model));
    }
    assert_eq!(seen, [vec![10, 20], vec![10], vec![20], vec![10, 20]]);

    model.press(Key::Pause);
    model.take(sample(1, vec![]));
    assert_eq!(shown(&model), [10, 20]);
    model.press(Key::Pause);
    model.take(sample(2, vec![agent(20, 12)]));
    assert_eq!(shown(&model), [20]);

    assert!(model.press(Key::Help) && model.view().shows_help);
    assert!(model.press(Key::Quit) && !model.view().shows_help, "it ends the help first");
    assert!(!model.press(Key::Quit));
}

#[test]
fn scrolling_follows_what_is_selected_and_ends_at_the_last_line() {
    let at = |above, follows, selected| Scroll { above, follows }.fit(30, 10, selected).above;
    assert_eq!([at(0, true, Some(15)), at(12, true, Some(15)), at(18, true, Some(3))], [6, 12, 3]);
    assert_eq!([at(99, false, Some(3)), at(5, false, None), at(5, true, None)], [20, 5, 5]);
    assert_eq!(Scroll { above: 7, follows: true }.fit(8, 10, Some(7)).above, 0);
    assert_eq!(Scroll { above: 7, follows: true }.fit(8, 0, Some(7)).above, 8);
}

#[test]
fn what_prefetch_waits_for_is_the_trouble_or_the_limit_that_is_reached() {
    let of = |s: &Status| {
        let before = agent(10, 10);
        let rates = Step::new(&before, s, 1.0).map(|step| step.rates());
        bottleneck::of(s, rates.as_ref())
    };
    let now = || agent(10, 11);
    let load = |load: Load| Status { load, ..now() };
    assert_eq!(of(&now()), "prefetching goes on at full pace");
    assert_eq!(of(&Status { prefetch: Ahead::Idle, ..now() }), "nothing is left to prefetch");
    let slowed = Ahead::Slowed { divisor: 4, opens_us: 480_000, best_us: 12_000 };
    let slow = "prefetching slowed to 1/4: opens at the PFS take 480 ms, 12 ms at best";
    assert_eq!(of(&Status { prefetch: slowed, ..now() }), slow);

    let mut scanned = Status { prefetch: Ahead::Idle, ..now() };
    scanned.roots[0].state = "scanning".to_owned();
    assert_eq!(of(&scanned), "waits for the scan of a root");

    let full = |used| {
        let tier = TierStatus { used, ..now().tiers[0].clone() };
        Status { tiers: vec![TierStatus { capacity: 1000 * MIB, ..tier }], ..now() }
    };
    assert_eq!(of(&full(850 * MIB)), "the tiers are full: the roots have 1.1 GiB, the quotas 1000.0 MiB");
    assert_eq!(of(&full(800 * MIB)), "prefetching goes on at full pace");
    let mut fits = full(990 * MIB);
    fits.roots.truncate(1);
    assert_eq!(of(&fits), "prefetching goes on at full pace", "the copies are of other roots");

    let usual = now().load;
    // 10 MiB and 300 calls a second.
    let capped = |bytes: u64| of(&load(Load { bandwidth_limit: Some(bytes), ..usual }));
    assert_eq!(capped(11 * MIB), "held to source.bandwidth_limit: 11.0 MiB/s");
    assert_eq!(capped(12 * MIB), "prefetching goes on at full pace");
    let calls = |calls: u64| of(&load(Load { iops_limit: Some(calls), ..usual }));
    assert_eq!(
        [calls(300), calls(400)],
        ["held to source.iops_limit: 300 calls a second", "prefetching goes on at full pace"]
    );
    assert_eq!(of(&load(Load { ahead: 1, width: 6, ..usual })), "readers come first: 6 of 6 slots are theirs");
    assert_eq!(of(&load(Load { width: 7, ..usual })), "at the limit of the throttle: 7 files at a time");
}

#[test]
fn an_interval_is_seconds_or_has_a_unit() {
    assert_eq!(
        [interval("2"), interval("0.5"), interval(" 250ms ")].map(Result::unwrap).map(|i| i.as_millis()),
        [2000, 500, 250]
    );
    for bad in ["0", "-1", "nan", "inf", "1e30", "3601", "soon", ""] {
        assert!(interval(bad).is_err(), "{bad}");
    }
}

/// The picture on a screen of this size.
fn picture(model: &mut Model, look: Look, columns: u16, lines: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| screen::draw(frame, model, look, Duration::from_secs(1))).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..lines).map(|y| row(y).trim_end().to_owned()).collect()
}

#[test]
fn a_wide_screen_has_everything() {
    let mut model = Model::default();
    model.take(sample(0, vec![with_peer(agent(10, 10), 10)]));
    model.take(sample(2, vec![with_peer(agent(10, 12), 12)]));
    model.press(Key::Select(1));
    model.press(Key::Select(1));
    let want = "\
\x20monarch top  1 agent, every 1s, roots by path
agent 10: 1 job, up 12s, 2 nodes, policy first_epoch, engine uring, version 1.2.3

  PATH                         FILES       SIZE  OPENS/S    LOCAL        PFS   WAITED
  /scratch/sets/audio            100  100.0 MiB        0        -          -        -
> /scratch/sets/imagenet       1,000 1000.0 MiB       10   90.0 %   12.0 MiB    1.2 s
  ##########========-- epoch 1: 1000 opens in 10.0 s, 90.0 % local, 100 at the PFS (100.0 MiB), wai>
  #=.................. epoch 2 so far: 120 opens in 10.0 s, 90.0 % local, 12 at the PFS (12.0 MiB),>

  TIER                                         FULL       USED      QUOTA      COPIES
  nvme /local/monarch-0 #####=..............   25 %  500.0 MiB    2.0 GiB         480

  TRAFFIC             BYTES/S    OPENS/S
  from the PFS       20.0 MiB        100  300 calls/s   #
  from tiers         40.0 MiB         44                #
  from peers          3.0 MiB        3.0                #
  to peers            2.0 MiB        2.0                #
  waiting       0.50 readers at a time, 4.0 opens/s

  PREFETCH      prefetching goes on at full pace
                5 in flight (limit 16), 2 for readers, 3 queued, opens 12 ms (best 4.6 ms)

  NODE               STATE   RECEIVED/S       SENT/S
  node2                 up      3.0 MiB      2.0 MiB

";
    let mut want: Vec<&str> = want.lines().collect();
    want.resize(29, "");
    want.push(" q quit  p pause  s sort  r reverse  j/k select  Tab agent  PgUp/PgDn scroll  ? help");
    assert_eq!(picture(&mut model, PLAIN, 100, 30), want, "{}", picture(&mut model, PLAIN, 100, 30).join("\n"));
}

#[test]
fn output_roots_have_a_line_each_and_say_what_holds_them() {
    let mut model = Model::default();
    let output = OutputStatus {
        path: "/scratch/run".into(),
        pending: 3,
        pending_bytes: 2 << 30,
        oldest_ms: Some(42_000),
        rate: 350 << 20,
        held: Some("model.pt: Disk quota exceeded".to_owned()),
        ..OutputStatus::default()
    };
    let quiet = OutputStatus { path: "/scratch/other".into(), ..OutputStatus::default() };
    model.take(sample(0, vec![Status { outputs: vec![output, quiet], ..agent(10, 10) }]));
    let shown = picture(&mut model, PLAIN, 100, 30).join("\n");
    let want = "
  OUTPUTS       /scratch/run: 3 entries (2.0 GiB) pending, oldest 42s, 350.0 MiB/s
                held: model.pt: Disk quota exceeded
                /scratch/other: nothing pending
";
    assert!(shown.contains(want), "{shown}");
}

#[test]
fn a_narrow_screen_has_what_matters_most() {
    let want = "\
\x20monarch top  1 agent, every 1s, roots by path
agent 10: 1 job, up 12s, policy first_epoch, engine uring, >
  PATH                       SIZE  OPENS/S    LOCAL   WAITED
  /scratch/sets/audio   100.0 MiB        0        -        -
  ...tch/sets/imagenet 1000.0 MiB       10   90.0 %    1.2 s
  #........... epoch 2 so far: 120 opens in 10.0 s, 90.0 % >
  TIER                            FULL       USED      QUOTA
  nvme ...onarch-0 ###=........   25 %  500.0 MiB    2.0 GiB
  TRAFFIC             BYTES/S    OPENS/S
  from the PFS       20.0 MiB        100  300 calls/s
  from tiers         40.0 MiB         44
  waiting       0.50 readers at a time, 4.0 opens/s
  PREFETCH      prefetching goes on at full pace
                5 in flight (limit 16), 2 for readers, 3
                queued, opens 12 ms (best 4.6 ms)
 q quit  p pause  s sort  r reverse  j/k select  ? help";
    let shown = picture(&mut model(), PLAIN, 60, 16);
    assert_eq!(shown, want.lines().collect::<Vec<_>>(), "{}", shown.join("\n"));
}

#[test]
fn any_size_can_be_drawn() {
    let mut model = model();
    for shows_help in [false, true] {
        for (columns, lines) in [(1, 1), (2, 2), (5, 3), (20, 5), (40, 4), (300, 80)] {
            let shown = picture(&mut model, Look { has_colour: true, has_utf8: true }, columns, lines);
            assert_eq!(shown.len(), usize::from(lines), "{shows_help}");
        }
        model.press(Key::Help);
    }
    // What does not fit is reached by scrolling.
    let text = |model: &mut Model| picture(model, PLAIN, 60, 8).join("\n");
    assert!(!text(&mut model).contains("PREFETCH"));
    model.press(Key::Scroll(100));
    assert!(text(&mut model).contains("PREFETCH"), "{}", text(&mut model));
    model.press(Key::Select(1));
    assert!(text(&mut model).contains("> /scratch/sets/audio"), "{}", text(&mut model));
}

#[test]
fn a_pause_the_end_of_an_agent_and_a_scan_are_shown() {
    let mut model = model();
    let mut scanning = agent(10, 13);
    scanning.roots[0] = RootStatus { state: "scanning".to_owned(), entries: 12_345, ..scanning.roots[0].clone() };
    scanning.roots[1].state = "failed: Permission denied\x1b[2J (os error 13)".to_owned();
    model.take(sample(3, vec![scanning]));
    let shown = picture(&mut model, PLAIN, 100, 30).join("\n");
    assert!(shown.contains("\n  scanning: 12,345 entries\n"), "{shown}");
    assert!(shown.contains("failed: Permission denied\\x1b[2J (os error 13)"), "{shown}");
    model.take(sample(4, vec![]));
    model.press(Key::Pause);
    let shown = picture(&mut model, PLAIN, 60, 16);
    assert_eq!(
        shown[..4],
        [
            " monarch top  0 agents, every 1s, roots by path  PAUSED",
            "agent 10 has ended",
            "no agent of yours is running on this node; waiting for the",
            "next one"
        ]
    );
    model.press(Key::Help);
    let shown = picture(&mut model, PLAIN, 60, 20).join("\n");
    assert!(shown.contains("# served by a copy  = after a wait"), "{shown}");
}

#[test]
fn colours_are_used_only_where_they_are_wanted() {
    let coloured = |has_colour| {
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
        let look = Look { has_colour, has_utf8: true };
        terminal.draw(|frame| screen::draw(frame, &mut model(), look, Duration::from_secs(1))).unwrap();
        terminal
            .backend()
            .buffer()
            .content
            .iter()
            .filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
            .count()
    };
    assert!(coloured(true) > 0);
    assert_eq!(coloured(false), 0);
}

#[test]
fn a_table_cuts_nothing_off() {
    let long = format!("/{}", "a-long-path/".repeat(20));
    let mut model = Model::default();
    let of = |seconds| Status { roots: vec![root(&long, 1000, vec![epoch(1, 1000, true)])], ..agent(10, seconds) };
    model.take(sample(0, vec![of(10)]));
    let table = |model: &Model| view::table(&model.view(), &PLAIN);
    let first = table(&model);
    assert!(first.contains(long.trim_end_matches('/')), "{first}");
    assert!(first.contains("  from the PFS              -          -\n"), "{first}");
    model.take(sample(2, vec![of(12)]));
    let second = table(&model);
    assert!(second.contains("  from the PFS       20.0 MiB        100  300 calls/s\n"), "{second}");
    assert!(second.contains("90.0 % local, 100 at the PFS (100.0 MiB), waited 10.0 s for 400\n"), "{second}");
    assert!(!second.contains('\x1b') && second.lines().all(|line| line == line.trim_end()), "{second}");
}
