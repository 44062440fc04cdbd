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

    fn turn(&mut self, piece: Piece, asker: u16) -> Turn {
        let wanted = Wanted { piece, bytes: 4 << 20, is_at_hand: !self.fetches };
        self.table.turn(wanted, asker, self.now, |node| !self.down.contains(&node))
    }

    /// The same, without the time of a wait.
    fn ask(&mut self, asker: u16) -> Option<Turn> {
        let turn = self.turn(PIECE, asker);
        (!matches!(turn, Turn::Wait(_) | Turn::Busy(_) | Turn::Full(_))).then_some(turn)
    }

    fn has(&mut self, node: u16) {
        self.table.has(&FILE, &PART, node, self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }
}

#[test]
fn each_node_that_has_a_piece_sends_it_to_the_next() {
    let mut w = World::new();
    assert_eq!(w.ask(1), Some(Turn::Here));
    w.table.begins(PIECE, 1, w.now);
    assert_eq!((w.ask(2), w.ask(3)), (None, None), "no relay has it");
    w.has(1);
    assert_eq!(w.ask(3), None, "the other one asked first");
    assert_eq!(w.ask(2), Some(Turn::Relay(1)));
    // To both of them, and to no more.
    assert_eq!((w.ask(3), w.ask(4)), (Some(Turn::Relay(1)), None));
    w.has(2);
    assert_eq!(w.ask(4), Some(Turn::Relay(2)));
    // Another piece.
    assert_eq!(w.turn((FILE, 100), 2), Turn::Here);
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
    w.pass(FIRST_STALL);
    w.has(1);
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
    let (mut w, took) = (World::new(), Duration::from_millis(336));
    gets(&mut w, 1, 0..3, took);
    assert_eq!(w.turn(piece(0), 2), Turn::Relay(1));
    assert!(matches!(w.turn(piece(1), 3), Turn::Busy(_)));
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
    assert!(matches!(w.turn(piece(most), 20), Turn::Busy(_)));
}

/// Those that wait would only share its link, and be in each other's way.
#[test]
fn an_asker_gets_one_piece_more_at_a_time_than_a_link_carries() {
    let (mut w, took) = (World::new(), Duration::from_millis(336));
    gets(&mut w, 1, 0..1, took);
    for n in [1, 2] {
        assert_eq!(w.turn(piece(n), 2), Turn::Here);
        w.table.begins(piece(n), 2, w.now);
        w.table.ends(piece(n), 2);
    }
    assert!(matches!(w.turn(piece(3), 2), Turn::Full(_)) && matches!(w.turn(piece(0), 2), Turn::Full(_)));
    assert_eq!(w.turn(piece(3), 3), Turn::Here, "another asker");
    w.table.has(&FILE, &(100..200), 2, w.now);
    assert_eq!(w.turn(piece(0), 2), Turn::Relay(1));
}

/// Receipts are of chunks: an asker got two pieces of a chunk, and then none for a while.
#[test]
fn a_piece_that_has_arrived_is_not_on_its_way_though_its_chunk_is_not_complete() {
    let (mut w, took) = (World::new(), Duration::from_millis(336));
    for n in 0..5 {
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
            assert!(matches!(w.turn(piece(100), asker), Turn::Busy(_)));
            w.table.leaves(piece(100), asker);
        }
    }
    assert!(matches!(w.turn(piece(most), 50), Turn::Busy(_)));
    w.table.begins(piece(0), 1, w.now);
    assert_eq!(w.turn(piece(most), 50), Turn::Here);
    w.table.forget_index(&FILE.index);
    assert!(w.table.preparing.is_empty());
}

#[test]
fn pieces_that_are_at_hand_go_out_one_after_the_other_and_the_next_is_decided_late() {
    let mut w = World::new();
    assert_eq!(w.turn(piece(0), 1), Turn::Here);
    assert!(matches!(w.turn(piece(1), 1), Turn::Busy(_)));
    w.table.begins(piece(0), 1, w.now);
    assert!(matches!(w.turn(piece(1), 1), Turn::Busy(_)));
    w.table.ends(piece(0), 1);
    assert_eq!(w.turn(piece(1), 1), Turn::Here);
    w.table.leaves(piece(1), 1);
    assert_eq!(w.turn(piece(2), 2), Turn::Here);
    w.table.begins(piece(2), 2, w.now);
    w.pass(w.table.time.stall());
    assert_eq!(w.turn(piece(3), 3), Turn::Here, "the other one is stuck");
}

#[test]
fn the_table_is_bounded_and_forgets_an_index() {
    let mut w = World::new();
    let other = FileRef { id: 8, ..FILE };
    assert_eq!(w.turn((other, 0), 1), Turn::Here);
    for n in 0..MAX_PIECES as u64 {
        w.turn((FILE, n), 1);
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
