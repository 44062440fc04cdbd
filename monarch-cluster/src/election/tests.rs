use super::*;

const ROOT: u64 = 7;

fn offered(e: &Election) {
    e.have(ROOT, Box::new(|| Ok(Arc::new(vec![1, 2, 3]))));
}

/// A node that asked for an index while another one was still being sent it got the index as it
/// was before files changed.
#[test]
fn an_index_is_made_anew_when_files_have_changed() {
    let e = Election::default();
    offered(&e);
    let bytes = || match e.asked(ROOT, "b", true) {
        Answer::Send(offer) => offer.bytes().unwrap(),
        _ => panic!("it is here"),
    };
    let (sent, again) = (bytes(), bytes());
    e.rest();
    assert!(Arc::ptr_eq(&sent, &again) && Arc::ptr_eq(&sent, &bytes()), "somebody is being sent it");
    e.renew();
    assert!(!Arc::ptr_eq(&sent, &bytes()));
}

#[test]
fn of_two_that_bid_one_scans_in_whatever_order_they_hear_of_each_other() {
    // Each order of: a bids, b bids, a asks b, b asks a, a decides, b decides, in which each
    // node's steps stay in order.
    fn go(steps: &mut Vec<u8>, left: [u8; 2], seen: &mut usize) {
        if left == [0, 0] {
            let nodes = [("a", Election::default()), ("b", Election::default())];
            let (mut replies, mut scans) = ([None, None], [false; 2]);
            let mut done = [0; 2];
            for &n in steps.iter() {
                let (me, other) = (&nodes[n as usize], &nodes[1 - n as usize]);
                match done[n as usize] {
                    0 => me.1.bid(ROOT),
                    1 => replies[n as usize] = Some(other.1.heard(ROOT, me.0, other.0)),
                    _ => {
                        let yielded = replies[n as usize] == Some(Reply::Yield);
                        scans[n as usize] = yielded && me.1.scan(ROOT, &Arc::default());
                    }
                }
                done[n as usize] += 1;
            }
            assert!(!(scans[0] && scans[1]), "{steps:?}");
            assert!(scans[0] || scans[1] || replies.contains(&Some(Reply::Scanning(0))), "{steps:?} {replies:?}");
            *seen += 1;
            return;
        }
        for n in 0..2u8 {
            if left[n as usize] > 0 {
                let mut left = left;
                left[n as usize] -= 1;
                steps.push(n);
                go(steps, left, seen);
                steps.pop();
            }
        }
    }
    let mut seen = 0;
    go(&mut Vec::new(), [3, 3], &mut seen);
    assert_eq!(seen, 20);
}

#[test]
fn what_has_come_goes_on_before_it_is_served_here_and_as_it_came() {
    let e = Election::default();
    e.bid(ROOT);
    e.wait(ROOT);
    assert!(matches!(e.asked(ROOT, "c", false), Answer::Wait));
    e.relay(ROOT, Arc::new(vec![7, 8]));
    assert!(e.is_pending(), "files of it cannot be had here yet");
    let sent = |e: &Election| match e.asked(ROOT, "c", false) {
        Answer::Send(offer) => offer.bytes().unwrap(),
        _ => panic!("not sent"),
    };
    assert_eq!((e.heard(ROOT, "c", "b"), sent(&e).as_slice()), (Reply::Have, &[7, 8][..]));
    let Answer::Send(before) = e.asked(ROOT, "d", false) else { panic!("not sent") };
    offered(&e);
    assert_eq!((e.is_pending(), sent(&e).as_slice()), (false, &[7, 8][..]));
    assert_eq!(before.bytes().unwrap().as_slice(), [7, 8], "who was answered before still gets it");
    drop(before);
    // Its memory is given back; what is packed next is what is here.
    e.rest();
    assert_eq!(sent(&e).as_slice(), [1, 2, 3]);
    e.relay(ROOT, Arc::new(vec![7]));
    e.give_up(ROOT);
    assert!(matches!(e.asked(ROOT, "c", false), Answer::No));
}

