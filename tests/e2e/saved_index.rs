//! `index.file` with `index.trust: verify`: no entry of a saved index is believed before it was
//! compared with the PFS, and none at all of an index that another user could have written.

use crate::faults::{agent_pid, control, kill, wait_for};
use crate::harness::{Job, Running, World, built};
use monarch_core::reader::{Place, Reader};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of a root before its index is saved.
fn lay_out(root: &Path) {
    let put = |name: &str, bytes: &[u8]| {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        fs::write(root.join(name), bytes).unwrap();
    };
    for name in ["kept", "replaced", "rewritten", "gone", "to-dir", "to-link", "one", "two"] {
        put(&format!("files/{name}"), format!("{name:>20}, as it was").as_bytes());
    }
    for dir in ["d1", "d2", "gains", "loses", "same", "swapped", "moved/inner"] {
        put(&format!("{dir}/x"), format!("x of {dir:>20}").as_bytes());
        put(&format!("{dir}/y"), b"y");
    }
    put("next", b"beside the directories");
    put("moved/next", b"beside the inner one");
    for (to, name) in [
        ("files/one", "file-link"),
        ("d1", "dir-link"),
        ("files/kept", "kept-link"),
        ("nowhere", "dangling"),
        ("files/one", "to-file"),
    ] {
        symlink(to, root.join(name)).unwrap();
    }
    symlink(root.join("files/one"), root.join("absolute")).unwrap();
    symlink("file-link", root.join("chain")).unwrap();
    fs::hard_link(root.join("files/one"), root.join("files/hard")).unwrap();
    fs::hard_link(root.join("files/kept"), root.join("files/kept-too")).unwrap();
}

/// Repoints a link.
fn point(root: &Path, name: &str, to: impl AsRef<Path>) {
    symlink(to, root.join("tmp")).unwrap();
    fs::rename(root.join("tmp"), root.join(name)).unwrap();
}

/// Changes by other clients after it was saved.
fn change(root: &Path) {
    let at = |name: &str| root.join(name);
    let swap = |name: &str, bytes: &[u8]| {
        fs::write(at("tmp"), bytes).unwrap();
        fs::rename(at("tmp"), at(name)).unwrap();
    };
    let len = |name: &str| fs::metadata(at(name)).unwrap().len() as usize;
    swap("files/replaced", &vec![b'r'; len("files/replaced")]);
    fs::write(at("files/rewritten"), vec![b'w'; len("files/rewritten")]).unwrap();
    fs::remove_file(at("files/gone")).unwrap();
    fs::remove_file(at("files/to-dir")).unwrap();
    fs::create_dir(at("files/to-dir")).unwrap();
    point(root, "files/to-link", "two");
    point(root, "file-link", "files/two");
    point(root, "dir-link", "d2");
    point(root, "absolute", at("files/two"));
    point(root, "dangling", "files/two");
    swap("to-file", b"a file by now");
    swap("files/hard", b"another file under one of two names");
    fs::write(at("gains/z"), "z").unwrap();
    fs::remove_file(at("loses/y")).unwrap();
    // Directories that are links by now.
    for (name, to) in [("swapped", "d2"), ("moved/inner", "../d1")] {
        fs::remove_dir_all(at(name)).unwrap();
        symlink(to, at(name)).unwrap();
    }
}

const PATHS: [&str; 33] = [
    "files/kept",
    "files/replaced",
    "files/rewritten",
    "files/gone",
    "files/to-dir",
    "files/to-link",
    "files/one",
    "files/two",
    "files/hard",
    "files/kept-too",
    "files",
    "file-link",
    "dir-link",
    "dir-link/x",
    "kept-link",
    "dangling",
    "to-file",
    "absolute",
    "chain",
    "d1",
    "d2/x",
    "gains",
    "gains/z",
    "loses",
    "loses/y",
    "same",
    "same/x",
    "swapped",
    "swapped/x",
    "next",
    "swapped/../next",
    "moved/inner/x",
    "moved/inner/../next",
];

const CALLS: [&str; 7] = ["read", "stat", "lstat", "there", "list", "link", "kind"];

/// A root with a saved index: `change` comes between that and the jobs.
struct Saved {
    w: World,
    file: PathBuf,
    root: PathBuf,
}

impl Saved {
    fn new(change: impl FnOnce(&Path)) -> Self {
        Self::of(World::plan().files(2).args(&["--plain"]).disk().build(), change)
    }

