//! What the protocol promises, in a simulated network: times, load, no wrong suspicion.

use super::gossip::Gossip;
use super::simulated_net::{Net, address};
use crate::directory::NodeState;
use std::fmt;

/// Most milliseconds until all nodes know one that has started.
const MAX_JOIN_MS: u64 = 1_000;
/// Most milliseconds until 99 % of the nodes suspect one that has crashed.
const MAX_CRASH_MS: u64 = 2_000;
/// Most milliseconds until all nodes know each other after a cut.
const MAX_HEAL_MS: u64 = 5_000;
/// Most milliseconds until all of the nodes that start together know each other.
const MAX_BOOT_MS: u64 = 3_000;
/// Most datagrams, and kB, that a node sends in a second when nothing happens.
const MAX_LOAD: (f64, f64) = (25.0, 10.0);

/// What is measured of so many nodes, with so many percent of the datagrams lost.
struct Run {
    nodes: usize,
    loss: usize,
    /// Nodes that crash and start again, one after the other.
    crashes: usize,
    cut_ms: u64,
}

struct Measured {
    run: Run,
    memory_kb: u64,
    boot_ms: u64,
    /// Nodes that any other one suspected while all were starting.
    suspected_at_boot: usize,
    load: (f64, f64),
    /// Looks at all nodes, of 50, at which any suspected another one.
    wrong_suspicions: usize,
    crash_ms: Vec<u64>,
    join_ms: Vec<u64>,
    /// Until the node that has started knows all.
    catch_up_ms: Vec<u64>,
    heal_ms: u64,
    longest_datagram: usize,
}

impl Run {
    fn measure(self) -> Measured {
        let before = resident_kb();
        let mut net = Net::booting(self.nodes);
        net.loss = 10 * self.loss;
        let (boot_ms, suspected_at_boot) = boot(&mut net);
        let memory_kb = resident_kb().saturating_sub(before) / self.nodes as u64;
        net.run(3_500);
        let (load, wrong_suspicions) = steady(&mut net);
        let lives = (0..self.crashes).map(|k| crash_and_restart(&mut net, (7_919 * k + 3) % self.nodes, 6 + k as u64));
        let lives: Vec<[u64; 3]> = lives.collect();
        let of = |what: usize| lives.iter().map(|life| life[what]).collect();
        let (crash_ms, join_ms, catch_up_ms) = (of(0), of(1), of(2));
        let heal_ms = cut(&mut net, self.nodes / 2, self.cut_ms);
        Measured {
            run: self,
            memory_kb,
            boot_ms,
            suspected_at_boot,
            load,
            wrong_suspicions,
            crash_ms,
            join_ms,
            catch_up_ms,
            heal_ms,
            longest_datagram: net.longest,
        }
    }
}

/// Milliseconds until all know all, and how many nodes were suspected until then.
fn boot(net: &mut Net) -> (u64, usize) {
    let (mut took, mut suspected) = (0, 0);
    while took < 20_000 && !net.all_up() {
        took += net.until(50, 500, Net::all_up);
        suspected += (0..net.nodes.len()).filter(|of| net.count_seen(*of, NodeState::Suspect) > 0).count();
    }
    (took, suspected)
}

/// Datagrams and kB for each node and second, and how often any node was suspected, in 5 s.
fn steady(net: &mut Net) -> ((f64, f64), usize) {
    net.sent = (0, 0);
    let mut wrong = 0;
    for _ in 0..50 {
        net.run(100);
        wrong += usize::from(!net.all_up());
    }
    let each = |sent: u64| sent as f64 / net.nodes.len() as f64 / 5.0;
    ((each(net.sent.0), each(net.sent.1) / 1_000.0), wrong)
}

/// Milliseconds until 99 % suspect a node that crashed, until all know its next life, and until
/// that knows all.
fn crash_and_restart(net: &mut Net, victim: usize, life: u64) -> [u64; 3] {
    let others = net.nodes.len() - 1;
    let moment = net.chance.below(200) as u64;
    net.run(moment);
    net.crash(victim);
    let is_noticed = |net: &Net| 100 * net.count_seen(victim, NodeState::Suspect) >= 99 * others;
    let crash = net.until(20, 20_000, is_noticed);
    net.run(1_000);
    net.start(victim, life, 0..=others);
    let join = net.until(20, 20_000, |net| net.count_seen(victim, NodeState::Up) == others);
    [crash, join, join + net.until(20, 20_000, Net::all_up)]
}

/// Cuts the first nodes from the others. Returns in how many milliseconds all know all again.
fn cut(net: &mut Net, first: usize, ms: u64) -> u64 {
    net.cut = Box::new(move |a, b| (a < first) != (b < first));
    net.run(ms);
    assert!(!net.all_up(), "the cut was not noticed");
    net.cut = Box::new(|_, _| false);
    net.until(50, 30_000, Net::all_up)
}

