use super::*;
use crate::node::transfer_time::FIRST_STALL;

const FILE: FileRef = FileRef { index: [1; 16], id: 7, fp: 0 };
const PIECE: Piece = (FILE, 0);
const PART: Range<u64> = 0..100;

/// A table and its clock.
struct World {
    table: RelayTable,
    now: Instant,
    /// Nodes that are not up.
    down: Vec<u16>,
    /// Whether pieces have yet to come from the PFS.
    fetches: bool,
}

impl World {
    fn new() -> Self {
        Self { table: RelayTable::default(), now: Instant::now(), down: Vec::new(), fetches: false }
    }

    /// The turn of an asker. What has changed before was decided then.
    fn turn(&mut self, piece: Piece, asker: u16) -> Turn {
        let wanted = Wanted { piece, bytes: 4 << 20, is_at_hand: !self.fetches };
        self.table.decide(&piece.0, self.now, |node| !self.down.contains(&node));
        self.table.turn(wanted, asker, self.now, |node| !self.down.contains(&node))
    }

    /// The same, without the time of a wait.
    fn ask(&mut self, asker: u16) -> Option<Turn> {
        let turn = self.turn(PIECE, asker);
        (!matches!(turn, Turn::Wait(_))).then_some(turn)
    }

    fn has(&mut self, node: u16) {
        self.table.has(&FILE, &PART, node, self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }
}

/// Time of a piece over a slow link: 100 Mbit/s.
const SLOW: Duration = Duration::from_millis(336);

#[test]
fn each_node_that_has_a_piece_sends_it_to_the_next() {
    let mut w = World::new();
    assert_eq!(w.ask(1), Some(Turn::Here));
    w.table.begins(PIECE, 1, w.now);
    assert_eq!((w.ask(2), w.ask(3)), (None, None), "no relay has it");
    w.pass(SLOW);
    w.has(1);
    assert_eq!(w.ask(3), None, "the other one asked first");
    assert_eq!((w.ask(2), w.ask(4)), (Some(Turn::Relay(1)), None));
    w.pass(SLOW);
    w.has(2);
    // From the one that has sent less.
    assert_eq!((w.ask(3), w.ask(4)), (Some(Turn::Relay(2)), Some(Turn::Relay(1))));
    // Another piece.
    assert_eq!(w.turn((FILE, 100), 2), Turn::Here);
}

/// Were all pieces sent to the first asker, which then sends each on, the nodes would form a chain.
#[test]
fn different_pieces_spread_from_different_nodes() {
    let mut w = World::new();
    let is_wait = |turn: &Turn| matches!(turn, Turn::Wait(_));
    assert_eq!(w.turn(piece(0), 1), Turn::Here);
    w.table.begins(piece(0), 1, w.now);
    let others = [(1, 1), (0, 2), (1, 2), (0, 3), (1, 3)];
    assert!(others.iter().all(|(n, node)| is_wait(&w.turn(piece(*n), *node))));
    w.pass(SLOW);
    w.table.has(&FILE, &PART, 1, w.now);
    w.table.ends(piece(0), 1);
    w.table.decided();
    w.table.decide(&FILE, w.now, |_| true);
    let decided = w.table.decided();
    // The one that no other node has first, and nothing for the node that has got a piece.
    assert_eq!(decided, [(piece(1), 2), (piece(0), 3)]);
    let turns = [w.turn(piece(1), 2), w.turn(piece(0), 3), w.turn(piece(1), 1)];
    assert!(turns[..2] == [Turn::Here, Turn::Relay(1)] && is_wait(&turns[2]));
}

#[test]
fn the_turn_of_a_request_that_has_ended_goes_to_the_next() {
    let mut w = World::new();
    gets(&mut w, 1, 0..1, SLOW);
    w.fetches = true;
    assert_eq!(w.turn(piece(1), 5), Turn::Here);
    w.fetches = false;
    w.table.begins(piece(1), 5, w.now);
    assert!([2, 3].iter().all(|node| matches!(w.turn(piece(1), *node), Turn::Wait(_))));
    w.table.has(&FILE, &(100..200), 5, w.now);
    w.table.decide(&FILE, w.now, |_| true);
    assert_eq!(w.table.decided().last(), Some(&(piece(1), 2)));
    assert!(w.table.leaves(piece(1), 2));
    assert_eq!(w.turn(piece(1), 3), Turn::Relay(5), "its link is free");
}

#[test]
fn a_piece_that_came_from_the_pfs_meanwhile_is_decided_anew() {
    let mut w = World { fetches: true, ..World::new() };
    for n in 0..MAX_FETCHED as u64 {
        assert_eq!(w.turn(piece(n), 1 + n as u16), Turn::Here);
    }
    assert!(matches!(w.turn(piece(20), 40), Turn::Wait(_)));
    w.table.begins(piece(0), 1, w.now);
    w.table.decide(&FILE, w.now, |_| true);
    assert_eq!(w.table.decided().last(), Some(&(piece(20), 40)));
    w.fetches = false;
    assert!(matches!(w.turn(piece(20), 40), Turn::Wait(_)), "the link has no room");
    w.table.ends(piece(0), 1);
    assert_eq!(w.turn(piece(20), 40), Turn::Here);
}

/// It would count as late, and the one after it be named still earlier.
#[test]
fn a_transfer_that_was_decided_ahead_begins_when_the_one_before_it_ends() {
    let mut w = World::new();
    gets(&mut w, 1, 0..2, SLOW);
    assert_eq!(w.turn(piece(0), 2), Turn::Relay(1));
    w.pass(w.table.ending(4 << 20).unwrap());
    assert_eq!(w.turn(piece(1), 3), Turn::Relay(1));
    assert!(matches!(w.turn(piece(1), 4), Turn::Wait(_)), "one is enough");
    w.pass(SLOW / 8);
    w.table.has(&FILE, &PART, 2, w.now);
    w.pass(SLOW);
    w.table.has(&FILE, &(100..200), 3, w.now);
    assert_eq!(w.table.time.usual(), Some(SLOW));
}

#[test]
fn a_piece_that_waits_for_the_pfs_is_not_sent_twice() {
    let mut w = World::new();
    assert_eq!(w.ask(1), Some(Turn::Here));
    for _ in 0..30 {
        w.pass(FIRST_STALL);
        assert_eq!(w.ask(2), None, "this node has yet to get it");
    }
    w.table.begins(PIECE, 1, w.now);
    assert_eq!(w.ask(2), None);
    w.pass(FIRST_STALL);
    assert_eq!(w.ask(2), Some(Turn::Here), "the first asker is slow");
}

#[test]
fn the_next_asker_goes_first_when_this_node_had_nothing_to_send() {
    let mut w = World::new();
    assert_eq!((w.ask(1), w.ask(2)), (Some(Turn::Here), None));
    assert!(w.table.leaves(PIECE, 1));
    assert_eq!(w.ask(2), Some(Turn::Here));
    w.table.begins(PIECE, 2, w.now);
    assert!(!w.table.leaves(PIECE, 2), "it gets the piece");
    assert_eq!(w.ask(3), None);
}

#[test]
fn a_relay_that_failed_an_asker_is_not_named_for_a_while_and_the_asker_gets_the_piece_from_here() {
    let mut w = World { fetches: true, ..World::new() };
    for node in [1, 2, 3] {
        assert_eq!(w.turn((FILE, u64::from(node) * 100), node), Turn::Here);
    }
    assert_eq!((w.ask(1), w.ask(2)), (Some(Turn::Here), None));
    w.table.begins(PIECE, 1, w.now);
    w.has(1);
    assert_eq!(w.ask(2), Some(Turn::Relay(1)));
    w.table.failed(PIECE, 2, w.now);
    assert_eq!(w.ask(3), None, "the piece is about to be sent");
    w.table.begins(PIECE, 2, w.now);
    w.has(2);
    assert_eq!(w.ask(3), Some(Turn::Relay(2)));
    // The relay has another piece, and is not trusted with it.
    w.table.begins((FILE, 100), 1, w.now);
    w.table.has(&FILE, &(100..200), 1, w.now);
    assert_eq!(w.turn((FILE, 100), 2), Turn::Here);
    w.table.leaves((FILE, 100), 2);
    w.pass(BAR_PERIOD);
    assert_eq!(w.turn((FILE, 100), 3), Turn::Relay(1));
}

#[test]
fn no_node_is_sent_to_itself_or_to_one_that_is_not_up() {
    let mut w = World::new();
    assert_eq!(w.ask(1), Some(Turn::Here));
    w.table.begins(PIECE, 1, w.now);
    w.has(1);
    assert_eq!(w.ask(1), Some(Turn::Here), "it has lost its copy");
    w.table.begins(PIECE, 1, w.now);
    w.has(1);
    w.down.push(1);
    assert_eq!(w.ask(2), Some(Turn::Here));
}

/// Two nodes that were each sent to the other would wait for ever. A node is a relay only while it
/// says that it has the piece, and asks for none that it has.
#[test]
fn no_circle_of_relays_can_be_formed() {
    let mut w = World::new();
    assert_eq!((w.ask(1), w.ask(2)), (Some(Turn::Here), None));
    w.table.begins(PIECE, 1, w.now);
    w.has(1);
    assert_eq!(w.ask(2), Some(Turn::Relay(1)));
    // The relay lost the piece before it sent it.
    assert_eq!(w.ask(1), None, "the other one does not have it");
    w.table.failed(PIECE, 2, w.now);
    w.table.begins(PIECE, 2, w.now);
    w.has(2);
    assert_eq!(w.ask(1), Some(Turn::Relay(2)));
}

#[test]
fn a_silent_asker_holds_the_others_up_for_a_moment_only() {
    let mut w = World::new();
    assert_eq!((w.ask(1), w.ask(2), w.ask(3)), (Some(Turn::Here), None, None));
    w.table.begins(PIECE, 1, w.now);
    w.pass(SLOW);
    w.has(1);
    assert_eq!(w.ask(3), None, "it is the other one's turn");
    w.pass(w.table.time.stall());
    assert_eq!(w.ask(3), Some(Turn::Relay(1)), "the second asker does not ask any more");
}

/// The piece of a number.
fn piece(n: u64) -> Piece {
    (FILE, n * 100)
}

/// A node gets these pieces from here, one after the other in this time.
fn gets(w: &mut World, node: u16, pieces: Range<u64>, took: Duration) {
    for n in pieces {
        assert_eq!(w.turn(piece(n), node), Turn::Here);
        w.table.begins(piece(n), node, w.now);
        w.pass(took);
        w.table.has(&FILE, &(n * 100..n * 100 + 100), node, w.now);
    }
}

#[test]
fn a_relay_sends_one_piece_at_a_time_over_a_slow_link_and_one_that_is_stuck_does_not_count() {
    let mut w = World::new();
    gets(&mut w, 1, 0..3, SLOW);
    assert_eq!(w.turn(piece(0), 2), Turn::Relay(1));
    assert!(matches!(w.turn(piece(1), 3), Turn::Wait(_)));
    w.table.has(&FILE, &PART, 2, w.now);
    assert_eq!(w.turn(piece(1), 3), Turn::Relay(1));
    w.pass(w.table.time.stall());
    assert_eq!(w.turn(piece(2), 4), Turn::Relay(1), "the other transfer is stuck");
    assert_eq!(w.table.files[&FILE].nodes[&1].active.len(), 1);
}

#[test]
fn a_relay_sends_several_pieces_at_a_time_over_a_quick_link() {
    let mut w = World::new();
    gets(&mut w, 1, 0..8, Duration::from_millis(4));
    let most = w.table.time.pieces_at_a_time(4 << 20) as u64;
    assert!(most > 1);
    (0..most).for_each(|n| assert_eq!(w.turn(piece(n), n as u16 + 2), Turn::Relay(1)));
    assert!(matches!(w.turn(piece(most), 20), Turn::Wait(_)));
}

/// Those that wait would only share its link, and be in each other's way.
#[test]
fn an_asker_gets_the_next_piece_when_one_is_about_to_end() {
    let mut w = World::new();
    gets(&mut w, 1, 0..1, SLOW);
    assert_eq!(w.turn(piece(1), 2), Turn::Here);
    assert!(matches!(w.turn(piece(0), 2), Turn::Wait(_)), "it is about to be sent");
    w.table.begins(piece(1), 2, w.now);
    w.table.ends(piece(1), 2);
    assert!([3, 0].iter().all(|n| matches!(w.turn(piece(*n), 2), Turn::Wait(_))));
    assert_eq!(w.turn(piece(3), 3), Turn::Here, "another asker");
    w.pass(w.table.ending(4 << 20).unwrap());
    assert_eq!(w.turn(piece(0), 2), Turn::Relay(1));
}

/// Receipts are of chunks: an asker got two pieces of a chunk, and then none for a while.
#[test]
fn a_piece_that_has_arrived_is_not_on_its_way_though_its_chunk_is_not_complete() {
    let (mut w, took) = (World::new(), SLOW);
    for n in 0..3 {
        assert_eq!(w.turn(piece(n), 1), Turn::Here);
        w.table.begins(piece(n), 1, w.now);
        w.pass(took);
        w.table.arrived(piece(n), 1, w.now);
        assert!(matches!(w.turn(piece(n), 2), Turn::Wait(_)), "no relay has it");
    }
    w.table.has(&FILE, &PART, 1, w.now);
    assert_eq!(w.turn(piece(0), 2), Turn::Relay(1));
    assert_eq!(w.table.time.usual(), Some(took), "it counts once");
}

#[test]
fn pieces_that_come_from_the_pfs_are_few_and_not_all_for_one_asker() {
    let mut w = World { fetches: true, ..World::new() };
    let (most, each) = (MAX_FETCHED as u64, MAX_FETCHED_EACH as u64);
    for n in 0..most {
        let asker = 1 + (n / each) as u16;
        assert_eq!(w.turn(piece(n), asker), Turn::Here);
        if n % each == each - 1 {
            assert!(matches!(w.turn(piece(100), asker), Turn::Wait(_)));
            w.table.leaves(piece(100), asker);
        }
    }
    assert!(matches!(w.turn(piece(most), 50), Turn::Wait(_)));
    w.table.begins(piece(0), 1, w.now);
    assert_eq!(w.turn(piece(most), 50), Turn::Here);
    w.table.forget_index(&FILE.index);
    assert!(w.table.preparing.is_empty());
}

#[test]
fn pieces_that_are_at_hand_go_out_one_after_the_other_and_the_next_is_decided_late() {
    let mut w = World::new();
    assert_eq!(w.turn(piece(0), 1), Turn::Here);
    assert!(matches!(w.turn(piece(1), 2), Turn::Wait(_)));
    w.table.begins(piece(0), 1, w.now);
    assert!(matches!(w.turn(piece(1), 2), Turn::Wait(_)));
    w.table.ends(piece(0), 1);
    assert_eq!(w.turn(piece(1), 2), Turn::Here);
    w.table.leaves(piece(1), 2);
    assert_eq!(w.turn(piece(2), 3), Turn::Here);
    w.table.begins(piece(2), 3, w.now);
    w.pass(w.table.time.stall());
    assert_eq!(w.turn(piece(3), 4), Turn::Here, "the other one is stuck");
}

#[test]
fn the_table_is_bounded_and_forgets_an_index() {
    let mut w = World::new();
    let other = FileRef { id: 8, ..FILE };
    assert_eq!(w.turn((other, 0), 1), Turn::Here);
    for n in 0..MAX_PIECES as u64 {
        w.turn((FILE, n), 1);
        w.table.leaves((FILE, n), 1);
    }
    assert_eq!((w.table.pieces.len(), w.table.order.len(), w.table.files.len()), (MAX_PIECES, MAX_PIECES, 1));
    for n in 0..=MAX_ASKERS as u16 {
        w.turn((FILE, 5), n);
    }
    assert_eq!(w.table.pieces[&(FILE, 5)].askers.len(), MAX_ASKERS);
    w.table.forget_index(&[1; 16]);
    assert!(w.table.pieces.is_empty() && w.table.order.is_empty() && w.table.files.is_empty());
}

#[test]
fn what_a_node_had_a_minute_ago_is_not_asked_of_it() {
    let mut w = World::new();
    assert_eq!(w.ask(1), Some(Turn::Here));
    w.table.begins(PIECE, 1, w.now);
    w.has(1);
    w.pass(MAX_AGE + Duration::from_millis(1));
    assert_eq!(w.ask(2), Some(Turn::Here));
}

/// Pieces that one node alone asked for, as it was ahead of the others, stayed there while its link
/// sent what others could have sent.
#[test]
fn a_node_sends_first_what_it_alone_has() {
    let mut w = World::new();
    gets(&mut w, 1, 0..2, SLOW);
    gets(&mut w, 2, 2..3, SLOW);
    for node in 3..=3 + MAX_SPREAD as u16 {
        assert!(matches!(w.turn(piece(0), node), Turn::Relay(_)));
        w.pass(SLOW);
        w.table.has(&FILE, &PART, node, w.now);
    }
    assert_eq!(w.turn(piece(2), 20), Turn::Relay(2));
    w.table.decided();
    // The next asker wants both, while the other relays have enough to send.
    w.down.extend(3..=3 + MAX_SPREAD as u16);
    let waits = [w.turn(piece(5), 30), w.turn(piece(0), 30), w.turn(piece(1), 30)];
    assert_eq!(waits[0], Turn::Here);
    assert!(waits[1..].iter().all(|turn| matches!(turn, Turn::Wait(_))));
    w.table.begins(piece(5), 30, w.now);
    w.pass(SLOW);
    w.table.has(&FILE, &(500..600), 30, w.now);
    w.table.decide(&FILE, w.now, |node| !w.down.contains(&node));
    assert_eq!(w.table.decided().last(), Some(&(piece(1), 30)));
}
