//! The drain with real files: the test does what the shim does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod compaction;
mod damage;
mod newer;
mod nodes;
mod shim;
mod stale;

use monarch_abi::outputs::names::{Link, WHITEOUT, part_name};
use monarch_outputs::outputs::{AttachedRoot, OutputRootSpec, Outputs, OutputsOptions};
use monarch_outputs::plan::Planner;
use monarch_outputs::recovery::recover;
use monarch_outputs::room::TierSpace;
use monarch_outputs::shared_plan::SharedPlan;
use monarch_outputs::staging::{RootInfo, StagingDir};
use monarch_outputs::status::OutputStatus;
use monarch_outputs::target::DirTarget;
use monarch_outputs::target::doubles::{Call, Fault, Faults, FaultyTarget};
use monarch_storage::tier::Ledger;
use rustix::io::Errno;
use shim::Shim;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A PFS, a tier, an agent.
struct World {
    dir: tempfile::TempDir,
    outputs: Option<Outputs>,
    attached: AttachedRoot,
    faults: Arc<Faults>,
    ledger: Arc<Ledger>,
}

impl World {
    fn new() -> Self {
        Self::with(1 << 30, OutputsOptions::default())
    }

    fn with(capacity: u64, options: OutputsOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pfs")).unwrap();
        std::fs::create_dir(dir.path().join("tier")).unwrap();
        let (faults, ledger) = (Arc::new(Faults::default()), Arc::new(Ledger::new(capacity, 4096)));
        let (outputs, attached) = start(dir.path(), &faults, &ledger, options);
        Self { dir, outputs: Some(outputs), attached, faults, ledger }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("pfs")
    }

    fn shim(&self) -> Shim {
        Shim::new(&self.root(), &self.attached.staging)
    }

    /// The agent is killed: its threads end wherever they are.
    fn crash(&mut self) {
        drop(self.outputs.take());
    }

    fn restart(&mut self) {
        self.crash();
        let (outputs, attached) = start(self.dir.path(), &self.faults, &self.ledger, OutputsOptions::default());
        assert_eq!(attached, self.attached);
        self.outputs = Some(outputs);
    }

    fn status(&self) -> OutputStatus {
        self.outputs.as_ref().unwrap().status().remove(0)
    }

    fn drained(&self) -> OutputStatus {
        let deadline = Some(Instant::now() + Duration::from_secs(120));
        let wait = self.outputs.as_ref().unwrap().wait_drained(&self.root(), deadline, |_| ControlFlow::Continue(()));
        let status = wait.unwrap();
        assert!(!status.is_pending(), "{status:?}");
        status
    }

    /// Names and contents on the PFS; links with `->`.
    fn pfs(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![self.root()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(self.root()).unwrap().to_str().unwrap().to_owned();
                // (What goes meanwhile is not there.)
                let Ok(meta) = path.symlink_metadata() else { continue };
                if meta.is_dir() {
                    dirs.push(path);
                } else if meta.is_symlink() {
                    found.insert(name, format!("-> {}", std::fs::read_link(path).unwrap().display()));
                } else if let Ok(bytes) = std::fs::read(path) {
                    found.insert(name, String::from_utf8_lossy(&bytes).into_owned());
                }
            }
        }
        found
    }

    fn fault(&self, call: Call, after: u64, times: u64, errno: Errno) {
        self.faults.add(Fault { call, after, times, errno });
    }
}

fn start(dir: &Path, faults: &Arc<Faults>, ledger: &Arc<Ledger>, options: OutputsOptions) -> (Outputs, AttachedRoot) {
    let ledger = ledger.clone();
    let reserve = Arc::new(move |bytes| ledger.reserve_bytes(bytes));
    let spec = OutputRootSpec {
        root: dir.join("pfs"),
        tier: "disk".into(),
        outputs_dir: dir.join("tier/outputs"),
        is_volatile: false,
        is_left: false,
        through: vec!["*.log".into()],
        flags: 0,
        max_pending: None,
        peer_wait: Duration::ZERO,
        space: TierSpace { reserve, make_room: Arc::new(|_| false) },
    };
    let target = FaultyTarget::new(DirTarget::open(&spec.root).unwrap(), faults.clone());
    let outputs = Outputs::new(options);
    let attached = outputs.attach_to(&spec, Arc::new(target)).unwrap();
    (outputs, attached)
}

