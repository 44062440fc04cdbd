//! The rules of the order, one by one.

use super::{Answer, Ask, Order, Settled};

const DEADLINE_NS: u64 = 100;

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
    alone.append(1, 5, None);
    alone.begin_round(DEADLINE_NS);
    assert!(settle(&mut alone, 0).is_some());
    assert_eq!(alone.publishable(), Some(1));
}

#[test]
fn a_marker_waits_for_a_shard_whose_call_returned_before() {
    let (mut marker, mut shard) = pair();
    shard.append(1, 501, None);
    shard.begin_round(DEADLINE_NS);
    exchange(&mut shard, &mut marker);
    assert!(settle(&mut shard, 0).is_some_and(|settled| settled.without.is_empty()));

    let stamp = marker.clock() + 1;
    marker.append(1, stamp, None);
    marker.begin_round(DEADLINE_NS);
    exchange(&mut marker, &mut shard);
    assert!(settle(&mut marker, 0).is_some());
    assert_eq!((marker.publishable(), marker.holders()), (None, vec![2]), "the shard is not published");

    exchange(&mut shard, &mut marker);
    assert_eq!(shard.publishable(), Some(1));
    shard.published(1);
    exchange(&mut marker, &mut shard);
    assert_eq!(marker.publishable(), Some(1));
}

#[test]
fn the_shard_of_a_node_that_gave_the_other_up_still_comes_first() {
    let (mut marker, mut shard) = pair();
    shard.append(1, 501, None);
    shard.begin_round(DEADLINE_NS);
    assert_eq!(shard.outcome(DEADLINE_NS - 1), None, "the call waits for the silent peer");
    assert!(settle(&mut shard, DEADLINE_NS).is_some_and(|settled| settled.without == [1]));
    assert_eq!(shard.publishable(), None, "held: the peer has not answered");

    marker.append(1, 11, None);
    marker.begin_round(DEADLINE_NS);
    let answer = exchange(&mut marker, &mut shard).expect("an answer");
    assert!(answer.owed >= 501, "{answer:?}");
    assert_eq!(marker.outcome(0), None, "the raised key is pushed before the call returns");
    exchange(&mut marker, &mut shard);
    assert!(settle(&mut marker, 0).is_some_and(|settled| settled.key > 501));
    exchange(&mut shard, &mut marker);
    assert_eq!((shard.publishable(), marker.publishable()), (Some(1), None));
}

#[test]
fn entries_with_the_same_key_are_published_by_node_number() {
    let mut nodes = [Order::new(1, 0, 0, &[2]), Order::new(2, 0, 0, &[1])];
    for node in &mut nodes {
        node.append(1, 5, Some(5));
    }
    let [one, two] = &mut nodes;
    let (of_one, of_two) = (one.answer(2, Ask { clock: 5 }), two.answer(1, Ask { clock: 5 }));
    one.answered(2, of_two);
    two.answered(1, of_one);
    assert_eq!((one.publishable(), two.publishable()), (Some(1), None));
}

#[test]
fn a_peer_that_has_left_holds_nothing() {
    let (mut stays, _) = pair();
    stays.append(1, 11, None);
    stays.begin_round(DEADLINE_NS);
    stays.leave(2);
    assert!(settle(&mut stays, 0).is_some());
    assert_eq!(stays.publishable(), Some(1));
}
