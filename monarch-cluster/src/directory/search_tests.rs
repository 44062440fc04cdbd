use super::*;
use crate::directory::NodeState;

const INDEX: [u8; 16] = [1; 16];

/// This node and two more, and a file whose order is theirs by name.
fn three(order: [&str; 3]) -> (Members, Residency, File) {
    let mut view = Members::new("me");
    view.add("b", NodeState::Up).unwrap();
    view.add("c", NodeState::Up).unwrap();
    let wanted: Vec<u16> = order.iter().map(|n| view.number(n).unwrap()).collect();
    let fp = (0..).find(|fp| view.order(*fp).eq(wanted.iter().copied())).unwrap();
    let mut known = Residency::new();
    known.add_index(INDEX, 4);
    (view, known, File { index: INDEX, id: 2, fp })
}

#[test]
fn one_that_waits_for_this_node_is_not_asked() {
    let (view, known, file) = three(["b", "c", "me"]);
    let mut search = Search::new();
    assert_eq!(search.next(&file, &known, &view, |node| node == 1), Route::Pfs);
    assert_eq!(search.next(&file, &known, &view, |node| node == 2), Route::Ask(1));
}

#[test]
fn the_first_is_asked_then_the_next_then_the_pfs() {
    let (view, known, file) = three(["b", "me", "c"]);
    assert_eq!(known.route(&file, &view, &[], 0), Route::Ask(1));
    assert_eq!(known.route(&file, &view, &[1], 0), Route::Pfs, "this node is next in order");
    assert_eq!(known.route(&file, &view, &[], MAX_HOPS), Route::Pfs);
    let (mut view, known, file) = three(["b", "c", "me"]);
    assert_eq!(known.route(&file, &view, &[1], 0), Route::Ask(2));
    view.set(1, NodeState::Suspect);
    assert_eq!(known.route(&file, &view, &[], 0), Route::Ask(2));
}

#[test]
fn whoever_answers_for_a_file_asks_the_other_holder() {
    let (mut view, mut known, file) = three(["me", "b", "c"]);
    assert_eq!(known.route(&file, &view, &[], 0), Route::Pfs);
    known.held(2, &file);
    assert_eq!(known.route(&file, &view, &[], 0), Route::Ask(2));
    assert_eq!(known.route(&file, &view, &[2], 0), Route::Pfs);
    assert_eq!(known.route(&file, &view, &[], MAX_HOPS), Route::Pfs);
    view.set(2, NodeState::Gone);
    assert_eq!(known.route(&file, &view, &[], 0), Route::Pfs);
}

#[test]
fn a_redirect_to_one_that_did_not_answer_makes_the_giver_do_it() {
    let (view, known, file) = three(["b", "c", "me"]);
    let mut search = Search::new();
    assert_eq!((search.next(&file, &known, &view, |_| false), search.hops()), (Route::Ask(1), 0));
    search.failed(1);
    assert_eq!(search.next(&file, &known, &view, |_| false), Route::Ask(2));
    search.redirected(2, 1);
    assert_eq!((search.next(&file, &known, &view, |_| false), search.hops()), (Route::Ask(2), MAX_HOPS));
    search.failed(2);
    assert_eq!(search.next(&file, &known, &view, |_| false), Route::Pfs);
    assert_eq!(search.tried(), [1, 2]);
}

#[test]
fn one_that_is_named_again_is_to_do_the_work() {
    let (view, known, file) = three(["b", "c", "me"]);
    let mut search = Search::new();
    assert_eq!(search.next(&file, &known, &view, |_| false), Route::Ask(1));
    search.redirected(1, 2);
    assert_eq!((search.next(&file, &known, &view, |_| false), search.hops()), (Route::Ask(2), 1));
    search.redirected(2, 1);
    assert_eq!((search.next(&file, &known, &view, |_| false), search.hops()), (Route::Ask(1), MAX_HOPS));
}

#[test]
fn a_refusal_ends_the_search_and_so_do_endless_redirects() {
    let (view, known, file) = three(["b", "c", "me"]);
    let mut search = Search::new();
    for n in 0..MAX_ASKS {
        assert_eq!(search.next(&file, &known, &view, |_| false), Route::Ask(1 + u16::from(n % 2)));
        search.redirected(1 + u16::from(n % 2), 1 + u16::from((n + 1) % 2));
    }
    assert_eq!(search.next(&file, &known, &view, |_| false), Route::Pfs);
    let mut search = Search::new();
    search.refused();
    assert_eq!(search.next(&file, &known, &view, |_| false), Route::Pfs);
}
