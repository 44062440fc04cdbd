use super::*;

fn at(n: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], n))
}

fn peer(name: &str, life: u64) -> Peer {
    Peer { name: name.into(), incarnation: life, gossip: Some(at(1)), files: Some(at(2)) }
}

fn record(life: u64, refutations: u32, status: Status) -> Record {
    Record { status, ..Record::of_peer(&peer("a", life), refutations) }
}

fn table() -> Table {
    let mut table = Table::new(&peer("me", 5), 0, 1_000);
    table.expect("a", None);
    table
}

/// The precedence of SWIM, over all pairs: what is known, and what is told.
#[test]
fn the_higher_incarnation_counts_and_of_one_incarnation_the_later_status() {
    let all = [1, 2].into_iter().flat_map(|life| {
        [0, 1].into_iter().flat_map(move |refutations| {
            [Status::Alive, Status::Silent, Status::Left].map(|status| record(life, refutations, status))
        })
    });
    let all: Vec<Record> = all.collect();
    for known in &all {
        for told in &all {
            let mut table = table();
            assert_eq!(table.merge(known, 0), Merged::Changed(1));
            let merged = table.merge(told, 0);
            let rank = |r: &Record| (r.incarnation, r.status);
            let expected = match rank(told).cmp(&rank(known)) {
                std::cmp::Ordering::Less => Merged::Outdated(1),
                std::cmp::Ordering::Equal => Merged::Nothing,
                std::cmp::Ordering::Greater => Merged::Changed(1),
            };
            assert_eq!(merged, expected, "{known:?} then {told:?}");
            let best = if rank(told) > rank(known) { told } else { known };
            assert_eq!(table.record(1, 0, true).as_ref(), Some(best));
            let is_alive = best.status == Status::Alive;
            assert_eq!((table.alive().len(), table.absent().len()), if is_alive { (1, 0) } else { (0, 1) });
        }
    }
}

#[test]
fn states_pass_with_time() {
    let mut table = table();
    let standing = |table: &Table, now| table.standing(table.get(1), now);
    assert_eq!((standing(&table, 999), standing(&table, 1_000)), (NodeState::Expected, NodeState::Gone));
    table.merge(&record(1, 0, Status::Alive), 2_000);
    assert_eq!(standing(&table, 900_000), NodeState::Up);
    table.suspect(1, 900_000);
    assert_eq!((standing(&table, 929_999), standing(&table, 930_000)), (NodeState::Suspect, NodeState::Gone));
    table.excuse(5_000);
    assert_eq!((standing(&table, 934_999), standing(&table, 935_000)), (NodeState::Suspect, NodeState::Gone));
    let left = Record { age_s: 100, ..record(1, 0, Status::Left) };
    table.merge(&left, 1_000_000);
    assert_eq!((standing(&table, 1_499_999), standing(&table, 1_500_000)), (NodeState::Left, NodeState::Gone));
}

#[test]
fn a_life_counts_only_when_its_contact_is_known() {
    let mut table = table();
    let short = |life, status| Record { contact: None, ..record(life, 0, status) };
    let key = node_key("a");
    assert_eq!(table.merge(&short(1, Status::Alive), 0), Merged::Unknown(key));
    assert_eq!(table.merge(&short(1, Status::Left), 0), Merged::Changed(1), "a node of the list left");
    assert_eq!(table.merge(&short(2, Status::Alive), 0), Merged::Unknown(key));
    assert_eq!(table.merge(&record(2, 0, Status::Alive), 0), Merged::Changed(1));
    assert_eq!(table.merge(&Record { contact: None, ..record(2, 1, Status::Alive) }, 0), Merged::Changed(1));
    assert_eq!(table.get(1).contact.files, Some(at(2)));
    assert_eq!(table.merge(&short(3, Status::Alive), 0), Merged::Unknown(key), "its files may be elsewhere now");
}