#[test]
fn who_has_it_says_so_and_who_gave_up_does_not() {
    let e = Election::default();
    assert_eq!(e.heard(ROOT, "b", "a"), Reply::Yield);
    e.bid(ROOT);
    let progress = Arc::new(ScanProgress::default());
    assert!(e.scan(ROOT, &progress) && !e.scan(ROOT, &progress));
    progress.calls.store(3, Ordering::Relaxed);
    assert_eq!(e.heard(ROOT, "A", "a"), Reply::Scanning(3));
    offered(&e);
    assert_eq!(e.heard(ROOT, "b", "a"), Reply::Have);
    e.give_up(ROOT);
    assert_eq!(e.heard(ROOT, "b", "a"), Reply::Yield);
    assert!(matches!(e.asked(ROOT, "b", false), Answer::No));
}

#[test]
fn replies_are_read_as_they_are_written() {
    for reply in [Reply::Have, Reply::Scanning(0), Reply::Scanning(u64::MAX), Reply::First, Reply::Yield] {
        assert_eq!(Reply::of(reply.text().as_bytes()), Some(reply));
    }
    for text in ["", "scanning", "scanning ", "scanning -1", "scanning 1 ", "scanning 18446744073709551616", "haves"] {
        assert_eq!(Reply::of(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn askers_form_a_tree_in_which_nobody_sends_often() {
    let e = Election::default();
    e.bid(ROOT);
    e.scan(ROOT, &Arc::default());
    assert!(matches!(e.asked(ROOT, "n0", false), Answer::Wait));
    offered(&e);
    let mut children: HashMap<String, usize> = HashMap::new();
    for n in 0..500 {
        let parent = match e.asked(ROOT, &format!("n{n}"), false) {
            Answer::Send(_) => "root".to_owned(),
            Answer::From(parent) => parent,
            other => panic!("{other:?}"),
        };
        assert!(parent == "root" || parent[1..].parse::<usize>().unwrap() < n);
        *children.entry(parent).or_default() += 1;
    }
    assert!(children.values().all(|n| *n <= FANOUT));
    assert!(matches!(e.asked(ROOT, "n499", true), Answer::Send(_)));
}

#[test]
fn nodes_that_are_gone_are_no_parents() {
    let e = Election::default();
    offered(&e);
    for n in 0..20 {
        e.asked(ROOT, &format!("n{n}"), false);
    }
    (0..10).for_each(|n| e.forget(&format!("n{n}")));
    assert_eq!(e.roots()[&ROOT].askers.len(), 10);
    for n in 10..40 {
        match e.asked(ROOT, &format!("n{n}"), false) {
            Answer::Send(_) => assert!(n < 10 + FANOUT as u32),
            Answer::From(parent) => assert!((10..n).contains(&parent[1..].parse().unwrap()), "{n}: {parent}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_others_ask_takes_bounded_room() {
    let e = Election::default();
    for root in 0..1000 {
        assert_eq!(e.heard(root, "b", "a"), Reply::Yield);
        assert!(matches!(e.asked(root, "b", false), Answer::No));
    }
    assert!(e.roots().is_empty(), "roots that this node does not need");
    offered(&e);
    for n in 0..MAX_NODES + 1000 {
        assert!(matches!(e.asked(ROOT, &format!("n{n}"), false), Answer::Send(_) | Answer::From(_)));
    }
    assert_eq!(e.roots()[&ROOT].askers.len(), MAX_NODES);
}

#[test]
fn packed_bytes_are_made_once_and_given_back() {
    let e = Election::default();
    offered(&e);
    let Answer::Send(offer) = e.asked(ROOT, "b", false) else { panic!() };
    let bytes = offer.bytes().unwrap();
    assert!(Arc::ptr_eq(&bytes, &offer.bytes().unwrap()));
    e.rest();
    assert!(Arc::ptr_eq(&bytes, &offer.bytes().unwrap()), "somebody is being sent it");
    drop(bytes);
    e.rest();
    assert_eq!(*offer.bytes().unwrap(), [1, 2, 3]);
}

/// They have nothing else to do: the node that scans has them read directories.
#[test]
fn the_nodes_that_wait_for_a_scan_are_known() {
    let e = Election::default();
    e.bid(ROOT);
    e.asked(ROOT, "b", false);
    assert!(e.askers(ROOT).is_empty(), "it is not known yet which node scans");
    assert!(e.scan(ROOT, &Arc::default()));
    for from in ["b", "c", "b"] {
        assert!(matches!(e.asked(ROOT, from, false), Answer::Wait));
    }
    assert_eq!((e.askers(ROOT), e.askers(ROOT + 1)), (vec!["b".to_owned(), "c".to_owned()], vec![]));
    e.forget("b");
    assert_eq!(e.askers(ROOT), ["c"]);
}
