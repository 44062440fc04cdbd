//! Batches, on a PFS in memory.

use super::*;
use crate::load::load;
use crate::staging::RootInfo;
use crate::target::Attributes;
use crate::target::doubles::{Call, Fault, Faults, FaultyTarget, MemoryTarget};
use monarch_abi::outputs::record::{Header, Op, Record, flag};
use tempfile::TempDir;

/// A publisher and the plan that it follows.
struct Bench {
    _tier: TempDir,
    pfs: MemoryTarget,
    publisher: Publisher,
    plan: SharedPlan,
    seq: u64,
}

const fn staged(id: u64) -> Staged {
    Staged { id, dev: 1, ino: id + 1000, uid: 0, gid: 0 }
}

impl Bench {
    fn new() -> Self {
        let tier = tempfile::tempdir().unwrap();
        let info = RootInfo::of(&tier.path().join("root"), "tier", false);
        let staging = Arc::new(StagingDir::attach(&tier.path().join("outputs"), info).unwrap());
        let loaded = load(&staging, false).unwrap();
        let pfs = MemoryTarget::default();
        let newer = NewerCheck::new(staging.clone(), false, &loaded.entries);
        let publisher = Publisher::new(staging.clone(), Arc::new(pfs.clone()), loaded.log, newer, false);
        let plan = SharedPlan::new(staging, loaded.planner, loaded.reader, None);
        Self { _tier: tier, pfs, publisher, plan, seq: 0 }
    }

    fn record(&mut self, op: Op, id: u64, a: &[u8], b: &[u8]) {
        self.seq += 1;
        // What is removed was published before.
        let flags = if op == Op::Unlink { flag::PUBLISHED } else { 0 };
        let header = Header { seq: self.seq, id, flags, ..Header::default() };
        self.plan.lock().planner.record(&Record { header, op, a, b });
    }

    /// The job writes a file and closes it.
    fn write(&mut self, id: u64, name: &[u8]) {
        self.record(Op::Open, id, name, &staged(id).name());
        self.record(Op::Close, id, b"", b"");
    }

    /// Makes all copies that the plan asks for; the contents are the numbers of the files.
    fn copy(&mut self) {
        let requests = self.plan.lock().planner.take_copies(100, |_| false);
        for request in requests {
            let id = request.staged.id;
            let path = self.publisher.part_name(id).to_vec();
            let file = self.pfs.create(&path, 0o644).unwrap();
            let size = file.write_at(id.to_string().as_bytes(), 0).unwrap() as u64;
            let TargetStat { dev, ino, .. } = file.stat().unwrap();
            let attributes = Attributes { mode: 0o644, owner: None, atime_ns: 0, mtime_ns: 0 };
            self.publisher.copied(id, CopiedPart { path, dev, ino, size, attributes });
            self.plan.lock().planner.copied(id, request.generation);
        }
    }

    /// Does the next step of the plan, as the drain does.
    fn step(&mut self) -> StepEnd {
        let step = self.plan.lock().planner.next_step().unwrap();
        self.plan.lock().planner.begin(&step);
        let end = self.publisher.step(&step);
        if !matches!(end, StepEnd::Done) {
            self.plan.lock().planner.fail(step.place);
        }
        end
    }

    /// What is logged: the kinds and the files of all steps.
    fn logged(&self) -> Vec<(Kind, u64)> {
        let entries = PublishedLog::open(self.publisher.staging.dir()).unwrap().entries;
        let steps = entries.iter().filter_map(|entry| Some((entry.checked_kind()?, entry.id)));
        steps.filter(|(kind, _)| *kind != Kind::Begin).collect()
    }

    /// What the PFS has of a name.
    fn content(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.pfs.contents().remove(name)
    }
}

