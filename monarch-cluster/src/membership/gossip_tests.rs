use super::*;

const TICK: u64 = 200;

struct Net {
    nodes: Vec<Option<Gossip>>,
    now: u64,
    loss: u64,
    chance: u64,
    cut: Box<dyn Fn(usize, usize) -> bool>,
}

fn address(n: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 1000 + n as u16))
}

fn node(n: usize, of: usize, incarnation: u64, now: u64) -> Gossip {
    let me = Intro {
        name: format!("n{n}"),
        incarnation,
        beat: 0,
        gossip: Some(address(n)),
        files: Some(address(n)),
        version: "1".into(),
    };
    let mut gossip = Gossip::new(me, now, 10_000);
    (0..of).filter(|o| *o != n).for_each(|o| gossip.expect(&format!("n{o}"), Some(address(o))));
    gossip
}

impl Net {
    fn new(nodes: usize) -> Self {
        let nodes = (0..nodes).map(|n| Some(node(n, nodes, 5, 0))).collect();
        Self { nodes, now: 0, loss: 0, chance: 1, cut: Box::new(|_, _| false) }
    }

    fn deliver(&mut self, from: usize, (to, payload): Outgoing) {
        let to = usize::from(to.port()) - 1000;
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if (self.chance >> 33) % 1000 < self.loss || (self.cut)(from, to) {
            return;
        }
        let payload = Payload::decode(&payload.encode()).unwrap();
        let reply = self.nodes[to].as_mut().and_then(|n| n.hear(self.now, &payload));
        if let Some(reply) = reply {
            self.deliver(to, reply);
        }
    }

    fn run(&mut self, ms: u64) {
        let until = self.now + ms;
        while self.now < until {
            self.now += TICK;
            for n in 0..self.nodes.len() {
                let now = self.now;
                for out in self.nodes[n].as_mut().map(|g| g.tick(now)).unwrap_or_default() {
                    self.deliver(n, out);
                }
            }
        }
    }

    fn seen(&self, by: usize, of: usize) -> NodeState {
        let gossip = self.nodes[by].as_ref().unwrap();
        gossip.standings(self.now).find(|(i, _)| i.name == format!("n{of}")).map_or(NodeState::Gone, |(_, s)| s)
    }
}

#[test]
fn many_find_each_other_and_nobody_is_suspected_when_datagrams_are_lost() {
    let mut net = Net::new(150);
    net.loss = 50;
    net.run(3_000);
    for _ in 0..20 {
        net.run(1_000);
        for by in (0..150).step_by(7) {
            assert!(
                (0..150).filter(|of| *of != by).all(|of| net.seen(by, of) == NodeState::Up),
                "at {} by {by}",
                net.now
            );
        }
    }
    let most = net.nodes[3].as_mut().unwrap().tick(net.now + TICK).iter().map(|(_, p)| p.encode().len()).max();
    assert!(most < Some(1_200), "{most:?}");
}

#[test]
fn one_that_dies_is_suspect_then_gone_and_comes_back_in_a_new_life() {
    let mut net = Net::new(5);
    net.run(2_000);
    net.nodes[4] = None;
    net.run(2_000);
    assert_eq!(net.seen(0, 4), NodeState::Up);
    net.run(1_600);
    assert_eq!(net.seen(0, 4), NodeState::Suspect);
    net.run(30_000);
    assert_eq!(net.seen(0, 4), NodeState::Gone);
    net.nodes[4] = Some(node(4, 5, 3, net.now));
    net.run(4_000);
    assert!((0..4).all(|by| net.seen(by, 4) == NodeState::Up));
    assert!(net.nodes[4].as_ref().unwrap().me.incarnation > 5, "its clock went back: others tell it of its last life");
}

#[test]
fn one_that_is_expected_and_never_comes_is_gone_in_the_end() {
    let mut net = Net::new(3);
    net.nodes[2] = None;
    net.run(9_000);
    assert_eq!(net.seen(0, 2), NodeState::Expected);
    net.run(2_000);
    assert_eq!((net.seen(0, 2), net.seen(0, 1)), (NodeState::Gone, NodeState::Up));
}

#[test]
fn a_stranger_that_knows_one_is_known_to_all() {
    let mut net = Net::new(4);
    net.run(1_000);
    let mut stranger = node(4, 0, 1, net.now);
    stranger.expect("n1", Some(address(1)));
    net.nodes.push(Some(stranger));
    net.run(3_000);
    assert!((0..4).all(|by| net.seen(by, 4) == NodeState::Up && net.seen(4, by) == NodeState::Up));
}

#[test]
fn one_that_is_in_no_list_is_heard_by_nobody() {
    let mut net = Net::new(4);
    net.nodes.iter_mut().flatten().for_each(Gossip::close);
    net.run(1_000);
    let mut rogue = node(4, 0, 1, net.now);
    rogue.expect("n1", Some(address(1)));
    net.nodes.push(Some(rogue));
    net.run(3_000);
    let rogue = net.nodes[4].as_ref().unwrap();
    assert!(!rogue.nodes.contains_key(&node_key("n2")), "it was told of another node");
    for by in net.nodes[..4].iter().flatten() {
        assert_eq!((by.nodes.len(), by.nodes.contains_key(&node_key("n4"))), (3, false));
    }
    assert!((0..4).all(|by| (0..4).all(|of| by == of || net.seen(by, of) == NodeState::Up)));
}

#[test]
fn both_sides_of_a_partition_find_back() {
    let mut net = Net::new(6);
    net.run(2_000);
    net.cut = Box::new(|a, b| (a < 3) != (b < 3));
    net.run(60_000);
    assert_eq!((net.seen(0, 5), net.seen(0, 1), net.seen(4, 3)), (NodeState::Gone, NodeState::Up, NodeState::Up));
    net.cut = Box::new(|_, _| false);
    net.run(4_000);
    assert!((3..6).all(|of| net.seen(0, of) == NodeState::Up));
}

#[test]
fn goodbye_is_heard_at_once_and_a_node_that_was_stopped_blames_nobody() {
    let mut net = Net::new(3);
    net.run(2_000);
    net.nodes[2].as_mut().unwrap().leave();
    net.run(TICK);
    net.nodes[2] = None;
    net.run(TICK);
    assert_eq!((net.seen(0, 2), net.seen(1, 2)), (NodeState::Left, NodeState::Left));
    // Who comes later hears of it, before it has waited in vain.
    net.run(40_000);
    net.nodes[1] = Some(node(1, 3, 9, net.now));
    net.run(1_000);
    assert_eq!((net.seen(1, 2), net.seen(1, 0)), (NodeState::Left, NodeState::Up));
    // It has that from hearsay, and does not pass it on.
    let tells = |n: usize| {
        let payloads = net.nodes[n].as_ref().unwrap().payloads(net.now);
        payloads.iter().flat_map(|p| &p.beats).any(|b| b.beat == GOODBYE_BEAT)
    };
    assert_eq!((tells(0), tells(1)), (true, false));
    net.now += 20_000;
    net.run(TICK);
    assert_eq!((net.seen(0, 1), net.seen(0, 2)), (NodeState::Up, NodeState::Left));
    net.run(FORGET_AFTER_MS + 25_000);
    assert_eq!((net.seen(0, 1), net.seen(0, 2)), (NodeState::Up, NodeState::Gone));
}
