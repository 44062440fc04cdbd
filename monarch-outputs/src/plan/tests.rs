//! A test for each rule of the plan.

mod random_jobs;

use super::file::renamed_dirs;
use super::*;
use monarch_abi::outputs::names::Staged;
use monarch_abi::outputs::record::{Header, Op, Record, flag};

/// Feeds records and answers for the PFS.
struct Bench {
    planner: Planner,
    seq: u64,
    node_news: u32,
}

fn staged(id: u64) -> Staged {
    Staged { id, dev: 1, ino: id + 1000, uid: 0, gid: 0 }
}

impl Bench {
    fn new() -> Self {
        Self { planner: Planner::default(), seq: 0, node_news: 0 }
    }

    fn put(&mut self, op: Op, id: u64, flags: u16, a: &str, b: &[u8]) -> u64 {
        self.seq += 1;
        let header = Header { seq: self.seq, id, flags, node_news: self.node_news, pid: 7, ..Header::default() };
        self.planner.record(&Record { header, op, a: a.as_bytes(), b });
        self.seq
    }

    fn open(&mut self, id: u64, name: &str) {
        self.put(Op::Open, id, flag::NEW, name, &staged(id).name());
    }

    fn close(&mut self, id: u64) -> u64 {
        self.put(Op::Close, id, 0, "", b"")
    }

    fn write(&mut self, id: u64, name: &str) {
        self.open(id, name);
        self.close(id);
    }

    fn rename(&mut self, id: u64, from: &str, to: &str) {
        self.put(Op::Rename, id, 0, from, to.as_bytes());
    }

    /// The same of a name that the PFS has.
    fn rename_published(&mut self, id: u64, from: &str, to: &str) {
        self.put(Op::Rename, id, flag::PUBLISHED, from, to.as_bytes());
    }

    fn unlink(&mut self, name: &str, id: u64, flags: u16) {
        self.put(Op::Unlink, id, flags, name, b"");
    }

    fn symlink(&mut self, name: &str, target: &str) {
        self.put(Op::Symlink, 0, 0, name, target.as_bytes());
    }

    /// The files that are not needed any more.
    fn dropped(&mut self) -> Vec<u64> {
        self.planner.take_dropped().iter().map(|file| file.staged.id).collect()
    }

    /// Copies all that may be copied; the numbers.
    fn copy(&mut self) -> Vec<u64> {
        let requests = self.planner.take_copies(100, |_| false);
        for request in &requests {
            self.planner.copied(request.staged.id, request.generation);
        }
        requests.iter().map(|request| request.staged.id).collect()
    }

    /// Does the steps that are ready: what they do.
    fn steps(&mut self) -> Vec<String> {
        let mut out = Vec::new();
        while let Some(step) = self.planner.next_step() {
            self.planner.begin(&step);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            out.push(match &step.action {
                Action::Publish(file) => {
                    let vacates: Vec<String> =
                        file.vacates.iter().map(|vacate| format!(" -{}", text(&vacate.name))).collect();
                    format!("{}={}{}", text(&file.target), file.staged.id, vacates.concat())
                }
                Action::Skip(staged) => format!("skip {}", staged.id),
                Action::Unlink(path, Guard::Nothing) => format!("~{}", text(path)),
                Action::Unlink(path, _) => format!("-{}", text(path)),
                Action::Rmdir(path) => format!("-{}/", text(path)),
                Action::Symlink(path, target) => format!("{}->{}", text(path), text(target)),
            });
            self.planner.commit(&step);
        }
        out
    }

    /// All at once, open files found to be open.
    fn run(&mut self) -> Vec<String> {
        let mut out = Vec::new();
        loop {
            for id in self.planner.to_probe() {
                self.planner.lease(id, false, false, 0);
            }
            let copied = self.copy();
            let steps = self.steps();
            if copied.is_empty() && steps.is_empty() {
                return out;
            }
            out.extend(steps);
        }
    }
}