#[test]
fn a_batch_ends_after_a_version_that_was_left_out() {
    let mut bench = Bench::new();
    (1..=3).for_each(|id| bench.write(id, b"a"));
    bench.copy();
    assert!(matches!(bench.step(), StepEnd::Done), "the first version is left out");
    assert!(matches!(bench.step(), StepEnd::Done), "versions may be left out together");
    // An agent that is killed now and has read more may publish one of them: nothing that comes
    // after them may be on the PFS before they are logged.
    assert!(matches!(bench.step(), StepEnd::NeedsNewBatch));
    assert_eq!(bench.content(b"a"), None);
    assert_eq!(bench.logged(), []);

    bench.publisher.finish(&bench.plan).unwrap();
    assert_eq!(bench.logged(), [(Kind::Skip, 1), (Kind::Skip, 2)]);
    assert!(matches!(bench.step(), StepEnd::Done));
    assert_eq!(bench.content(b"a"), Some(b"3".to_vec()));
    bench.publisher.finish(&bench.plan).unwrap();
    assert_eq!(bench.logged(), [(Kind::Skip, 1), (Kind::Skip, 2), (Kind::File, 3)]);
    assert!(bench.plan.lock().planner.is_idle());
}

#[test]
fn a_left_out_version_ends_a_batch_that_has_published_something() {
    let mut bench = Bench::new();
    bench.write(1, b"b");
    bench.write(2, b"a");
    bench.write(3, b"a");
    bench.write(4, b"c");
    bench.copy();
    assert!(matches!(bench.step(), StepEnd::Done), "b is published");
    assert!(matches!(bench.step(), StepEnd::Done), "a's first version is left out, in the same batch");
    assert!(matches!(bench.step(), StepEnd::NeedsNewBatch));
    assert_eq!(bench.publisher.finish(&bench.plan).unwrap().files, 1);
    assert!(matches!(bench.step(), StepEnd::Done), "a is published");
    assert!(matches!(bench.step(), StepEnd::Done), "c needs no batch of its own");
    assert_eq!(bench.publisher.finish(&bench.plan).unwrap().files, 2);
    assert_eq!(bench.logged(), [(Kind::File, 1), (Kind::Skip, 2), (Kind::File, 3), (Kind::File, 4)]);
}

/// Another node, or a plain call of the job, writes to a file as soon as it has its name: what the
/// tier has is not what the PFS has.
#[test]
fn what_was_changed_before_it_was_looked_at_is_no_clean_copy() {
    let staged = staged(1);
    let attributes = Attributes { mode: 0o644, owner: None, atime_ns: 0, mtime_ns: 5_000_000_700 };
    let part = CopiedPart { path: b"a".to_vec(), dev: staged.dev, ino: staged.ino, size: 9, attributes };
    let st = TargetStat {
        kind: crate::target::Kind::File,
        dev: staged.dev,
        ino: staged.ino,
        size: 9,
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtime_ns: 5_000_000_700,
        ctime_ns: 7,
    };
    let is_clean = |st| overlay::to_clean(&staged, &part, &st).is_some();
    assert!(is_clean(st));
    assert!(is_clean(TargetStat { mtime_ns: 5_000_000_000, ..st }), "a PFS that keeps seconds");
    assert!(!is_clean(TargetStat { size: 1, ..st }), "cut");
    assert!(!is_clean(TargetStat { mtime_ns: 5_000_001_700, ..st }), "written");
    assert!(!is_clean(TargetStat { ino: 7, ..st }), "replaced");
}

/// Another node has put a link out of the output root in the place of the directory: nothing is
/// lost when the name stays, and all that comes after it would be held for good.
#[test]
fn a_removal_that_a_link_leads_out_of_the_root_holds_nothing() {
    for (op, call) in [(Op::Unlink, Call::Unlink), (Op::Rmdir, Call::Rmdir)] {
        let mut bench = Bench::new();
        let faults = Arc::<Faults>::default();
        faults.add(Fault { call, after: 0, times: u64::MAX, errno: Errno::XDEV });
        bench.publisher.names.target = Arc::new(FaultyTarget::new(bench.pfs.clone(), faults));
        bench.pfs.create(b"d/a", 0o644).unwrap();
        bench.record(op, 0, b"d/a", b"");
        bench.write(1, b"b");
        bench.copy();
        assert!(matches!(bench.step(), StepEnd::Done));
        assert!(matches!(bench.step(), StepEnd::Done));
        assert_eq!(bench.content(b"b"), Some(b"1".to_vec()));
        let notes = bench.publisher.take_notes();
        assert!(notes.iter().any(|note| note.contains("a symbolic link has taken the place")), "{notes:?}");
    }
}