/// Memory of this process in kB.
fn resident_kb() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).map_or(0, |pages: u64| 4 * pages)
}

fn median(of: &[u64]) -> u64 {
    let mut all = of.to_vec();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

fn most(of: &[u64]) -> u64 {
    of.iter().copied().max().unwrap_or(0)
}

impl Measured {
    fn assert_targets(&self) {
        assert!(self.boot_ms <= MAX_BOOT_MS && self.suspected_at_boot == 0, "{self}");
        assert!(self.load.0 <= MAX_LOAD.0 && self.load.1 <= MAX_LOAD.1, "{self}");
        assert_eq!(self.wrong_suspicions, 0, "{self}");
        assert!(most(&self.crash_ms) <= MAX_CRASH_MS, "{self}");
        assert!(most(&self.join_ms) <= MAX_JOIN_MS && most(&self.catch_up_ms) <= MAX_BOOT_MS, "{self}");
        assert!(self.heal_ms <= MAX_HEAL_MS, "{self}");
        assert!(self.longest_datagram <= 1_200, "{self}");
    }
}

/// A row of the table in docs/CLUSTER.md.
impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ms: u64| format!("{:.1}", ms as f64 / 1_000.0);
        let Run { nodes, loss, .. } = self.run;
        let (datagrams, kb) = self.load;
        let [boot, heal] = [self.boot_ms, self.heal_ms].map(seconds);
        let crash = [median(&self.crash_ms), most(&self.crash_ms)].map(seconds).join(", ");
        let [join, catch_up] = [&self.join_ms, &self.catch_up_ms].map(|of| seconds(most(of)));
        let wrong = self.suspected_at_boot + self.wrong_suspicions;
        write!(
            f,
            "| {nodes} | {loss} % | {datagrams:.0} | {kb:.1} | {boot} | {join} | {catch_up} | {crash} | {heal} | {wrong} | {} |",
            self.memory_kb
        )
    }
}

#[test]
fn few_nodes_and_some_hundred_meet_the_targets() {
    for (nodes, loss) in [(2, 0), (2, 5), (3, 5), (16, 0), (16, 5), (128, 5)] {
        Run { nodes, loss, crashes: 4, cut_ms: 60_000 }.measure().assert_targets();
    }
}

#[test]
fn a_thousand_nodes_meet_the_targets() {
    let mut net = Net::booting(1_000);
    net.loss = 50;
    assert!(net.until(50, 20_000, Net::all_up) <= MAX_BOOT_MS);
    // (Tables are compared more often in the first seconds.)
    net.run(3_000);
    net.sent = (0, 0);
    net.run(1_000);
    let (datagrams, bytes) = (net.sent.0 / 1_000, net.sent.1 / 1_000);
    assert!(datagrams <= 25 && bytes <= 10_000, "{datagrams} datagrams, {bytes} bytes");
    let [crash, join, catch_up] = crash_and_restart(&mut net, 500, 6);
    assert!(crash <= MAX_CRASH_MS && join <= MAX_JOIN_MS && catch_up <= MAX_BOOT_MS, "{crash} {join} {catch_up}");
    assert!(net.longest <= 1_200);
}

#[test]
#[ignore = "takes minutes: makes the table of docs/CLUSTER.md"]
fn long_table() {
    let mut table = Vec::new();
    for nodes in [2, 3, 16, 128, 512, 1_000] {
        for loss in [0, 5] {
            table.push(Run { nodes, loss, crashes: 24, cut_ms: 60_000 }.measure());
            println!("{}", table[table.len() - 1]);
        }
    }
    table.iter().for_each(Measured::assert_targets);
    for loss in [10, 20, 30] {
        println!("{}", Run { nodes: 128, loss, crashes: 24, cut_ms: 60_000 }.measure());
    }
}

/// One run may be lucky: 720 crashes in 30 clusters.
#[test]
#[ignore = "takes minutes: a line of docs/CLUSTER.md"]
fn crashes_of_many_runs() {
    let runs = (0..30).map(|n| Run { nodes: 128 + 10 * n, loss: 5, crashes: 24, cut_ms: 60_000 }.measure());
    let runs: Vec<Measured> = runs.collect();
    let mut all: Vec<u64> = runs.iter().flat_map(|run| run.crash_ms.clone()).collect();
    all.sort_unstable();
    let (p99, late) = (all[all.len() * 99 / 100], all.iter().filter(|ms| **ms > MAX_CRASH_MS).count());
    println!("{} crashes: 99 % within {p99} ms, {late} later than {MAX_CRASH_MS} ms, worst {}", all.len(), most(&all));
    let worst = |of: fn(&Measured) -> u64| runs.iter().map(of).max().unwrap_or(0);
    let (join, heal) = (worst(|run| most(&run.join_ms)), worst(|run| run.heal_ms));
    println!("worst join {join} ms, heal {heal} ms");
    assert!(p99 <= MAX_CRASH_MS && join <= MAX_JOIN_MS && heal <= MAX_HEAL_MS);
}