#[test]
fn entries_are_published_in_the_order_of_their_closes() {
    let mut bench = Bench::new();
    bench.open(1, "a");
    bench.open(2, "b");
    bench.close(2);
    bench.close(1);
    bench.put(Op::Symlink, 0, 0, "l", b"a");
    bench.put(Op::Rmdir, 0, 0, "d", b"");
    bench.unlink("old", 0, flag::PUBLISHED);
    assert_eq!(bench.planner.published(), 2);
    assert_eq!(bench.run(), ["b=2", "a=1", "l->a", "-d/", "-old"]);
    assert_eq!(bench.planner.published(), 7);
    assert!(bench.planner.is_idle());
}

#[test]
fn nothing_overtakes_a_file_that_is_not_copied() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.write(2, "b");
    let requests = bench.planner.take_copies(100, |_| false);
    bench.planner.copied(requests[1].staged.id, 0);
    assert_eq!(bench.steps(), [""; 0]);
    bench.planner.copied(1, 0);
    assert_eq!(bench.steps(), ["a=1", "b=2"]);
}

#[test]
fn renames_fold_into_one_publication_at_the_place_of_the_last() {
    let mut bench = Bench::new();
    bench.write(1, "a.tmp");
    bench.write(2, "b");
    bench.rename(1, "a.tmp", "x");
    bench.rename(1, "x", "a");
    assert_eq!(bench.run(), ["b=2", "a=1"]);
}

#[test]
fn a_rename_away_from_a_published_name_removes_it_after_the_publication() {
    let mut bench = Bench::new();
    bench.put(Op::Open, 1, flag::NEW | flag::PUBLISHED, "a", &staged(1).name());
    bench.close(1);
    bench.put(Op::Rename, 1, flag::PUBLISHED, "a", b"b");
    assert_eq!(bench.planner.overlay(b"a"), Some(&Claim::Absent));
    assert_eq!(bench.run(), ["b=1 -a"]);
    assert_eq!(bench.planner.overlay(b"a"), None);
}

#[test]
fn a_name_that_another_file_has_got_is_not_removed() {
    let mut bench = Bench::new();
    bench.put(Op::Open, 1, flag::NEW | flag::PUBLISHED, "a", &staged(1).name());
    bench.close(1);
    bench.put(Op::Rename, 1, flag::PUBLISHED, "a", b"b");
    bench.write(2, "a");
    // The first file is opened again, so that it comes after the second.
    bench.put(Op::Open, 1, 0, "b", &staged(1).name());
    bench.close(1);
    assert_eq!(bench.run(), ["a=2", "b=1"]);
}

#[test]
fn an_unlink_cancels_a_file_and_removes_a_published_one() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.unlink("a", 1, 0);
    bench.write(2, "b");
    bench.unlink("b", 2, flag::PUBLISHED);
    assert_eq!(bench.dropped(), [1, 2]);
    assert_eq!(bench.run(), ["~a", "-b"]);
}

#[test]
fn a_removed_file_is_published_in_its_turn_if_something_else_stands_between() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.write(2, "m");
    bench.unlink("a", 1, 0);
    assert_eq!(bench.dropped(), [0; 0]);
    assert_eq!(bench.copy(), [1, 2]);
    assert_eq!(bench.steps(), ["a=1", "m=2", "-a"]);
}

#[test]
fn files_that_are_made_and_removed_together_are_cancelled_together() {
    let mut bench = Bench::new();
    bench.write(1, "m");
    (2..5).for_each(|id| bench.write(id, &format!("f{id}")));
    bench.unlink("f2", 2, 0);
    bench.unlink("f3", 3, 0);
    assert_eq!(bench.dropped(), [0; 0], "the last is there");
    bench.unlink("f4", 4, 0);
    assert_eq!(bench.dropped(), [4, 3, 2]);
    assert_eq!(bench.run(), ["m=1", "-f2", "-f3", "-f4"]);
}

#[test]
fn a_removal_of_something_older_stands_between() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.write(2, "m");
    bench.write(3, "b");
    bench.unlink("a", 1, 0);
    bench.unlink("b", 3, 0);
    assert_eq!(bench.dropped(), [0; 0]);
    assert_eq!(bench.run(), ["a=1", "m=2", "b=3", "-a", "-b"]);
}