    fn of(w: World, change: impl FnOnce(&Path)) -> Self {
        lay_out(w.backing());
        let file = w.scratch().join("set.idx");
        let built = Command::new(built("monarch")).args(["index", "build", "-o"]).arg(&file).arg(w.root()).output();
        assert!(built.unwrap().status.success());
        change(w.backing());
        let root = w.root().to_owned();
        Self { w, file, root }
    }

    fn options(&self, job: Job) -> Job {
        job.option("--set").option(format!("index.file={}", self.file.display()))
    }

    /// Runs `asks.py` with these orders under `run`, once the index is ready.
    fn answers(&self, orders: &[String], more: &[&str]) -> Vec<String> {
        let job = more.iter().fold(self.options(asks(orders)), |job, set| job.option("--set").option(set));
        let out = self.w.start_indexed(&job).end().good().text();
        out.lines().skip(1).map(str::to_owned).collect()
    }

    fn bare(&self, orders: &[String]) -> Vec<String> {
        self.w.bare(&asks(orders)).good().text().lines().map(str::to_owned).collect()
    }

    fn order(&self, call: &str, name: &str) -> String {
        format!("{call} {}", self.root.join(name).display())
    }
}

fn asks(orders: &[String]) -> Job {
    let script = crate::harness::sources().join("asks.py");
    let words = ["-c", "printf '%s\\n' \"$2\" | python3 \"$1\"", "sh"];
    Job::new("sh").args(words).arg(script).arg(orders.join("\n"))
}

#[track_caller]
fn assert_as_natively(orders: &[String], ours: &[String], bare: &[String]) {
    assert!(ours.len() == bare.len() && bare.len() == orders.len(), "{} and {} answers", ours.len(), bare.len());
    let differ = orders.iter().zip(ours.iter().zip(bare)).filter(|(_, (a, b))| a != b);
    let text: Vec<String> = differ.map(|(o, (a, b))| format!("{o}: {a:?}, natively {b:?}")).collect();
    assert!(text.is_empty(), "{}", text.join("\n"));
}

#[test]
fn each_call_sees_what_changed_since_the_index_was_saved_and_whichever_comes_first() {
    // Each kind of call is the first to use an entry once; copies are there before, or not.
    for (first, call) in CALLS.iter().enumerate() {
        let s = Saved::new(change);
        let orders: Vec<String> = (0..CALLS.len())
            .flat_map(|n| PATHS.iter().map(move |path| (CALLS[(first + n) % CALLS.len()], path)))
            .map(|(call, path)| s.order(call, path))
            .collect();
        let prefetch = format!("prefetch.enabled={}", first % 2 == 0);
        assert_as_natively(&orders, &s.answers(&orders, &[&prefetch]), &s.bare(&orders));
        println!("{call} first: {} answers as natively", orders.len());
    }
}

#[test]
fn a_link_that_was_repointed_after_the_index_was_saved_is_never_served_as_it_was() {
    let s = Saved::new(|root| point(root, "file-link", "files/two"));
    let orders: Vec<String> = (0..5).map(|_| s.order("read", "file-link")).collect();
    for _ in 0..3 {
        assert_as_natively(&orders, &s.answers(&orders, &[]), &s.bare(&orders));
    }
}

#[test]
fn a_job_reads_what_it_wrote_through_names_that_lead_elsewhere_by_now() {
    // Each file is read first, so that it was compared and has a copy.
    let calls = [
        ("read", "files/two"),
        ("read", "d2/x"),
        ("read", "d1/y"),
        ("read", "next"),
        ("read", "moved/next"),
        ("more", "file-link"),
        ("read", "files/two"),
        ("more", "swapped/x"),
        ("read", "d2/x"),
        ("stat", "d2/x"),
        ("more", "moved/inner/y"),
        ("read", "d1/y"),
        ("more", "swapped/../next"),
        ("read", "next"),
        ("more", "swapped/new"),
        ("list", "d2"),
        ("read", "d2/new"),
        ("more", "dir-link/x"),
        ("read", "d2/x"),
    ];
    let run = |ours: bool| {
        let s = Saved::new(change);
        let orders: Vec<String> = calls.iter().map(|(call, name)| s.order(call, name)).collect();
        if ours { s.answers(&orders, &[]) } else { s.bare(&orders) }
    };
    let orders: Vec<String> = calls.iter().map(|(call, name)| format!("{call} {name}")).collect();
    assert_as_natively(&orders, &run(true), &run(false));
}

