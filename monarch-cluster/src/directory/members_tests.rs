use super::*;
use proptest::prelude::*;

fn cluster(me: usize, nodes: usize) -> Members {
    let mut members = Members::new(&format!("node{me}"));
    for n in (0..nodes).filter(|n| *n != me) {
        members.add(&format!("node{n}"), NodeState::Up).unwrap();
    }
    members
}

fn fps(n: u64) -> impl Iterator<Item = u64> {
    (0..n).map(|i| xxh3_64(&i.to_le_bytes()))
}

fn name(members: &Members, node: u16) -> Arc<str> {
    members.get(node).unwrap().name.clone()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn all_nodes_agree_whatever_numbers_they_gave(me in 0..20usize, nodes in 20..40usize) {
        let (a, b) = (cluster(0, nodes), cluster(me, nodes));
        for fp in fps(50) {
            prop_assert_eq!(name(&a, a.owner(fp)), name(&b, b.owner(fp)));
            let names = |m: &Members| m.order(fp).map(|n| name(m, n)).collect::<Vec<_>>();
            prop_assert_eq!(names(&a).len(), nodes);
            prop_assert_eq!(names(&a), names(&b));
            prop_assert_eq!(a.order(fp).next(), Some(a.owner(fp)));
        }
    }

    #[test]
    fn a_node_that_goes_moves_its_own_files_and_no_others(nodes in 2..40usize, gone in 1..40u16) {
        let before = cluster(0, nodes);
        let gone = 1 + (gone - 1) % (nodes as u16 - 1);
        for standing in [NodeState::Suspect, NodeState::Gone] {
            let mut after = before.clone();
            prop_assert!(after.set(gone, standing));
            for fp in fps(200) {
                let (was, is) = (before.answerer(fp), after.answerer(fp));
                prop_assert!(is != gone && (was == is || was == gone));
                prop_assert!(was != gone || Some(is) == before.order(fp).nth(1));
                let belongs_to = if standing == NodeState::Gone { is } else { was };
                prop_assert_eq!(after.owner(fp), belongs_to);
            }
            prop_assert!(after.set(gone, NodeState::Up));
            prop_assert!(fps(200).all(|fp| before.owner(fp) == after.owner(fp)));
        }
    }
}

#[test]
fn files_are_spread_evenly() {
    let members = cluster(0, 64);
    let mut shares = vec![0_u32; 64];
    for fp in fps(64_000) {
        shares[usize::from(members.owner(fp))] += 1;
    }
    // 1000 each; five standard deviations of a binomial are 157.
    assert!(shares.iter().all(|n| (843..1157).contains(n)), "{shares:?}");
}

#[test]
fn one_that_is_expected_or_silent_or_took_leave_owns_and_does_not_answer() {
    let mut members = Members::new("a");
    let b = members.add("b", NodeState::Expected).unwrap();
    let of_b: Vec<u64> = fps(100).filter(|fp| members.owner(*fp) == b).collect();
    assert!((30..70).contains(&of_b.len()));
    assert!(of_b.iter().all(|fp| members.answerer(*fp) == ME));
    assert!(members.set(b, NodeState::Up) && !members.set(b, NodeState::Up));
    assert!(of_b.iter().all(|fp| members.answerer(*fp) == b));
    assert!(!members.set(ME, NodeState::Gone) && !members.set(9, NodeState::Up));
    // One that did not answer a reader for a moment had all of its files read from the PFS by
    // others.
    for silent in [NodeState::Suspect, NodeState::Left] {
        assert!(members.set(b, silent));
        assert!(of_b.iter().all(|fp| (members.owner(*fp), members.answerer(*fp)) == (b, ME)));
    }
    assert!(members.set(b, NodeState::Gone) && of_b.iter().all(|fp| members.owner(*fp) == ME));
    assert!(members.set(b, NodeState::Up));
    assert_eq!((members.count(), members.count_up(), members.is_up(b), members.is_up(7)), (2, 2, true, false));
}

#[test]
fn numbers_are_kept_and_bounded() {
    let mut members = Members::new("me");
    let b = members.add("b", NodeState::Expected).unwrap();
    members.set(b, NodeState::Gone);
    members.locate(b, 4, None);
    assert_eq!((members.add("b", NodeState::Up), members.get(b).unwrap().standing), (Ok(b), NodeState::Gone));
    let mut full = members.clone();
    full.nodes = vec![members.nodes[0].clone(); MAX_NODES];
    let e = full.add("one more", NodeState::Up).unwrap_err().to_string();
    assert!(e.contains("\"one more\"") && e.contains("fewer nodes"), "{e}");
}