#[test]
fn a_link_that_is_removed_is_made_in_its_turn_if_something_else_stands_between() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.symlink("l", "a");
    bench.write(2, "m");
    bench.unlink("l", 0, flag::PUBLISHED);
    assert_eq!(bench.run(), ["a=1", "l->a", "m=2", "-l"]);
}

#[test]
fn a_version_is_left_out_only_if_nothing_stands_between() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.write(2, "a");
    bench.write(3, "m");
    bench.write(4, "a");
    assert_eq!(bench.copy(), [2, 3, 4], "the first is never copied");
    assert_eq!(bench.steps(), ["skip 1", "a=2", "m=3", "a=4"]);
}

#[test]
fn a_file_whose_name_the_job_has_removed_is_published_hidden_and_removed() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.write(2, "m");
    bench.write(3, "a");
    bench.unlink("a", 3, 0);
    bench.copy();
    let step = bench.planner.next_step().unwrap();
    assert!(matches!(&step.action, Action::Publish(file) if file.staged.id == 1), "{step:?}");
    assert_eq!(bench.planner.hidden_by_job(&step), Some(&b"a"[..]));
    assert_eq!(bench.run(), ["a=1", "m=2", "-a"]);
}

#[test]
fn a_file_that_is_opened_again_moves_to_its_next_close() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.write(2, "b");
    bench.copy();
    bench.put(Op::Open, 1, 0, "a", &staged(1).name());
    assert_eq!(bench.run(), ["b=2"]);
    bench.planner.copied(1, 0);
    assert_eq!(bench.run(), [""; 0], "a copy of what it was before does not count");
    bench.close(1);
    assert_eq!(bench.run(), ["a=1"]);
}

#[test]
fn a_close_without_a_lease_gives_no_place() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.write(2, "b");
    let requests = bench.planner.take_copies(100, |_| false);
    bench.planner.copy_refused(1, requests[0].generation);
    bench.planner.copied(2, requests[1].generation);
    bench.planner.lease(1, false, false, 0);
    assert_eq!(bench.steps(), ["b=2"]);
    assert_eq!(bench.planner.published(), 4);
    bench.planner.lease(1, true, false, 0);
    assert_eq!(bench.run(), ["a=1"]);
}

#[test]
fn a_file_found_closed_comes_before_what_was_recorded_after_it_was_open() {
    let mut bench = Bench::new();
    bench.open(1, "a");
    bench.write(2, "b");
    bench.planner.lease(1, false, false, 0);
    bench.write(3, "c");
    assert_eq!(bench.planner.to_probe(), [1]);
    bench.copy();
    assert_eq!(bench.steps(), ["b=2"], "a may have been closed before c");
    assert_eq!(bench.planner.published(), 3);
    bench.planner.lease(1, true, false, 0);
    assert_eq!(bench.run(), ["a=1", "c=3"]);
}

#[test]
fn what_a_killed_process_wrote_replaces_nothing() {
    let mut bench = Bench::new();
    bench.put(Op::Open, 1, flag::NEW | flag::PUBLISHED, "a", &staged(1).name());
    bench.open(2, "b");
    bench.planner.lease(1, true, true, 0);
    bench.planner.lease(2, true, true, 0);
    assert_eq!(bench.run(), ["a.partial-1=1", "b=2"]);
    assert_eq!(bench.planner.take_notes().len(), 2);
    assert!(bench.planner.is_idle());
}

#[test]
fn records_during_a_publication_are_followed() {
    let mut bench = Bench::new();
    for id in 1..=4 {
        bench.write(id, &format!("f{id}"));
    }
    bench.copy();
    let mut steps = Vec::new();
    while let Some(step) = bench.planner.next_step() {
        bench.planner.begin(&step);
        steps.push(step);
    }
    assert_eq!(steps.len(), 4);
    bench.rename(1, "f1", "g");
    bench.unlink("f2", 2, 0);
    bench.put(Op::Open, 3, 0, "f3", &staged(3).name());
    bench.put(Op::Attributes, 4, 0, "f4", b"");
    for step in &steps {
        let committed = bench.planner.commit(step);
        let removed = (step.place.seq == 4).then_some(staged(2));
        assert_eq!(committed.file, removed, "only the removed one is done with: {step:?}");
        assert!(!committed.visible);
    }
    assert_eq!(bench.planner.file(1).unwrap().former, [b"f1".to_vec()]);
    assert_eq!(bench.run(), ["g=1 -f1", "-f2", "f4=4"]);
    bench.close(3);
    assert_eq!(bench.run(), ["f3=3"]);
}