#[test]
fn each_entry_of_a_saved_index_costs_one_metadata_call_and_is_then_served() {
    let plan = World::plan().files(20).args(&["--plain"]).set("prefetch.enabled=false").patient();
    let s = Saved::of(plan.build(), |_| ());
    let mut keeper = s.w.start(&s.options(Job::new("sh").args(["-c", "echo kept; cat"])));
    keeper.until_written("kept");
    s.w.until("the index", |a| a.roots.iter().all(|r| r.state == "ready"));
    let said = s.w.agent().unwrap().roots[0].consistency.clone();
    assert_eq!(said, "immutable, entries of the saved index checked before their first use");
    let names = ["files/kept", "files/one", "files/two", "kept-link", "d1", "d1/x", "same"];
    let orders: Vec<String> =
        ["stat", "read", "list"].iter().flat_map(|call| names.map(|name| s.order(call, name))).collect();
    let bare = s.bare(&orders);
    assert_as_natively(&orders, &s.answers(&orders, &[]), &bare);
    s.w.until("four copies", |a| a.tiers[0].files == 4);
    let asked = s.w.counter("checks");
    // (The agent has compared what it copied, and the link is asked about by itself.)
    assert!((1..=names.len() as u64).contains(&asked), "{asked} questions");
    s.w.pfs().reset().unwrap();
    let (hits, stats) = (s.w.counter("hits"), s.w.counter("stats"));
    assert_as_natively(&orders, &s.answers(&orders, &[]), &bare);
    let c = s.w.pfs().counters().unwrap();
    assert_eq!((s.w.counter("checks"), c.opens(), c.read), (asked, 0, 0), "{c:?}");
    assert!(s.w.counter("hits") >= hits + 4 && s.w.counter("stats") >= stats + 7, "served from memory and copies");
}

#[test]
fn files_that_the_agent_has_copied_are_compared() {
    let s = Saved::of(World::plan().files(20).args(&["--plain"]).build(), |_| ());
    let mut keeper = s.w.start(&s.options(Job::new("sh").args(["-c", "echo kept; cat"])));
    keeper.until_written("kept");
    let files = crate::harness::inodes(s.w.backing());
    s.w.until("all copies", |a| a.tiers[0].files == files);
    // (Of several names of a file the agent copies the first.)
    let orders = ["files/gone", "files/two", "d1/x", "same/y"].map(|name| s.order("read", name));
    s.w.pfs().reset().unwrap();
    assert_as_natively(&orders, &s.answers(&orders, &[]), &s.bare(&orders));
    assert_eq!(s.w.counter("checks"), 0, "readers ask about nothing that has a copy");
}

#[test]
fn a_saved_index_that_another_user_could_have_written_is_not_used() {
    let other = 65_534;
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    type Spoil = fn(&Path, u32);
    let refused: [(&str, Spoil); 4] = [
        ("others may write to it (mode 0664)", |file, _| {
            fs::set_permissions(file, fs::Permissions::from_mode(0o664)).unwrap();
        }),
        ("others may write to it (mode 0602)", |file, _| {
            fs::set_permissions(file, fs::Permissions::from_mode(0o602)).unwrap();
        }),
        ("it belongs to user 65534", |file, other| lchown(file, Some(other), None).unwrap()),
        ("it is a link that belongs to user 65534", |file, other| {
            fs::rename(file, file.with_extension("real")).unwrap();
            symlink(file.with_extension("real"), file).unwrap();
            lchown(file, Some(other), None).unwrap();
        }),
    ];
    for (why, make) in refused {
        let s = Saved::new(|root| point(root, "file-link", "files/two"));
        make(&s.file, other);
        let orders = [s.order("read", "file-link"), s.order("read", "files/kept")];
        let mut keeper = s.w.start(&s.options(Job::new("sh").args(["-c", "echo kept; cat"])));
        keeper.until_written("kept");
        assert_as_natively(&orders, &s.answers(&orders, &["index.trust=frozen"]), &s.bare(&orders));
        let log = s.w.log();
        assert!(log.contains(why) && log.contains("scanning"), "{why}: {log}");
        // The scan that was made instead is as new as the job.
        assert_eq!(s.w.agent().unwrap().roots[0].consistency, "immutable", "{why}");
    }
    // A link of the user's own to a file of the user's own, which other users may read, is as good
    // as the file.
    let mut s = Saved::new(|_| ());
    mode(&s.file, 0o644);
    symlink(&s.file, s.file.with_extension("link")).unwrap();
    s.file = s.file.with_extension("link");
    let mut keeper = s.w.start(&s.options(Job::new("sh").args(["-c", "echo kept; cat"])));
    keeper.until_written("kept");
    s.w.until("the index", |a| a.roots.iter().all(|r| r.state == "ready"));
    assert!(s.w.agent().unwrap().roots[0].consistency.contains("saved index"));
}

