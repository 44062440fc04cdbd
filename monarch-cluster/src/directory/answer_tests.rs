use super::*;
use crate::directory::NodeState;
use proptest::prelude::*;

const INDEX: [u8; 16] = [1; 16];
const ASKER: u16 = 1;
const OTHER: u16 = 2;

/// This node, an asker, another; and a file that `first` answers for.
fn three(first: u16) -> (Members, Residency, File) {
    let mut view = Members::new("me");
    view.add("asker", NodeState::Up).unwrap();
    view.add("other", NodeState::Up).unwrap();
    let mut known = Residency::new();
    known.add_index(INDEX, 1);
    let fp = (0..).find(|fp| view.answerer(*fp) == first).unwrap();
    (view, known, File { index: INDEX, id: 0, fp })
}

fn asked(hops: u8, keeps: bool) -> Asked {
    Asked { from: Some(ASKER), hops, keeps, busy: false }
}

#[test]
fn the_first_serves_fetches_or_names_the_holder() {
    let (view, mut known, file) = three(ME);
    assert_eq!(known.answer(&file, &view, &asked(0, false), Local::Resident), Answer::Serve);
    assert_eq!(known.answer(&file, &view, &asked(0, false), Local::Coming(None)), Answer::Serve);
    assert_eq!(known.answer(&file, &view, &asked(0, false), Local::Absent), Answer::FetchAndServe);
    assert_eq!(known.known(&file), None, "the asker keeps nothing");
    known.held(OTHER, &file);
    assert_eq!(known.answer(&file, &view, &asked(0, true), Local::Absent), Answer::Redirect(OTHER));
    assert_eq!(known.answer(&file, &view, &asked(0, true), Local::NoRoom), Answer::Redirect(OTHER));
    assert_eq!(known.answer(&file, &view, &asked(MAX_HOPS, true), Local::Absent), Answer::FetchAndServe);
    assert_eq!(known.known(&file), None, "the other was not there");
    known.sent(&file, &view, &asked(0, false));
    assert_eq!(known.known(&file), None, "the asker keeps nothing");
    known.sent(&file, &view, &asked(0, true));
    assert_eq!(known.known(&file), Some(ASKER), "the asker keeps a copy");
    assert_eq!(known.answer(&file, &view, &asked(0, true), Local::Absent), Answer::FetchAndServe, "not to itself");
    assert_eq!(known.answer(&file, &view, &asked(0, true), Local::Changed), Answer::Changed);
}

#[test]
fn the_first_without_room_lets_the_asker_read_and_sends_the_next_there() {
    let (view, mut known, file) = three(ME);
    assert_eq!(known.answer(&file, &view, &asked(0, false), Local::NoRoom), Answer::Refuse);
    assert_eq!(known.answer(&file, &view, &asked(0, true), Local::NoRoom), Answer::Delegate);
    let next = Asked { from: Some(OTHER), ..asked(0, true) };
    assert_eq!(known.answer(&file, &view, &next, Local::NoRoom), Answer::Redirect(ASKER));
    assert_eq!(known.answer(&file, &view, &Asked::default(), Local::NoRoom), Answer::Redirect(ASKER));
}

#[test]
fn others_serve_what_they_have_and_name_the_first() {
    let (view, mut known, file) = three(OTHER);
    assert_eq!(known.answer(&file, &view, &asked(0, true), Local::Resident), Answer::Serve);
    assert_eq!(known.answer(&file, &view, &asked(0, true), Local::Absent), Answer::Redirect(OTHER));
    assert_eq!(known.answer(&file, &view, &asked(MAX_HOPS, true), Local::Absent), Answer::FetchAndServe);
    assert_eq!(known.answer(&file, &view, &asked(MAX_HOPS, true), Local::NoRoom), Answer::Delegate);
    assert_eq!(known.answer(&file, &view, &asked(MAX_HOPS, false), Local::NoRoom), Answer::Refuse);
    assert_eq!(known.known(&file), None, "only the first notes holders");
    let (view, mut known, file) = three(ASKER);
    assert_eq!(
        known.answer(&file, &view, &asked(0, true), Local::Absent),
        Answer::Delegate,
        "the owner asks: it is to hold it"
    );
}

#[test]
fn who_waits_for_a_file_is_not_taken_for_one_that_has_it() {
    let (view, mut known, file) = three(ME);
    for local in [Local::Absent, Local::Coming(None)] {
        known.answer(&file, &view, &asked(0, true), local);
        assert_eq!(known.route(&file, &view, &[], 0), crate::directory::Route::Pfs, "{local:?}");
    }
    known.sent(&file, &view, &asked(0, true));
    assert_eq!(known.route(&file, &view, &[], 0), crate::directory::Route::Ask(ASKER));
}

#[test]
fn two_that_wait_for_each_other_do_not() {
    for (first, answer) in [(ME, Answer::Delegate), (ASKER, Answer::Serve), (OTHER, Answer::Delegate)] {
        let (view, mut known, file) = three(first);
        assert_eq!(known.answer(&file, &view, &asked(0, true), Local::Coming(Some(ASKER))), answer, "one of the two");
        assert_eq!(known.answer(&file, &view, &asked(0, true), Local::Coming(Some(OTHER))), Answer::Serve);
    }
}

#[test]
fn a_busy_first_spreads_its_readers() {
    let (view, mut known, file) = three(ME);
    let busy = Asked { busy: true, ..asked(0, true) };
    assert_eq!(known.answer(&file, &view, &busy, Local::Resident), Answer::Serve, "nobody else is known");
    assert_eq!(known.known(&file), Some(ASKER));
    let next = Asked { from: Some(OTHER), ..busy };
    assert_eq!(known.answer(&file, &view, &next, Local::Resident), Answer::Redirect(ASKER));
    assert_eq!(known.known(&file), Some(ASKER), "one that was sent on is not handed out: chains would grow");
    assert_eq!(known.answer(&file, &view, &Asked { hops: MAX_HOPS, ..next }, Local::Resident), Answer::Serve);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nobody_is_sent_to_itself_or_on_after_the_last_hop(
        first in 0..3u16, second in 0..4u16, hops in 0..4u8, keeps: bool, busy: bool, from in proptest::option::of(1..3u16), l in 0..6usize,
    ) {
        let (view, mut known, file) = three(first);
        known.held(second, &file);
        let local = [Local::Resident, Local::Coming(None), Local::Coming(Some(1)), Local::Absent, Local::NoRoom, Local::Changed][l];
        let answer = known.answer(&file, &view, &Asked { from, hops, keeps, busy }, local);
        if let Answer::Redirect(to) = answer {
            prop_assert!(hops < MAX_HOPS && Some(to) != from && to != ME && view.is_up(to));
        }
        prop_assert_eq!(answer == Answer::Changed, local == Local::Changed);
        prop_assert!(answer != Answer::Delegate || from.is_some());
    }
}