#[test]
fn a_renamed_directory_takes_part_files_and_names_along() {
    let mut bench = Bench::new();
    bench.open(1, "run/tmp/a.part");
    bench.rename(1, "run/tmp/a.part", "run/tmp/a");
    bench.put(Op::Rename, 1, flag::PARENT, "run/tmp/a", b"run/final/a");
    let file = bench.planner.file(1).unwrap();
    assert_eq!((file.name.as_slice(), file.part_dir.as_slice()), (&b"run/final/a"[..], &b"run/final"[..]));
    assert_eq!(file.former, [b"run/final/a.part".to_vec()]);
    assert_eq!(bench.planner.overlay(b"run/final/a"), Some(&Claim::File(staged(1))));
    assert_eq!(bench.planner.overlay(b"run/tmp/a"), None);
    bench.close(1);
    assert_eq!(bench.run(), ["run/final/a=1"]);
    assert_eq!(renamed_dirs(b"a/x", b"b/x"), (&b"a"[..], &b"b"[..]));
    assert_eq!(renamed_dirs(b"a/tail/x", b"b-tail/x"), (&b"a/tail"[..], &b"b-tail"[..]));
}

#[test]
fn a_renamed_directory_takes_part_files_along_whose_files_have_left_it() {
    let mut bench = Bench::new();
    bench.put(Op::Open, 1, flag::NEW | flag::PUBLISHED, "run/tmp/a", &staged(1).name());
    bench.rename_published(1, "run/tmp/a", "b");
    bench.put(Op::Rename, 0, flag::PARENT, "run/tmp", b"run/final");
    let file = bench.planner.file(1).unwrap();
    assert_eq!((file.name.as_slice(), file.part_dir.as_slice()), (&b"b"[..], &b"run/final"[..]));
    assert_eq!(bench.planner.overlay(b"run/tmp/a"), None);
    assert_eq!(bench.planner.overlay(b"run/final/a"), Some(&Claim::Absent));
    bench.close(1);
    assert_eq!(bench.run(), ["b=1 -run/final/a"]);
}

#[test]
fn exchanged_names_take_open_files_and_what_they_have_left_along() {
    let mut bench = Bench::new();
    bench.open(1, "a/x");
    bench.open(2, "b/x");
    bench.put(Op::Open, 3, flag::NEW | flag::PUBLISHED, "b/y", &staged(3).name());
    bench.rename_published(3, "b/y", "a/z");
    bench.put(Op::Rename, 0, flag::PARENT | flag::EXCHANGE, "a", b"b");
    let places = |bench: &Bench, id| {
        let file = bench.planner.file(id).unwrap();
        [&file.name, &file.part_dir].map(|path| String::from_utf8_lossy(path).into_owned())
    };
    assert_eq!(places(&bench, 1), ["b/x", "b"]);
    assert_eq!(places(&bench, 2), ["a/x", "a"]);
    assert_eq!(places(&bench, 3), ["b/z", "a"]);
    let claims = [1, 2, 3].map(staged).map(Claim::File);
    for (name, claim) in [("b/x", &claims[0]), ("a/x", &claims[1]), ("b/z", &claims[2]), ("a/y", &Claim::Absent)] {
        assert_eq!(bench.planner.overlay(name.as_bytes()), Some(claim), "{name}");
    }
    assert_eq!(bench.planner.overlay(b"b/y"), None);
    for id in [3, 2, 1] {
        bench.close(id);
    }
    assert_eq!(bench.run(), ["b/z=3 -a/y", "a/x=2", "b/x=1"]);
}