fn tree(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn a_file_is_published_with_its_bytes_mode_times_and_inode_and_becomes_clean() {
    let world = World::new();
    let shim = world.shim();
    let mut handle = shim.create_mode("model.pt", 0o440);
    handle.file.write_all(b"weights").unwrap();
    let time = std::time::UNIX_EPOCH + Duration::from_nanos(1_600_000_000_123_456_789);
    handle.file.set_modified(time).unwrap();
    let staged = handle.staged;
    shim.close(handle);
    let status = world.drained();
    assert_eq!((status.published, status.published_bytes, status.clean_bytes), (1, 7, 7));
    let meta = world.root().join("model.pt").metadata().unwrap();
    assert_eq!((meta.ino(), meta.permissions().mode() & 0o7777, meta.len()), (staged.ino, 0o440, 7));
    assert_eq!(meta.modified().unwrap(), time);
    let link = shim.link("model.pt").unwrap();
    let Some(Link::Clean(clean)) = Link::parse(&link) else { panic!("{link:?}") };
    assert_eq!((clean.file, clean.size), (staged, 7));
    assert_eq!(clean.ctime_ns, meta.ctime() * 1_000_000_000 + meta.ctime_nsec());
    let state = shim.state();
    assert_eq!((state.pending.load(Ordering::SeqCst), state.entries.load(Ordering::SeqCst)), (0, 1));
    assert_eq!(world.pfs(), tree(&[("model.pt", "weights")]));
}

#[test]
fn a_marker_is_never_published_before_the_data_that_it_names() {
    let world = World::new();
    world.faults.delay(Call::Write, Duration::from_millis(300));
    let shim = world.shim();
    shim.write("data", &[b'x'; 100]);
    world.faults.clear();
    std::thread::sleep(Duration::from_millis(20));
    shim.write("latest", b"data");
    let began = Instant::now();
    while !world.root().join("latest").exists() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(world.pfs()["data"].len(), 100);
    world.drained();
}

#[test]
fn renames_fold_deletions_wait_and_links_and_directories_follow() {
    let world = World::new();
    std::fs::create_dir(world.root().join("old")).unwrap();
    std::fs::write(world.root().join("old/a"), "1").unwrap();
    std::fs::write(world.root().join("latest"), "old").unwrap();
    let shim = world.shim();
    world.fault(Call::Create, u64::MAX, 0, Errno::IO);
    world.fault(Call::Open, 0, 3, Errno::IO);
    shim.write("new.tmp", b"2");
    shim.rename("new.tmp", "new");
    shim.rename("new", "latest");
    shim.unlink("old/a");
    shim.rmdir("old");
    shim.symlink("link", "latest");
    shim.write("gone", b"3");
    shim.unlink("gone");
    assert!(world.root().join("old/a").exists(), "the deletion waits");
    world.drained();
    assert_eq!(world.pfs(), tree(&[("latest", "2"), ("link", "-> latest")]));
    assert!(!world.root().join("old").exists());
    assert_eq!(shim.state().pending.load(Ordering::SeqCst), 0);
}

#[test]
fn what_the_job_removes_is_there_as_long_as_what_came_between() {
    let world = World::new();
    world.fault(Call::Open, 0, 3, Errno::IO);
    world.fault(Call::Unlink, 0, 1000, Errno::IO);
    let shim = world.shim();
    shim.write("data", b"1");
    shim.symlink("link", "data");
    shim.write("latest", b"data");
    shim.unlink("data");
    shim.unlink("link");
    let began = Instant::now();
    while !world.root().join("latest").exists() {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", world.pfs());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(world.pfs(), tree(&[("data", "1"), ("latest", "data"), ("link", "-> data")]));
    assert_eq!(shim.link("data").as_deref(), Some(WHITEOUT));
    world.faults.clear();
    world.drained();
    assert_eq!(world.pfs(), tree(&[("latest", "data")]));
}

#[test]
fn a_file_that_a_duplicate_or_a_mapping_holds_open_is_not_closed() {
    let world = World::new();
    let shim = world.shim();
    let mut handle = shim.create("mapped");
    handle.file.write_all(&[b'a'; 4096]).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(shim.data(&handle.staged)).unwrap();
    // SAFETY: only this test writes the file.
    let mut map = unsafe { memmap2::MmapMut::map_mut(&file).unwrap() };
    drop(file);
    shim.close(handle);
    let handle = shim.create("copied");
    let duplicate = handle.file.try_clone().unwrap();
    shim.close(handle);
    // What is closed later is not held up.
    shim.write("other", b"1");
    shim.barrier_of(&world, "other");
    assert!(!world.root().join("mapped").exists() && !world.root().join("copied").exists());
    map[0] = b'b';
    drop(map);
    drop(duplicate);
    world.drained();
    assert_eq!(world.pfs()["mapped"].as_bytes()[0], b'b');
    assert!(world.root().join("copied").exists());
}

impl Shim {
    fn barrier_of(&self, world: &World, name: &str) {
        let began = Instant::now();
        while !world.root().join(name).exists() {
            assert!(began.elapsed() < Duration::from_secs(20), "{name}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_file_closed_without_a_record_comes_before_what_is_closed_after_it() {
    let world = World::new();
    let shim = world.shim();
    for round in 0..20 {
        let (data, marker) = (format!("data{round}"), format!("marker{round}"));
        let mut handle = shim.create(&data);
        handle.file.write_all(b"1").unwrap();
        // As a child that inherited the descriptor.
        drop(handle.file);
        shim.write(&marker, b"2");
        shim.barrier_of(&world, &marker);
        assert!(world.root().join(&data).exists(), "round {round}");
    }
    world.drained();
}

#[test]
fn a_writer_that_opens_a_file_during_its_copy_does_not_wait_and_is_copied_again() {
    let world = World::new();
    let shim = world.shim();
    world.faults.delay(Call::Write, Duration::from_millis(400));
    shim.write("model", b"first");
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    let mut handle = shim.reopen("model", false);
    assert!(began.elapsed() < Duration::from_millis(200), "the open waited {:?}", began.elapsed());
    handle.file.write_all(b"second").unwrap();
    std::thread::sleep(Duration::from_millis(600));
    assert!(!world.root().join("model").exists());
    world.faults.clear();
    shim.close(handle);
    world.drained();
    assert_eq!(world.pfs(), tree(&[("model", "second")]));
}

#[test]
fn a_full_quota_holds_the_root_until_there_is_space() {
    let world = World::new();
    let shim = world.shim();
    world.fault(Call::Write, 0, u64::MAX, Errno::DQUOT);
    shim.write("a", b"1");
    shim.write("b", b"2");
    let began = Instant::now();
    while shim.state().held_errno.load(Ordering::SeqCst) != Errno::DQUOT.raw_os_error() as u32 {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(150));
    let status = world.status();
    assert!(status.held.as_ref().unwrap().contains("free space in your quota"), "{status:?}");
    assert_eq!(status.pending, 2);
    world.faults.clear();
    world.drained();
    assert_eq!(shim.state().held_errno.load(Ordering::SeqCst), 0);
    assert_eq!(world.pfs(), tree(&[("a", "1"), ("b", "2")]));
}

#[test]
fn every_kind_of_call_may_fail_a_few_times() {
    for call in [Call::Open, Call::Write, Call::Sync, Call::Attributes, Call::Rename, Call::Unlink, Call::SyncDir] {
        let world = World::new();
        std::fs::write(world.root().join("old"), "0").unwrap();
        let shim = world.shim();
        world.fault(call, 0, 2, Errno::IO);
        shim.write("a", b"1");
        shim.unlink("old");
        shim.symlink("l", "a");
        shim.write("b", b"2");
        world.drained();
        assert_eq!(world.pfs(), tree(&[("a", "1"), ("b", "2"), ("l", "-> a")]), "{call:?}");
    }
}

#[test]
fn an_agent_that_ends_at_any_call_goes_on_where_it_was() {
    for after in 0..24 {
        let mut world = World::new();
        std::fs::write(world.root().join("old"), "0").unwrap();
        let shim = world.shim();
        for call in [Call::Open, Call::Write, Call::Sync, Call::Rename, Call::Unlink, Call::Symlink, Call::SyncDir] {
            world.fault(call, after / 3, u64::MAX, Errno::IO);
        }
        shim.write("a.tmp", b"1");
        shim.rename("a.tmp", "a");
        shim.write("b", b"2");
        shim.unlink("old");
        shim.symlink("l", "a");
        shim.write("a", b"3");
        shim.write("c", b"4");
        shim.unlink("c");
        std::thread::sleep(Duration::from_millis(15));
        world.crash();
        // The job goes on without an agent.
        shim.write("d", b"5");
        world.faults.clear();
        world.restart();
        world.drained();
        let expected = tree(&[("a", "3"), ("b", "2"), ("d", "5"), ("l", "-> a")]);
        assert_eq!(world.pfs(), expected, "after {after}");
    }
}

#[test]
fn the_overlay_is_built_again_from_the_journal() {
    let mut world = World::new();
    std::fs::write(world.root().join("old"), "0").unwrap();
    let shim = world.shim();
    world.fault(Call::Open, 0, u64::MAX, Errno::IO);
    std::fs::create_dir(world.root().join("d")).unwrap();
    shim.write("d/a", b"1");
    shim.unlink("old");
    shim.symlink("l", "a");
    let links = || ["d/a", "old", "l"].map(|name| shim.link(name));
    let before = links();
    world.crash();
    let tree_dir = world.attached.staging.join("tree");
    std::fs::remove_dir_all(&tree_dir).unwrap();
    std::fs::create_dir(&tree_dir).unwrap();
    std::fs::set_permissions(&tree_dir, PermissionsExt::from_mode(0o700)).unwrap();
    // As after a reboot that lost the pages of the state file.
    std::fs::write(world.attached.staging.join("state"), vec![0; 8192]).unwrap();
    world.restart();
    let shim = world.shim();
    let links = ["d/a", "old", "l"].map(|name| shim.link(name));
    assert_eq!(links, before);
    assert_eq!(shim.state().pending.load(Ordering::SeqCst), 3);
    assert_eq!(shim.state().next_id.load(Ordering::SeqCst), 2);
    world.faults.clear();
    world.drained();
    assert_eq!(world.pfs(), tree(&[("d/a", "1"), ("l", "-> a")]));
}

#[test]
fn a_torn_record_is_left_out_after_a_reboot() {
    let mut world = World::new();
    let shim = world.shim();
    world.fault(Call::Open, 0, u64::MAX, Errno::IO);
    shim.write("a", b"1");
    shim.write("b", b"2");
    world.crash();
    let journal = world.attached.staging.join("journal");
    let len = std::fs::metadata(&journal).unwrap().len();
    std::fs::File::options().write(true).open(&journal).unwrap().set_len(len - 8).unwrap();
    std::fs::write(world.attached.staging.join("state"), vec![0; 8192]).unwrap();
    world.faults.clear();
    let report = recover(&world.attached.staging, |_| ControlFlow::Continue(())).unwrap();
    assert!(report.is_done, "{report:?}");
    // The close of b was lost, but nothing has it open.
    assert_eq!(world.pfs(), tree(&[("a", "1"), ("b", "2")]));
    assert!(!world.attached.staging.exists());
}

#[test]
fn what_a_killed_process_wrote_is_kept_beside_the_file_that_it_would_have_replaced() {
    let world = World::new();
    std::fs::write(world.root().join("old"), "whole").unwrap();
    let mut shim = world.shim();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    shim.pid = child.id();
    child.wait().unwrap();
    for name in ["old", "new"] {
        let mut handle = shim.create(name);
        handle.file.write_all(b"half").unwrap();
        let id = handle.staged.id;
        drop(handle);
        let _ = id;
    }
    let status = world.drained();
    let pfs = world.pfs();
    assert_eq!((pfs["old"].as_str(), pfs["new"].as_str()), ("whole", "half"));
    let partial = pfs.keys().find(|name| name.starts_with("old.partial-")).expect("a partial file");
    assert_eq!(pfs[partial], "half");
    assert!(status.notes.iter().any(|note| note.contains("killed")), "{status:?}");
}

/// Its close is in the journal, but was not read yet when it is found to have ended.
#[test]
fn a_process_that_ends_right_after_its_close_was_not_killed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("old"), "whole").unwrap();
    let info = RootInfo::of(&root, "tier", false);
    let staging = Arc::new(StagingDir::attach(&dir.path().join("outputs"), info).unwrap());
    let mut shim = Shim::new(&root, staging.path());
    let mut child = std::process::Command::new("true").spawn().unwrap();
    shim.pid = child.id();
    child.wait().unwrap();
    let handle = shim.create("old");
    let plan = SharedPlan::new(staging.clone(), Planner::default(), staging.reader().unwrap(), None);
    let mut plan = plan.lock();
    plan.read(&staging).unwrap();
    let id = handle.staged.id;
    assert!(!plan.probe(&staging, &[id]), "it is open");
    shim.close(handle);
    assert!(plan.probe(&staging, &[id]));
    let file = plan.planner.file(id).unwrap();
    assert!(file.place.is_some() && !file.partial, "{file:?}");
}

#[test]
fn an_idle_journal_begins_again_and_goes_on() {
    let mut world = World::new();
    let shim = world.shim();
    for round in 0..3 {
        shim.write("a", format!("{round}").as_bytes());
        world.drained();
        let began = Instant::now();
        while shim.state().generation.load(Ordering::SeqCst) < round + 1 {
            assert!(began.elapsed() < Duration::from_secs(10), "round {round}");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(shim.state().tail.load(Ordering::SeqCst), 0);
        assert_eq!(shim.state().seq.load(Ordering::SeqCst), 2 * (round + 1));
        world.restart();
    }
    assert_eq!(world.pfs(), tree(&[("a", "2")]));
    assert!(world.attached.staging.join("data").read_dir().unwrap().count() <= 1);
}

#[test]
fn ten_thousand_small_files_are_published() {
    const FILES: usize = 10_000;
    let world = World::new();
    let shim = world.shim();
    for n in 0..FILES {
        shim.write(&format!("f{n}"), b"4 KiB or less");
    }
    let began = Instant::now();
    let status = world.drained();
    eprintln!("the rest of {FILES} files in {:?}", began.elapsed());
    assert_eq!(status.published, FILES as u64);
    assert_eq!(world.pfs().len(), FILES);
}

#[test]
fn clean_copies_make_room_for_new_files() {
    let world = World::with(4 << 20, OutputsOptions::default());
    let shim = world.shim();
    for n in 0..8 {
        shim.write(&format!("f{n}"), &vec![b'x'; 1 << 20]);
        world.drained();
    }
    let began = Instant::now();
    while world.status().clean_bytes > 4 << 20 || shim.state().room.load(Ordering::SeqCst) < 256 << 10 {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?} {:?}", world.status(), world.ledger.usage());
        shim.state().wanted_room.store(256 << 10, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(world.pfs().len(), 8);
    assert!(shim.link("f0").is_none(), "the oldest was dropped");
    let usage = world.ledger.usage();
    assert!(usage.reserved <= usage.capacity);
}

#[test]
fn a_snapshot_of_an_open_file_is_published() {
    let world = World::new();
    let shim = world.shim();
    let mut handle = shim.create("log.txt");
    handle.file.write_all(b"line 1\n").unwrap();
    let outputs = world.outputs.as_ref().unwrap();
    assert_eq!(outputs.publish_snapshot(&world.root().join("log.txt")).unwrap(), 7);
    assert_eq!(world.pfs()["log.txt"], "line 1\n");
    handle.file.write_all(b"line 2\n").unwrap();
    shim.close(handle);
    world.drained();
    assert_eq!(world.pfs(), tree(&[("log.txt", "line 1\nline 2\n")]));
    assert!(outputs.publish_snapshot(&world.root().join("other")).is_err());
}

#[test]
fn the_marker_tells_while_something_is_pending() {
    let world = World::new();
    let shim = world.shim();
    world.fault(Call::Rename, 0, u64::MAX, Errno::STALE);
    shim.write("a", b"1");
    let marker = || world.pfs().into_iter().find(|(name, _)| name.starts_with(".monarch-pending-"));
    let began = Instant::now();
    let text = loop {
        if let Some((_, text)) = marker().filter(|(_, text)| !text.is_empty()) {
            break text;
        }
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(text.contains("pending: 1 entries") && text.contains("oldest: a"), "{text}");
    world.faults.clear();
    world.drained();
    std::thread::sleep(Duration::from_millis(250));
    assert!(marker().is_none());
}

#[test]
fn attributes_that_change_after_the_copy_are_published() {
    let world = World::new();
    let shim = world.shim();
    world.fault(Call::Rename, 0, 1, Errno::IO);
    shim.write("a", b"1");
    std::thread::sleep(Duration::from_millis(100));
    shim.chmod("a", 0o600);
    world.drained();
    assert_eq!(world.root().join("a").metadata().unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn a_part_file_that_others_removed_is_made_again() {
    let world = World::new();
    let shim = world.shim();
    world.fault(Call::Rename, 0, 1, Errno::IO);
    let staged = shim.write("a", b"1");
    std::thread::sleep(Duration::from_millis(50));
    let parts = std::fs::read_dir(world.root()).unwrap().map(|entry| entry.unwrap().path());
    parts.filter(|path| path.to_str().unwrap().contains(".monarch-part-")).for_each(|path| {
        std::fs::remove_file(path).unwrap();
    });
    world.drained();
    assert_eq!(world.pfs(), tree(&[("a", "1")]));
    assert_eq!(world.root().join("a").metadata().unwrap().mode() & 0o777, 0o644);
    let _ = staged;
}

#[test]
fn two_agents_do_not_drain_one_directory() {
    let world = World::new();
    let found = recover(&world.attached.staging, |_| ControlFlow::Continue(())).unwrap_err();
    assert!(found.to_string().contains(&format!("process {} drains", std::process::id())), "{found}");
}

/// The journal has lost its end, and the log has not: as after a loss of power.
#[test]
fn numbers_that_the_log_knows_are_not_given_again() {
    let mut world = World::new();
    let shim = world.shim();
    for at in 0..6 {
        shim.write(&format!("a{at}"), b"old");
    }
    world.drained();
    world.crash();
    let (state, journal) = (shim.state(), world.attached.staging.join("journal"));
    let (seq, id) = (state.seq.load(Ordering::Acquire), state.next_id.load(Ordering::Acquire));
    std::fs::write(&journal, b"").unwrap();
    let info = world.attached.staging.join("root");
    let text = std::fs::read_to_string(&info).unwrap();
    let boot = monarch_outputs::staging::boot_id();
    assert!(text.contains(&boot), "{text}");
    std::fs::write(&info, text.replace(&boot, "another-boot")).unwrap();
    world.restart();
    let state = shim.state();
    assert!(state.seq.load(Ordering::Acquire) >= seq && state.next_id.load(Ordering::Acquire) >= id);
    world.fault(Call::Rename, 0, u64::MAX, Errno::STALE);
    let shim = world.shim();
    for at in 0..6 {
        shim.write(&format!("b{at}"), b"new");
    }
    world.faults.clear();
    world.restart();
    world.drained();
    assert!((0..6).all(|at| world.pfs().contains_key(&format!("b{at}"))), "{:?}", world.pfs());
}

#[test]
fn what_is_pending_is_told_during_a_long_run_of_publications() {
    let world = World::new();
    let shim = world.shim();
    world.drained();
    // One call takes longer than a look at the drain may.
    world.faults.delay(Call::Rename, Duration::from_secs(2));
    shim.write("a", b"1");
    std::thread::sleep(Duration::from_millis(300));
    shim.write("b", b"2");
    let (outputs, root) = (world.outputs.as_ref().unwrap(), world.root());
    let status = outputs.wait_drained(&root, Some(Instant::now()), |_| ControlFlow::Break(())).unwrap();
    assert_eq!(status.pending, 2, "{status:?}");
    assert!(outputs.status()[0].is_pending());
    world.faults.clear();
    world.drained();
    assert_eq!(world.pfs(), tree(&[("a", "1"), ("b", "2")]));
}

#[test]
fn a_removal_that_the_pfs_refuses_holds_nothing() {
    let world = World::new();
    let shim = world.shim();
    std::fs::write(world.root().join("others"), "1").unwrap();
    // The agent looks for the marker of an earlier one.
    world.drained();
    world.fault(Call::Unlink, 0, 1, Errno::PERM);
    world.fault(Call::Rename, 0, 1, Errno::IO);
    shim.write("a", b"1");
    shim.unlink("others");
    shim.write("b", b"2");
    let status = world.drained();
    assert!(status.notes.iter().any(|note| note.contains("others was removed by the job")), "{status:?}");
    assert_eq!(world.pfs(), tree(&[("a", "1"), ("b", "2"), ("others", "1")]));
}

#[test]
fn files_are_copied_after_a_while_without_any() {
    let world = World::new();
    world.faults.delay(Call::Write, Duration::from_millis(20));
    let shim = world.shim();
    // All threads that copy are started, and end.
    for n in 0..60 {
        shim.write(&format!("f{n}"), b"1");
    }
    world.drained();
    std::thread::sleep(Duration::from_secs(6));
    shim.write("last", b"2");
    assert_eq!(world.drained().published, 61);
}

#[test]
fn the_part_file_of_a_killed_create_is_removed_before_all_is_done() {
    let mut world = World::new();
    std::fs::create_dir(world.root().join("run")).unwrap();
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let began = |pid: u32| monarch_outputs::processes::began_ticks(pid).unwrap_or(1);
    let leave = |world: &World, pid: u32| {
        let shim = world.shim();
        let (state, id) = (shim.state(), shim.state().next_id.fetch_add(1, Ordering::SeqCst));
        assert!(state.making[3].claim(pid, began(pid), b"run"));
        state.making[3].begin(id);
        let name = part_name(state.instance.load(Ordering::SeqCst), id);
        let part = world.root().join("run").join(String::from_utf8_lossy(&name).as_ref());
        std::fs::write(&part, "").unwrap();
        part
    };
    let part = leave(&world, ended.id());
    world.drained();
    assert!(!part.exists());
    let part = leave(&world, std::process::id());
    assert_eq!(world.status().open, 1, "its process may still enter it");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(part.exists());
    world.shim().state().making[3].free();
    std::fs::remove_file(part).unwrap();
    // One that was entered in the journal is a file like others.
    let shim = world.shim();
    world.crash();
    let handle = shim.create("run/whole");
    assert!(shim.state().making[0].claim(ended.id(), 1, b"run"));
    shim.state().making[0].begin(handle.staged.id);
    shim.close(handle);
    world.restart();
    world.drained();
    assert!(world.root().join("run/whole").exists());
}

#[test]
fn there_is_room_for_the_first_file_before_a_process_looks() {
    for _ in 0..20 {
        let world = World::new();
        assert!(world.shim().state().room.load(Ordering::SeqCst) >= 256 << 10);
    }
}

#[test]
fn a_file_that_is_renamed_is_there_under_its_former_name_as_long_as_what_came_between() {
    let world = World::new();
    world.fault(Call::Open, 0, 3, Errno::IO);
    let shim = world.shim();
    shim.write("last.ckpt", b"1");
    shim.write("state", b"last.ckpt");
    shim.rename("last.ckpt", "last-v1.ckpt");
    shim.write("last.ckpt", b"2");
    let began = Instant::now();
    let mut states = Vec::new();
    while shim.state().published.load(Ordering::SeqCst) < shim.state().seq.load(Ordering::SeqCst) {
        assert!(began.elapsed() < Duration::from_secs(20));
        // A listing is no snapshot: what is seen twice counts.
        let seen = world.pfs();
        if seen == world.pfs() && !seen.keys().any(|name| name.starts_with('.')) {
            states.push(seen);
        }
    }
    for seen in states.iter().filter(|seen| seen.contains_key("state")) {
        assert!(seen.contains_key("last.ckpt") || seen.contains_key("last-v1.ckpt"), "{seen:?}");
    }
    world.drained();
    assert_eq!(world.pfs(), tree(&[("last.ckpt", "2"), ("last-v1.ckpt", "1"), ("state", "last.ckpt")]));
}