/// The load that greetings put on a node does not grow with the nodes that miss it, nor that of a
/// node with those that it misses.
#[test]
fn nodes_that_do_not_run_cost_a_bounded_number_of_greetings() {
    let mut net = Net::empty(1);
    (0..60).for_each(|n| net.start(n, 5, 0..600));
    net.run(20_000);
    net.sent = (0, 0);
    net.run(10_000);
    let each = net.sent.0 / 60 / 10;
    assert!(each <= 16, "540 nodes are sought with {each} datagrams a second");
    let mut net = Net::settled(200);
    net.run(1_000);
    net.crash(7);
    net.run(60_000);
    net.watched = Some((7, 0));
    net.run(10_000);
    let (_, got) = net.watched.unwrap();
    assert!((100..=300).contains(&got), "a node that is down got {got} datagrams in 10 s");
}

/// Lists that differ are a mistake of the configuration: tables never become equal, and cost
/// little.
#[test]
fn lists_that_differ_cost_a_bounded_load() {
    let mut net = Net::empty(1);
    (0..20).for_each(|n| net.start(n, 5, 0..20 + n));
    (0..20).for_each(|n| net.node(n).table.close());
    (20..39).for_each(|n| net.start(n, 5, 0..39));
    net.run(10_000);
    net.sent = (0, 0);
    net.run(10_000);
    let (datagrams, bytes) = (net.sent.0 / 390, net.sent.1 / 390);
    assert!(datagrams <= 60 && bytes <= 10_000, "{datagrams} datagrams, {bytes} bytes");
}

/// While one half of a cluster finds the other again, no node of a half doubts its own half.
#[test]
fn a_cut_that_heals_makes_no_node_suspect_in_its_own_half() {
    for ms in [5_000, 40_000] {
        let mut net = Net::settled(64);
        net.loss = 20;
        net.run(2_000);
        net.cut = Box::new(|a, b| (a < 32) != (b < 32));
        net.run(ms);
        net.cut = Box::new(|_, _| false);
        no_doubts_in_halves(&mut net);
        assert!(net.all_up());
    }
}

fn no_doubts_in_halves(net: &mut Net) {
    for _ in 0..100 {
        net.run(50);
        let doubts = (0..64).flat_map(|by| (0..64).map(move |of| (by, of))).filter(|(by, of)| by != of);
        let mut doubts = doubts.filter(|(by, of)| (*by < 32) == (*of < 32) && net.seen(*by, *of) != NodeState::Up);
        assert_eq!(doubts.next(), None, "at {}", net.now);
    }
}

/// A few nodes that are cut off from many find out in seconds: their news would reach no node if
/// they went to members by chance.
#[test]
fn a_few_nodes_that_are_cut_off_from_many_notice_it() {
    let mut net = Net::settled(400);
    net.run(1_000);
    net.cut = Box::new(|a, b| (a < 6) != (b < 6));
    let alone = |net: &Net| net.nodes[..6].iter().flatten().all(|node| node.table.alive().len() == 5);
    let took = net.until(100, 60_000, alone);
    assert!(took < 10_000, "{took} ms");
}

/// Under torchrun each node knows the first one only.
#[test]
fn nodes_that_know_only_the_first_find_each_other() {
    let mut net = Net::empty(3);
    net.loss = 50;
    (0..150).for_each(|n| net.start(n, 5, [0]));
    let took = net.until(50, 20_000, Net::all_up);
    assert!(took <= MAX_BOOT_MS, "{took} ms");
}

/// One that starts when all others believe for an hour that it does not.
#[test]
fn a_listed_node_is_sought_for_ever_and_found_when_it_cannot_greet() {
    let mut net = Net::empty(4);
    (0..3).for_each(|n| net.start(n, 5, 0..4));
    net.run(3_600_000);
    assert_eq!(net.seen(0, 3), NodeState::Gone);
    // It knows no other node: it must be found.
    net.start(3, 5, []);
    let took = net.until(50, 20_000, Net::all_up);
    assert!(took <= MAX_BOOT_MS, "{took} ms");
}

#[test]
fn runs_of_one_seed_are_the_same_to_the_last_byte() {
    let run = || {
        let mut net = Net::booting(40);
        net.loss = 100;
        net.run(5_000);
        net.crash(3);
        net.run(5_000);
        (
            net.sent,
            net.longest,
            net.nodes.iter().flatten().map(|node: &Gossip| node.table.revision()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(run(), run());
    assert_ne!(address(1), address(2));
}
