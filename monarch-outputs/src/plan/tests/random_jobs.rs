//! What random jobs of the model have found.

use super::*;

/// Found by random jobs: a batch held two publications of the file, and the plan took the first one
/// for the last. The removal then cancelled the file, and the PFS had neither of its names, though
/// it had what came after the rename.
#[test]
fn a_file_that_a_batch_publishes_twice_keeps_its_turn_when_it_is_removed() {
    let mut bench = Bench::new();
    bench.write(1, "b");
    bench.copy();
    let first = bench.planner.next_step().unwrap();
    bench.planner.begin(&first);
    bench.rename(1, "b", "d");
    bench.write(2, "b");
    let second = bench.planner.next_step().unwrap();
    bench.planner.begin(&second);
    bench.unlink("d", 1, 0);
    // The batch has changed `b` already.
    bench.planner.fail(second.place);
    bench.planner.commit(&first);
    assert_eq!(bench.dropped(), [0; 0]);
    assert_eq!(bench.run(), ["d=1 -b", "b=2", "-d"]);
}

/// Found by random jobs: the part file of the second copy stayed on the PFS.
#[test]
fn a_file_that_is_written_again_and_removed_while_it_is_published_leaves_no_part_file() {
    let mut bench = Bench::new();
    bench.write(1, "c");
    bench.copy();
    let step = bench.planner.next_step().unwrap();
    bench.planner.begin(&step);
    bench.write(2, "b");
    bench.put(Op::Open, 1, 0, "c", &staged(1).name());
    bench.close(1);
    assert_eq!(bench.copy(), [2, 1]);
    bench.put(Op::Open, 1, flag::TRUNCATED, "c", &staged(1).name());
    bench.unlink("c", 1, 0);
    assert_eq!(bench.dropped(), [0; 0]);
    assert_eq!(bench.planner.commit(&step).file, Some(staged(1)));
    assert_eq!(bench.dropped(), [1]);
    assert_eq!(bench.run(), ["b=2", "-c"]);
}

/// An old journal: a file that was on the PFS is created again, renamed from `b` to `a`, and closed
/// without a record. Something else is removed, in the place of record 3. Then another file gets
/// the name `a`, while the plan of the next agent still takes the first one for open.
fn lost_by_the_next_agent(logged: &[(Place, u64)]) -> Bench {
    let mut bench = Bench::new();
    bench.planner.begin_replay();
    bench.put(Op::Open, 1, flag::NEW | flag::PUBLISHED, "b", &staged(1).name());
    bench.put(Op::Rename, 1, flag::PUBLISHED, "b", b"a");
    bench.unlink("old", 0, flag::PUBLISHED);
    bench.open(2, "a");
    for &(place, id) in logged {
        bench.planner.replay_done(place, id, false);
    }
    bench.planner.end_replay();
    bench.close(2);
    bench
}

const REMOVED: Place = Place { seq: 3, sub: 0 };

/// Found by random jobs: the next agent took the removal of `b` for done, as a later removal was
/// logged. But the agent before had found the file closed in time, was going to publish it after
/// that removal, and was killed before: `b` stayed on the PFS, and came back for the job.
#[test]
fn what_a_file_has_left_that_was_found_closed_is_removed_by_the_next_agent() {
    assert_eq!(lost_by_the_next_agent(&[(REMOVED, 0)]).run(), ["-b", "-a", "a=2"]);
}

#[test]
fn what_a_file_has_left_that_was_found_closed_is_not_removed_again() {
    let found = Place { seq: 3, sub: FOUND };
    assert_eq!(lost_by_the_next_agent(&[(REMOVED, 0), (found, 1)]).run(), ["a=2"]);
    let left = Place { seq: 2, sub: 1 };
    assert_eq!(lost_by_the_next_agent(&[(left, 0), (REMOVED, 0)]).run(), ["-a", "a=2"], "it was lost before, too");
}

#[test]
fn what_has_got_a_left_name_since_stays() {
    let mut bench = Bench::new();
    bench.planner.begin_replay();
    bench.put(Op::Open, 1, flag::NEW | flag::PUBLISHED, "b", &staged(1).name());
    bench.put(Op::Rename, 1, flag::PUBLISHED, "b", b"a");
    bench.symlink("b", "x");
    bench.open(2, "a");
    bench.planner.replay_done(Place { seq: 3, sub: 0 }, 0, false);
    bench.planner.end_replay();
    bench.close(2);
    assert_eq!(bench.run(), ["-a", "a=2"]);
}

/// Found by random jobs: the copy found the file open elsewhere, the plan took it for one that is
/// still to be closed, and published it after its removal: it came back for the job.
#[test]
fn a_removed_file_that_is_open_elsewhere_while_it_is_published_does_not_come_back() {
    let mut bench = Bench::new();
    bench.write(1, "d");
    bench.copy();
    let step = bench.planner.next_step().unwrap();
    bench.planner.begin(&step);
    bench.put(Op::Open, 1, 0, "d", &staged(1).name());
    bench.put(Op::Open, 1, 0, "d", &staged(1).name());
    bench.close(1);
    bench.rename(1, "d", "a");
    bench.unlink("a", 1, 0);
    let requests = bench.planner.take_copies(100, |_| false);
    bench.planner.copy_refused(1, requests[0].generation);
    assert!(!bench.planner.is_open(1));
    bench.planner.commit(&step);
    assert_eq!(bench.dropped(), [1]);
    assert_eq!(bench.run(), ["-d", "-a"]);
    assert!(bench.planner.is_idle());
}
