use super::*;

const FILE: FileRef = FileRef { index: [1; 16], id: 7, fp: 0 };
const PIECE: Piece = (FILE, 0);
const PART: Range<u64> = 0..100;

/// A table and its clock.
struct World {
    table: RelayTable,
    now: Instant,
    /// Nodes that are not up.
    down: Vec<u16>,
}

impl World {
    fn new() -> Self {
        Self { table: RelayTable::default(), now: Instant::now(), down: Vec::new() }
    }

    fn turn(&mut self, piece: Piece, asker: u16) -> Turn {
        self.table.turn(piece, asker, self.now, |node| !self.down.contains(&node))
    }

    /// The same, without the time of a wait.
    fn ask(&mut self, asker: u16) -> Option<Turn> {
        let turn = self.turn(PIECE, asker);
        (!matches!(turn, Turn::Wait(_) | Turn::Busy(_))).then_some(turn)
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
    assert_eq!(w.ask(3), None, "the relay has sent it once");
    w.has(2);
    assert_eq!(w.ask(3), Some(Turn::Relay(2)));
    // Another piece.
    assert_eq!(w.turn((FILE, 100), 2), Turn::Here);
}

#[test]
fn a_piece_that_waits_for_the_pfs_is_not_sent_twice() {
    let mut w = World::new();
    assert_eq!(w.ask(1), Some(Turn::Here));
    for _ in 0..30 {
        w.pass(MAX_STALL);
        assert_eq!(w.ask(2), None, "this node has yet to get it");
    }
    w.table.begins(PIECE, 1, w.now);
    assert_eq!(w.ask(2), None);
    w.pass(MAX_STALL);
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
    let mut w = World::new();
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
    w.pass(MAX_STALL);
    w.has(1);
    assert_eq!(w.ask(3), Some(Turn::Relay(1)), "the second asker does not ask any more");
}

#[test]
fn a_relay_has_few_transfers_at_a_time_and_one_that_is_stuck_does_not_count() {
    let mut w = World::new();
    let piece = |n: u64| (FILE, n * 100);
    for n in 0..=MAX_ACTIVE as u64 {
        assert_eq!(w.turn(piece(n), 1), Turn::Here);
        w.table.begins(piece(n), 1, w.now);
        w.table.has(&FILE, &(n * 100..n * 100 + 100), 1, w.now);
    }
    for n in 0..MAX_ACTIVE as u64 {
        assert_eq!(w.turn(piece(n), 2), Turn::Relay(1));
    }
    let last = piece(MAX_ACTIVE as u64);
    assert!(matches!(w.turn(last, 2), Turn::Busy(_)));
    w.table.has(&FILE, &PART, 2, w.now);
    assert_eq!(w.turn(last, 2), Turn::Relay(1));
    w.pass(MAX_STALL);
    assert_eq!(w.turn(piece(1), 3), Turn::Relay(1), "two transfers are stuck");
    assert_eq!(w.table.files[&FILE].nodes[&1].active.len(), 1);
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