#[test]
fn a_record_about_this_node_is_refuted_unless_it_is_true_or_of_an_earlier_life() {
    let mut table = table();
    let told = |life, refutations, status| Record { status, ..Record::of_peer(&peer("me", life), refutations) };
    for harmless in [told(5, 0, Status::Alive), told(4, 9, Status::Left), told(4, 9, Status::Alive)] {
        assert_eq!(table.merge(&harmless, 0), Merged::Nothing, "{harmless:?}");
    }
    for wrong in
        [told(5, 0, Status::Silent), told(5, 0, Status::Left), told(5, 3, Status::Alive), told(6, 0, Status::Alive)]
    {
        assert_eq!(table.merge(&wrong, 0), Merged::Refutable(wrong.incarnation), "{wrong:?}");
    }
    table.refute(Incarnation { life: 5, refutations: 3 });
    assert_eq!(table.get(ME).incarnation, Incarnation { life: 5, refutations: 4 });
    table.refute(Incarnation { life: 8, refutations: 3 });
    assert_eq!(table.get(ME).incarnation, Incarnation { life: 9, refutations: 0 }, "a clock went back");
    table.leave(10);
    assert_eq!(table.merge(&told(9, 0, Status::Silent), 20), Merged::Nothing);
}

#[test]
fn one_that_presents_itself_is_alive_whatever_others_believe_of_this_life() {
    let mut table = table();
    for status in [Status::Silent, Status::Left] {
        table.merge(&record(3, 2, status), 0);
        assert_eq!(table.present(&peer("a", 3), 10), Some(1));
        assert!(table.get(1).is_alive());
    }
    table.merge(&record(4, 0, Status::Silent), 0);
    assert_eq!(table.present(&peer("a", 3), 10), None, "of an earlier life");
    assert!(!table.get(1).is_alive());
}

/// Nodes that come and go under new names are not passed round for ever.
#[test]
fn a_stranger_that_does_not_answer_is_told_for_a_while_only() {
    let mut table = table();
    let stranger = |status, age_s| Record { status, age_s, ..Record::of_peer(&peer("stranger", 1), 0) };
    let limit = (TELL_FOR_MS / 1_000) as u32;
    assert_eq!(table.merge(&stranger(Status::Silent, limit + 1), 0), Merged::Nothing);
    assert_eq!(table.merge(&stranger(Status::Silent, limit - 1), 0), Merged::Changed(2));
    assert!(table.record(2, 1_000, false).is_some() && table.record(2, 1_001, false).is_none());
    assert!(table.get(2).is_sought(FORGET_AFTER_MS / 2) && !table.get(2).is_sought(FORGET_AFTER_MS));
    table.merge(&record(1, 0, Status::Silent), 0);
    let later = 100 * FORGET_AFTER_MS;
    assert!(table.record(1, later, false).is_some() && table.get(1).is_sought(later), "it is in the list");
}

#[test]
fn lists_of_the_alive_and_the_absent_stay_right_while_members_change() {
    let mut table = Table::new(&peer("me", 5), 0, 0);
    let name = |n: u64| format!("node{n}");
    let mut chance = super::super::rotation::Chance::new(1);
    for step in 0..2_000 {
        let who = name(chance.below(40) as u64);
        let life = 1 + chance.next() % 3;
        let status = [Status::Alive, Status::Silent, Status::Left][chance.below(3)];
        table.merge(&Record { status, ..Record::of_peer(&peer(&who, life), chance.below(9) as u32) }, step);
        let mut both: Vec<u16> = table.alive().iter().chain(table.absent()).copied().collect();
        both.sort_unstable();
        assert!(both.iter().copied().eq(1..table.members().count() as u16));
        assert!(table.alive().iter().all(|n| table.get(*n).is_alive()));
        assert!(!table.absent().iter().any(|n| table.get(*n).is_alive()));
    }
}

#[test]
fn no_more_members_are_taken_in_than_a_job_can_have() {
    let mut table = Table::new(&peer("me", 5), 0, 0);
    for n in 0..MAX_NODES + 10 {
        table.merge(&Record::of_peer(&peer(&format!("n{n}"), 1), 0), 0);
    }
    assert_eq!(table.members().count(), MAX_NODES);
}
