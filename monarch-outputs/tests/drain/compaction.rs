//! Journals that are cut while files are open or pending, and agents that are killed meanwhile.

use super::{World, tree};
use monarch_abi::outputs::record::{self, Header, MAX_BYTES, Op};
use monarch_abi::outputs::state::State;
use monarch_outputs::compaction::Compaction;
use monarch_outputs::errors::OutputsError;
use monarch_outputs::load::{Loaded, load};
use monarch_outputs::plan::Planner;
use monarch_outputs::recovery::recover;
use monarch_outputs::shared_plan::SharedPlan;
use monarch_outputs::staging::StagingDir;
use monarch_outputs::target::doubles::Call;
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;
use std::mem::offset_of;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn the_journal_stays_short_while_a_file_is_open() {
    let mut world = World::new();
    let shim = world.shim();
    let long = "long-name-".repeat(18);
    let mut open = shim.create(&long);
    let (mut sum, mut last) = (0, 0);
    // A process that appends leaves the agent no time where the processor is shared: it waits.
    let tail = || shim.state().tail.load(Ordering::Acquire);
    let wait_for_agent = || {
        let began = std::time::Instant::now();
        while tail() >= Compaction::CUT_NOW {
            assert!(began.elapsed().as_secs() < 60, "the journal has {} bytes", tail());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    for n in 0_u32..48_000 {
        shim.chmod(&long, 0o600 + n % 8);
        if n % 400 == 0 {
            shim.write(&format!("step{n}"), b"checkpoint");
        }
        if n == 30_000 {
            world.restart();
        }
        wait_for_agent();
        sum += tail().saturating_sub(last);
        last = tail();
    }
    assert!(sum > 8 << 20, "{sum} bytes were appended");
    assert!(shim.state().generation.load(Ordering::Acquire) >= 2);
    open.file.write_all(b"all of it").unwrap();
    shim.close(open);
    world.drained();
    assert_eq!(world.pfs().len(), 121);
    assert_eq!(world.pfs()[&long], "all of it");
}

/// A world whose agent was killed, and which has an open file and pending entries of all kinds.
fn killed() -> World {
    let mut world = World::new();
    let shim = world.shim();
    std::fs::create_dir(world.root().join("dir")).unwrap();
    std::fs::create_dir(world.root().join("old")).unwrap();
    shim.write("model", b"first");
    shim.write("gone", b"first");
    world.drained();
    world.fault(Call::Open, 0, u64::MAX, Errno::IO);
    let mut open = shim.create("dir/open.tmp");
    open.file.write_all(b"written").unwrap();
    shim.write("model", b"second");
    shim.unlink("gone");
    shim.write("best", b"best");
    shim.symlink("last", "best");
    shim.rename("best", "good");
    shim.rename("dir/open.tmp", "dir/open");
    shim.write("removed", b"removed");
    shim.rmdir("old");
    shim.unlink("removed");
    shim.write("r", b"1");
    shim.write("r", b"2");
    world.crash();
    world.faults.clear();
    world
}

/// What the PFS has at the end.
fn wanted() -> std::collections::BTreeMap<String, String> {
    tree(&[("dir/open", "written"), ("good", "best"), ("last", "-> best"), ("model", "second"), ("r", "2")])
}

/// A copy of a staging directory, to be changed.
struct Copy {
    dir: tempfile::TempDir,
}

impl Copy {
    fn of(staging: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let copied = std::process::Command::new("cp").arg("-a").arg(staging).arg(dir.path().join("s")).status();
        assert!(copied.unwrap().success());
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path().join(name)).unwrap()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path().join(name), bytes).unwrap();
    }

    /// The plan file.
    fn plan(&self) -> Option<String> {
        let names = std::fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.to_str().unwrap().to_owned()).find(|name| name.starts_with("plan"))
    }

    /// The node was started again.
    fn reboot(&self) {
        let text = String::from_utf8(self.read("root")).unwrap();
        self.write("root", text.replace(&monarch_outputs::staging::boot_id(), "another-boot").as_bytes());
    }

    /// A process appends a record: the removal of a name.
    fn append(&self, name: &[u8]) -> u64 {
        let state = File::options().read(true).write(true).open(self.path().join("state")).unwrap();
        let number = |at: usize| {
            let mut bytes = [0; 8];
            state.read_exact_at(&mut bytes, at as u64).unwrap();
            u64::from_le_bytes(bytes)
        };
        let (seq, tail) = (number(offset_of!(State, seq)) + 1, number(offset_of!(State, tail)));
        let mut out = [0; MAX_BYTES];
        let bytes = record::write(&mut out, Header { seq, ..Header::default() }, Op::Unlink, name, b"").unwrap();
        let journal = File::options().write(true).open(self.path().join("journal")).unwrap();
        journal.write_all_at(bytes, tail).unwrap();
        state.write_all_at(&seq.to_le_bytes(), offset_of!(State, seq) as u64).unwrap();
        state.write_all_at(&(tail + bytes.len() as u64).to_le_bytes(), offset_of!(State, tail) as u64).unwrap();
        seq
    }

    fn load(&self) -> Result<(Arc<StagingDir>, Loaded), OutputsError> {
        let staging = Arc::new(StagingDir::adopt(&self.path())?);
        let loaded = load(&staging, false)?;
        Ok((staging, loaded))
    }

    /// What a restart knows.
    fn known(&self) -> Vec<String> {
        describe(&self.load().unwrap().1.planner)
    }
}