#[test]
fn what_an_open_file_has_left_in_a_directory_is_removed_before_the_directory() {
    let mut bench = Bench::new();
    bench.put(Op::Open, 1, flag::NEW | flag::PUBLISHED, "d/x", &staged(1).name());
    bench.rename_published(1, "d/x", "y");
    bench.put(Op::Rmdir, 0, 0, "d", b"");
    assert_eq!(bench.run(), ["-d/x", "-d/"]);
    assert_eq!(bench.planner.overlay(b"d/x"), None);
    bench.close(1);
    assert_eq!(bench.run(), ["y=1"]);
    assert!(bench.planner.is_idle());
}

/// The same, and the agent was killed since.
#[test]
fn what_has_taken_a_name_stays_in_a_restart() {
    let mut bench = Bench::new();
    bench.planner.begin_replay();
    bench.put(Op::Open, 1, flag::PUBLISHED, "name", &staged(1).name());
    bench.rename_published(1, "name", "moved");
    bench.open(2, "other");
    bench.rename(2, "other", "name");
    bench.put(Op::Close, 2, flag::TAKEN, "", b"");
    bench.planner.end_replay();
    assert_eq!(bench.planner.overlay(b"name"), None, "it is not hidden");
    // (`other` by the number of the file, which an earlier agent may have published there.)
    assert_eq!(bench.run(), ["-other", "~name"]);
    bench.close(1);
    assert_eq!(bench.run(), ["moved=1"]);
}

/// A temporary name was removed, created again and renamed while its file was open. What a plain
/// call has put there since was removed when that was closed.
#[test]
fn a_name_that_was_removed_before_its_file_was_created_is_not_removed_again() {
    for is_removed_again in [false, true] {
        let mut bench = Bench::new();
        bench.write(9, "before");
        bench.symlink("tmp", "before");
        bench.unlink("tmp", 0, flag::PUBLISHED);
        bench.put(Op::Open, 1, flag::NEW | flag::PUBLISHED, "tmp", &staged(1).name());
        if is_removed_again {
            bench.unlink("tmp", 1, 0);
        } else {
            bench.rename(1, "tmp", "final");
        }
        let last = if is_removed_again { &["before=9", "-tmp", "~tmp"][..] } else { &["before=9", "-tmp"] };
        assert_eq!(bench.run(), last);
        bench.close(1);
        assert_eq!(bench.run(), if is_removed_again { &[][..] } else { &["final=1"] });
    }
}

/// A plain call has put a pipe where one open file was and another one came. Neither removes it.
#[test]
fn what_has_taken_a_name_from_two_open_files_stays() {
    let mut bench = Bench::new();
    bench.put(Op::Open, 1, flag::PUBLISHED, "name", &staged(1).name());
    bench.rename_published(1, "name", "moved");
    bench.open(2, "other");
    bench.rename(2, "other", "name");
    bench.put(Op::Close, 2, flag::TAKEN, "", b"");
    assert_eq!(bench.dropped(), [2]);
    assert!(bench.planner.take_notes().is_empty());
    // It may have been open elsewhere.
    bench.close(2);
    assert_eq!(bench.run(), ["~other", "~name"], "what the overlay has, and nothing of the PFS");
    bench.close(1);
    assert_eq!(bench.run(), ["moved=1"]);
    assert!(bench.planner.is_idle());
}

#[test]
fn a_name_that_an_open_file_has_left_is_removed_once() {
    let mut bench = Bench::new();
    bench.put(Op::Open, 1, flag::NEW | flag::PUBLISHED, "a", &staged(1).name());
    bench.rename(1, "a", "b");
    bench.unlink("a", 0, flag::PUBLISHED);
    assert_eq!(bench.run(), ["-a"]);
    assert_eq!(bench.planner.overlay(b"a"), None);
    bench.close(1);
    assert_eq!(bench.run(), ["b=1"], "what has got the name since stays");
    assert!(bench.planner.is_idle());
}

#[test]
fn a_step_that_fails_keeps_its_place() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.unlink("old", 0, flag::PUBLISHED);
    bench.copy();
    for _ in 0..2 {
        let step = bench.planner.next_step().unwrap();
        bench.planner.begin(&step);
        assert!(bench.planner.published() < 2);
        bench.planner.fail(step.place);
    }
    assert_eq!(bench.run(), ["a=1", "-old"]);
}