/// A umask that lets the group write made indexes that no job would believe.
#[test]
fn an_index_is_saved_so_that_it_can_be_used() {
    let w = World::plan().files(2).args(&["--plain"]).disk().build();
    for umask in ["0002", "0000", "0077"] {
        let file = w.scratch().join(format!("{umask}.idx"));
        let script = format!("umask {umask}; exec \"$@\"");
        let mut made = Command::new("sh");
        made.args(["-c", &script, "sh"]).arg(built("monarch")).args(["index", "build", "-o"]);
        assert!(made.arg(&file).arg(w.root()).output().unwrap().status.success());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o022, 0, "{umask}");
    }
}

#[test]
fn the_library_compares_entries_of_a_saved_index_as_well() {
    let s = Saved::new(change);
    let mut keeper = s.w.start(&s.options(Job::new("sh").args(["-c", "echo kept; cat"])));
    keeper.until_written("kept");
    s.w.until("copies", |a| a.tiers[0].files >= 10 && a.roots.iter().all(|r| r.state == "ready"));
    let reader = Reader::open(&control(&s.w)).unwrap();
    for name in PATHS {
        let path = s.root.join(name);
        let (explained, bare) = (reader.explain(&path), fs::read(&path));
        let mut ours = Vec::new();
        let opened = reader.open_file(&path).and_then(|mut o| o.file.read_to_end(&mut ours).map(|_| o.place));
        match bare {
            Ok(bytes) => assert!(opened.is_ok() && ours == bytes, "{name}: {opened:?}, {explained:?}"),
            Err(e) => assert_eq!(opened.map_err(|e| e.raw_os_error()), Err(e.raw_os_error()), "{name}"),
        }
    }
    wait_for("a copy", || reader.open_file(&s.root.join("files/two")).unwrap().place == Place::Copy(0));
}

#[test]
fn a_saved_index_is_compared_under_close_to_open_as_well_and_again() {
    let s = Saved::new(change);
    let set = ["dataset.consistency=close-to-open", "dataset.revalidate=0s"];
    let keep = set
        .iter()
        .fold(s.options(Job::new("sh").args(["-c", "echo kept; cat"])), |job, set| job.option("--set").option(set));
    let mut keeper = s.w.start(&keep);
    keeper.until_written("kept");
    let orders: Vec<String> =
        ["lstat", "read", "list"].iter().flat_map(|call| PATHS.map(|name| s.order(call, name))).collect();
    assert_as_natively(&orders, &s.answers(&orders, &set), &s.bare(&orders));
    assert_eq!(s.w.agent().unwrap().roots[0].consistency, "close-to-open, checked every 0s");
    fs::write(s.root.join("files/kept"), "changed again").unwrap();
    point(&s.root, "kept-link", "files/one");
    assert_as_natively(&orders, &s.answers(&orders, &set), &s.bare(&orders));
}

/// The segment tells the next agent whether an index was loaded, whatever the settings of that
/// agent say.
#[test]
fn after_an_agent_died_its_saved_index_is_believed_no_more_than_before() {
    let s = Saved::new(change);
    let job = Job::new("python3").arg(crate::harness::sources().join("asks.py"));
    let mut running: Running = s.w.start(&s.options(job).option("--set").option("prefetch.enabled=false"));
    s.w.until("the index", |a| a.roots.iter().all(|r| r.state == "ready"));
    let old = agent_pid(&s.w);
    assert!(kill(old, libc::SIGKILL));
    s.w.until("another agent", |a| a.pid as i32 != old && a.jobs == 1 && a.roots.iter().all(|r| r.state == "ready"));
    assert!(s.w.agent().unwrap().roots[0].consistency.contains("saved index"));
    let orders: Vec<String> =
        ["read", "stat", "list"].iter().flat_map(|call| PATHS.map(|name| s.order(call, name))).collect();
    orders.iter().for_each(|order| running.write(format!("{order}\n").as_bytes()));
    let bare = s.bare(&orders);
    let ours = running.end().good().text();
    assert_as_natively(&orders, &ours.lines().map(str::to_owned).collect::<Vec<_>>(), &bare);
}
