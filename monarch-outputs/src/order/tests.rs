//! The rules of the order, one by one.

use super::{Answer, Ask, Order, Settled};
use crate::plan::{FOUND, Place};

const DEADLINE_NS: u64 = 100;

fn record(seq: u64) -> Place {
    Place { seq, sub: 0 }
}

fn is_next(order: &Order) -> bool {
    order.may_publish(record(1))
}

fn exchange(from: &mut Order, to: &mut Order) -> Option<Answer> {
    let ask = from.ask(to.node)?;
    let answer = to.answer(from.node, ask);
    from.answered(to.node, answer);
    Some(answer)
}

fn settle(order: &mut Order, now_ns: u64) -> Option<Settled> {
    let settled = order.outcome(now_ns)?;
    order.settle(&settled);
    Some(settled)
}

fn pair() -> (Order, Order) {
    (Order::new(1, 10, 0, &[2]), Order::new(2, 500, 0, &[1]))
}

#[test]
fn a_node_without_peers_waits_for_nothing() {
    let mut alone = Order::new(1, 0, 0, &[]);
    alone.append(record(1), 5, None);
    alone.begin_round(DEADLINE_NS);
    assert!(settle(&mut alone, 0).is_some());
    assert!(is_next(&alone));
}

#[test]
fn a_marker_waits_for_a_shard_whose_call_returned_before() {
    let (mut marker, mut shard) = pair();
    shard.append(record(1), 501, None);
    shard.begin_round(DEADLINE_NS);
    exchange(&mut shard, &mut marker);
    assert!(settle(&mut shard, 0).is_some_and(|settled| settled.without.is_empty()));

    marker.append(record(1), 11, None);
    marker.begin_round(DEADLINE_NS);
    exchange(&mut marker, &mut shard);
    assert!(settle(&mut marker, 0).is_some());
    assert_eq!((is_next(&marker), marker.holders()), (false, vec![2]), "the shard is not published");

    exchange(&mut shard, &mut marker);
    assert!(is_next(&shard));
    shard.done_before(record(2));
    exchange(&mut marker, &mut shard);
    assert!(is_next(&marker));
}

#[test]
fn the_shard_of_a_node_that_gave_the_other_up_still_comes_first() {
    let (mut marker, mut shard) = pair();
    shard.append(record(1), 501, None);
    shard.begin_round(DEADLINE_NS);
    assert_eq!(shard.outcome(DEADLINE_NS - 1), None, "the call waits for the silent peer");
    assert!(settle(&mut shard, DEADLINE_NS).is_some_and(|settled| settled.without == [1]));
    assert!(!is_next(&shard), "held: the peer has not answered");

    marker.append(record(1), 11, None);
    marker.begin_round(DEADLINE_NS);
    let answer = exchange(&mut marker, &mut shard).expect("an answer");
    assert!(answer.owed >= 501, "{answer:?}");
    assert_eq!(marker.outcome(0), None, "the raised key is pushed before the call returns");
    exchange(&mut marker, &mut shard);
    assert!(settle(&mut marker, 0).is_some_and(|settled| settled.key > 501));
    exchange(&mut shard, &mut marker);
    assert_eq!((is_next(&shard), is_next(&marker)), (true, false));
}

#[test]
fn entries_with_the_same_key_are_published_by_node_number() {
    let mut nodes = [Order::new(1, 0, 0, &[2]), Order::new(2, 0, 0, &[1])];
    for node in &mut nodes {
        node.append(record(1), 5, Some(5));
    }
    let [one, two] = &mut nodes;
    let ask = Ask { clock: 5, floor: 0, wants: 0 };
    let (of_one, of_two) = (one.answer(2, ask), two.answer(1, ask));
    one.answered(2, of_two);
    two.answered(1, of_one);
    assert_eq!((is_next(one), is_next(two)), (true, false));
}

#[test]
fn a_peer_that_has_left_holds_nothing() {
    let (mut stays, _) = pair();
    stays.append(record(1), 11, None);
    stays.begin_round(DEADLINE_NS);
    stays.leave(2);
    assert!(settle(&mut stays, 0).is_some());
    assert!(is_next(&stays));
}

/// Its place is before that of an entry that has promised its key as a floor.
#[test]
fn a_file_found_closed_has_the_key_of_the_next_entry() {
    let (mut node, mut peer) = pair();
    node.append(record(7), 11, None);
    node.begin_round(DEADLINE_NS);
    exchange(&mut node, &mut peer);
    let settled = settle(&mut node, 0).expect("a key");
    let found = Place { seq: 5, sub: FOUND };
    assert!(node.may_publish(found) && node.floor() == settled.key);
    // Where nothing follows, it gets its own.
    node.done_before(record(8));
    let (promised, found) = (node.floor(), Place { seq: 7, sub: FOUND });
    assert!(!node.may_publish(found));
    node.append(found, 11, None);
    node.begin_round(DEADLINE_NS);
    assert!(node.awaited().eq([2]));
    exchange(&mut node, &mut peer);
    assert!(settle(&mut node, 0).is_some_and(|settled| settled.key >= promised));
    assert!(node.may_publish(found) && node.first_unsettled().is_none());
}

#[test]
fn a_peer_that_waits_for_a_floor_is_told_when_it_rises() {
    let (mut marker, mut shard) = pair();
    shard.append(record(1), 501, None);
    shard.begin_round(DEADLINE_NS);
    exchange(&mut shard, &mut marker);
    settle(&mut shard, 0);
    marker.append(record(1), 11, None);
    marker.begin_round(DEADLINE_NS);
    exchange(&mut marker, &mut shard);
    settle(&mut marker, 0);
    exchange(&mut marker, &mut shard);
    exchange(&mut shard, &mut marker);
    assert!(is_next(&shard) && shard.ask(1).is_none(), "not yet");
    shard.done_before(record(2));
    let told = shard.ask(1).expect("the floor");
    shard.asked(1);
    assert!(shard.ask(1).is_none(), "once");
    marker.answer(2, told);
    assert!(is_next(&marker));
}

#[test]
fn a_file_that_is_found_closed_behind_entries_that_are_done_gets_a_key() {
    let mut alone = Order::new(1, 0, 0, &[2]);
    // An agent that is started again takes all records for entries, until the plan says otherwise.
    alone.append(record(1), 5, None);
    alone.append(record(2), 5, None);
    let settled = alone.give_up_all().unwrap();
    alone.settle(&settled);
    alone.done_before(record(3));
    let found = Place { seq: 1, sub: FOUND };
    alone.append(found, 9, None);
    let settled = alone.give_up_all().unwrap();
    assert_eq!(settled.up_to, found);
    alone.settle(&settled);
    assert!(alone.key_of(found).is_some() && alone.first_unsettled().is_none());
}