fn describe(planner: &Planner) -> Vec<String> {
    let files = planner.files().map(|file| format!("{file:?}, open: {}", planner.is_open(file.staged.id)));
    let names = planner.names().map(|(name, claim)| format!("{} {claim:?}", String::from_utf8_lossy(name)));
    let entries = planner.pending().map(|entry| format!("{entry:?}"));
    let mut all: Vec<String> = files.chain(names).chain(entries).collect();
    all.sort();
    all.push(format!("{} {}", planner.last_seq(), planner.published()));
    all
}

/// Cuts the journal of a copy, as an agent that has taken it over.
fn cut(copy: &Copy, is_urgent: bool) {
    let (staging, Loaded { planner, reader, mut log, .. }) = copy.load().unwrap();
    let plan = SharedPlan::new(staging.clone(), planner, reader, None);
    assert!(Compaction::default().cut_now(&staging, &mut log, &plan, (&[], is_urgent)).unwrap());
    assert_eq!(staging.journal_len(), 0);
}

/// All that an agent may leave that is killed while it cuts the journal.
fn states(before: &Copy, after: &Copy) -> Vec<(String, Copy)> {
    let name = after.plan().unwrap();
    let (plan, log) = (after.read(&name), after.read("published"));
    let log = &log[..88];
    let state = || Copy::of(&before.path());
    let mut out = vec![("before".to_owned(), state())];
    for bytes in (0..plan.len()).step_by(41).chain([plan.len()]) {
        let copy = state();
        copy.write("plan.new", &plan[..bytes]);
        out.push((format!("{bytes} bytes of the plan"), copy));
    }
    for bytes in (0..=log.len()).step_by(8) {
        let copy = state();
        copy.write(&name, &plan);
        copy.write("published.new", &log[..bytes]);
        out.push((format!("{bytes} bytes of the log"), copy));
    }
    let copy = state();
    copy.write(&name, &plan);
    copy.write("published", log);
    out.push(("the log is there".to_owned(), copy));
    let copy = state();
    copy.write(&name, &plan);
    copy.write("published", log);
    copy.write("state", &after.read("state"));
    out.push(("the state says that the journal is empty".to_owned(), copy));
    out.push(("after".to_owned(), Copy::of(&after.path())));
    out
}

#[test]
fn an_agent_that_is_killed_while_it_cuts_the_journal_loses_nothing() {
    let world = killed();
    let before = Copy::of(&world.attached.staging);
    let known = before.known();
    assert!(known.len() > 20, "{known:#?}");
    // What an agent finds, after it has taken over once: clean copies and the like are settled.
    let after = Copy::of(&before.path());
    cut(&after, false);
    for (what, copy) in states(&before, &after) {
        for of_this_boot in [true, false] {
            let copy = Copy::of(&copy.path());
            if !of_this_boot {
                copy.reboot();
            }
            assert_eq!(copy.known(), known, "{what}, of this boot: {of_this_boot}");
            // Taken over once more, and then with a record of a process.
            assert_eq!(copy.known(), known, "{what}, again");
            let seq = copy.append(b"another name");
            if !of_this_boot {
                copy.reboot();
            }
            let more = copy.known();
            assert!(more.iter().any(|line| line.contains(&format!("seq: {seq}, sub: 0 }}, Unlink("))), "{more:#?}");
            assert_eq!(more.len(), known.len() + 2, "{what}: {more:#?}");
        }
    }
}

#[test]
fn what_was_kept_of_the_plan_is_published() {
    for is_urgent in [false, true] {
        let world = killed();
        let staging = &world.attached.staging;
        let copy = Copy::of(staging);
        cut(&copy, is_urgent);
        // A second time: the plan of the first one is read.
        cut(&copy, is_urgent);
        let name = copy.plan().unwrap();
        for file in ["published", "journal", "state", &name] {
            std::fs::write(staging.join(file), copy.read(file)).unwrap();
        }
        let report = recover(staging, |_| ControlFlow::Continue(())).unwrap();
        assert!(report.is_done, "{report:?}");
        assert_eq!(world.pfs(), wanted());
    }
}

#[test]
fn a_plan_that_is_damaged_or_missing_is_told_and_nothing_is_removed() {
    let world = killed();
    let copy = Copy::of(&world.attached.staging);
    cut(&copy, false);
    let name = copy.plan().unwrap();
    let plan = copy.read(&name);
    let files = std::fs::read_dir(copy.path().join("data")).unwrap().count();
    for at in [0, 8, plan.len() / 2, plan.len() - 1] {
        let mut bytes = plan.clone();
        bytes[at] ^= 1;
        copy.write(&name, &bytes);
        assert!(matches!(copy.load(), Err(OutputsError::LogDamaged { .. })), "byte {at}");
    }
    std::fs::remove_file(copy.path().join(&name)).unwrap();
    assert!(matches!(copy.load(), Err(OutputsError::LogDamaged { .. })));
    assert!(recover(&copy.path(), |_| ControlFlow::Break(())).is_err());
    assert_eq!(std::fs::read_dir(copy.path().join("data")).unwrap().count(), files);
    copy.write(&name, &plan);
    assert!(copy.load().is_ok());
}
