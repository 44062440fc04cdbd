use super::transport::Links;
use super::*;
use crate::directory::NodeState;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

fn at(n: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 100 + n))
}

fn options(n: u16, of: u16) -> Options {
    Options {
        me: format!("n{n}"),
        listen: at(n),
        files: at(n),
        members: (0..of).map(|o| (format!("n{o}"), Some(at(o)))).collect(),
        key: [7; 32],
        is_closed: false,
        join_timeout: Duration::from_secs(30),
        interval: Duration::from_millis(20),
        encrypt: false,
    }
}

fn start(links: &Links, n: u16, of: u16) -> Membership {
    Membership::start_on(&options(n, of), links.end(at(n)), &Handle::current()).unwrap()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20), "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn standing(of: &Membership, name: &str) -> Option<NodeState> {
    let view = of.view();
    view.get(view.number(name)?).map(|m| m.standing)
}

#[tokio::test]
async fn nodes_find_each_other_lose_each_other_and_say_goodbye() {
    let links = Links::default();
    let (a, b) = (start(&links, 0, 3), start(&links, 1, 3));
    let changes = a.changes();
    until("two are up", || a.view().count_up() == 2 && b.view().count_up() == 2).await;
    assert_eq!(standing(&a, "n2"), Some(NodeState::Expected));
    assert!(*changes.borrow() > 0);
    links.cut(at(0), at(1), true);
    until("they are apart", || standing(&a, "n1") == Some(NodeState::Suspect)).await;
    links.cut(at(0), at(1), false);
    until("they are together", || a.view().count_up() == 2 && b.view().count_up() == 2).await;
    let view = a.view();
    let of_b = view.get(view.number("n1").unwrap()).unwrap();
    assert_eq!((of_b.address, of_b.incarnation), (Some(at(1)), b.incarnation()));
    drop(b);
    until("it left", || standing(&a, "n1") == Some(NodeState::Left)).await;
    let again = start(&links, 1, 3);
    until("it is back", || a.view().count_up() == 2 && again.view().count_up() == 2).await;
}

#[tokio::test]
async fn what_readers_come_upon_counts_at_once_and_a_join_ends_it() {
    let links = Links::default();
    let (a, b) = (start(&links, 0, 2), start(&links, 1, 2));
    until("two are up", || a.view().count_up() == 2).await;
    a.report_failure(1, b.incarnation());
    assert_eq!(standing(&a, "n1"), Some(NodeState::Suspect));
    a.report_success(1);
    assert_eq!(standing(&a, "n1"), Some(NodeState::Up));
    a.report_failure(1, 0);
    assert_eq!(standing(&a, "n1"), Some(NodeState::Up), "it was asked before it was there");
    a.report_failure(1, b.incarnation());
    let peer = b.peers().into_iter().find(|p| p.name == "n1").unwrap();
    assert!(a.joined(&peer).is_up(1), "the view that a join returns has it up");
}

#[tokio::test]
async fn one_that_joins_is_up_before_any_gossip() {
    let links = Links::default();
    let a = start(&links, 0, 1);
    let peer = Peer { name: "new".into(), incarnation: 9, gossip: Some(at(9)), files: Some(at(9)) };
    let view = a.joined(&peer);
    let new = view.number("new").unwrap();
    assert!(view.is_up(new) && view.get(new).unwrap().incarnation == 9);
    let older = Peer { incarnation: 8, files: None, ..peer };
    assert_eq!(a.joined(&older).get(new).unwrap().address, Some(at(9)), "an earlier life changes nothing");
}

#[tokio::test]
async fn those_with_another_secret_are_not_heard_and_counted() {
    let links = Links::default();
    let a = start(&links, 0, 2);
    let stranger = Options { key: [8; 32], ..options(1, 2) };
    let _b = Membership::start_on(&stranger, links.end(at(1)), &Handle::current()).unwrap();
    until("forgeries are counted", || a.drops().forged > 3).await;
    assert_eq!(a.view().count_up(), 1);
}

/// Names lead nowhere at first where all nodes start at a time: they were never looked for again.
#[tokio::test]
async fn nodes_whose_addresses_come_late_find_each_other() {
    let links = Links::default();
    let lost = |n: u16| {
        let members = (0..2).map(|o| (format!("n{o}"), None)).collect();
        Membership::start_on(&Options { members, ..options(n, 2) }, links.end(at(n)), &Handle::current()).unwrap()
    };
    let (a, b) = (lost(0), lost(1));
    assert_eq!(standing(&a, "n1"), Some(NodeState::Expected));
    assert!(a.is_lost("n1") && !a.is_lost("n0") && !a.is_lost("stranger"));
    a.locate("n1", at(1));
    until("two are up", || a.view().count_up() == 2 && b.view().count_up() == 2).await;
    assert!(!a.is_lost("n1") && !b.is_lost("n0"));
}

#[tokio::test]
async fn over_udp_and_with_clear_errors() {
    let free = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (one, two) = (free(), free());
    let members = vec![("a".to_owned(), Some(one)), ("b".to_owned(), Some(two))];
    let node =
        |me: &str, listen| Options { me: me.into(), listen, files: listen, members: members.clone(), ..options(0, 0) };
    let start = |o: Options| Membership::start(&o, &Handle::current());
    let (a, b) = (start(node("a", one)).unwrap(), start(node("b", two)).unwrap());
    until("two are up", || a.view().count_up() == 2 && b.view().count_up() == 2).await;
    let e = start(node("c", one)).err().unwrap().to_string();
    assert!(e.contains(&one.to_string()) && e.contains("cluster.port"), "{e}");
    let e = start(node("c", "0.0.0.0:1".parse().unwrap())).err().unwrap().to_string();
    assert!(e.contains("one address of this node"), "{e}");
    let e = start(node("", free())).err().unwrap().to_string();
    assert!(e.contains("shorter"), "{e}");
}

#[tokio::test]
async fn nodes_that_encrypt_find_each_other_and_not_those_that_do_not() {
    let links = Links::default();
    let start = |n: u16, encrypt| {
        Membership::start_on(&Options { encrypt, ..options(n, 3) }, links.end(at(n)), &Handle::current()).unwrap()
    };
    let (a, b, open) = (start(0, true), start(1, true), start(2, false));
    until("two are up", || a.view().count_up() == 2 && b.view().count_up() == 2).await;
    until("they are counted", || a.drops().encryption > 2 && open.drops().encryption > 2).await;
    assert_eq!((open.view().count_up(), a.drops().forged), (1, 0));
}

/// What anybody can send costs a counter: no view, no answer, no memory.
#[tokio::test]
async fn a_flood_of_what_is_not_authentic_is_counted_and_changes_nothing() {
    let links = Links::default();
    let (a, b) = (start(&links, 0, 2), start(&links, 1, 2));
    until("two are up", || a.view().count_up() == 2).await;
    let attacker = links.end(at(66));
    let mut forged = b"MGS2".to_vec();
    forged.resize(900, 7);
    let before = (*a.changes().borrow(), a.drops());
    for n in 0..2_000 {
        attacker.send(at(0), if n % 2 == 0 { &forged } else { b"GET / HTTP/1.1" });
        if n % 100 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    until("all are counted", || a.drops().forged == 1_000 && a.drops().foreign == 1_000).await;
    assert_eq!((*a.changes().borrow(), before.1.other), (before.0, a.drops().other));
    assert!(a.view().count_up() == 2 && b.view().count_up() == 2);
}