#[test]
fn a_cancelled_symlink_is_not_made() {
    let mut bench = Bench::new();
    bench.put(Op::Symlink, 0, 0, "l", b"a");
    bench.unlink("l", 0, 0);
    bench.put(Op::Symlink, 0, 0, "l", b"b");
    let step = bench.planner.next_step().unwrap();
    assert_eq!(step.action, Action::Unlink(b"l".to_vec(), Guard::Nothing), "only in the overlay");
    assert_eq!(bench.run(), ["~l", "l->b"]);
}

#[test]
fn a_file_that_is_renamed_gets_its_former_name_first_if_something_else_stands_between() {
    let mut bench = Bench::new();
    bench.write(1, "last.ckpt");
    bench.write(2, "state");
    bench.rename(1, "last.ckpt", "last-v1.ckpt");
    bench.write(3, "last.ckpt");
    assert_eq!(bench.copy(), [1, 2, 3]);
    assert_eq!(bench.steps(), ["last.ckpt=1", "state=2", "last-v1.ckpt=1 -last.ckpt", "last.ckpt=3"]);
}

#[test]
fn a_file_that_is_written_again_after_its_rename_has_no_former_name() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.write(2, "b");
    bench.rename(1, "a", "c");
    bench.put(Op::Open, 1, 0, "c", &staged(1).name());
    bench.close(1);
    assert_eq!(bench.run(), ["b=2", "c=1 -a"]);
}

#[test]
fn what_other_nodes_have_written_stands_between() {
    let steps = |change: fn(&mut Bench)| {
        let mut bench = Bench::new();
        bench.write(1, "a");
        bench.node_news += 1;
        change(&mut bench);
        bench.run()
    };
    assert_eq!(steps(|bench| bench.unlink("a", 1, 0)), ["a=1", "-a"]);
    assert_eq!(steps(|bench| bench.rename(1, "a", "b")), ["a=1", "b=1 -a"]);
    assert_eq!(steps(|bench| bench.write(2, "a")), ["a=1", "a=2"]);
}

#[test]
fn a_file_that_loses_its_name_while_it_is_published_is_removed() {
    let mut bench = Bench::new();
    bench.write(1, "a");
    bench.open(2, "b");
    bench.copy();
    let step = bench.planner.next_step().unwrap();
    bench.planner.begin(&step);
    // Written again, then another file gets the name and leaves it.
    bench.put(Op::Open, 1, 0, "a", &staged(1).name());
    bench.rename(2, "b", "a");
    bench.rename(2, "a", "b");
    bench.planner.commit(&step);
    bench.close(2);
    assert_eq!(bench.run(), ["-a", "b=2 -a"]);
}

#[test]
fn what_a_file_that_was_left_out_may_have_left_is_removed_by_the_next_agent() {
    let mut bench = Bench::new();
    bench.planner.begin_replay();
    bench.write(1, "a");
    bench.rename(1, "a", "b");
    bench.write(2, "b");
    // The agent before has logged that it left the file out, and no more. One before that may have
    // published it as `a`.
    bench.planner.replay_done(Place { seq: 3, sub: 0 }, 1, true);
    bench.planner.end_replay();
    assert_eq!(bench.run(), ["-a", "b=2"]);
}

/// An agent left out a version that the next one replaced, published that one, and was killed
/// before it had logged either. Found by kills: the next agent knew of an earlier file with the
/// temporary name of the version, which was published long ago, and published the version over the
/// newer one.
#[test]
fn what_was_published_long_ago_changes_no_decision_of_a_replay() {
    let mut bench = Bench::new();
    bench.planner.begin_replay();
    bench.write(1, "t.tmp");
    bench.rename(1, "t.tmp", "c");
    bench.planner.replay_done(Place { seq: 3, sub: 0 }, 1, false);
    bench.write(2, "t.tmp");
    bench.rename(2, "t.tmp", "d");
    bench.write(3, "u.tmp");
    bench.rename(3, "u.tmp", "d");
    bench.symlink("s", "d");
    bench.planner.end_replay();
    assert_eq!(bench.copy(), [3]);
    assert_eq!(bench.run(), ["skip 2", "-t.tmp", "d=3 -u.tmp", "s->d"]);
}
