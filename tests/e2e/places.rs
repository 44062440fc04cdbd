//! Other mounts at the same path, foreign or broken shared memory, directories that are full,
//! squatted or wiped: the job reads the bytes that the kernel would have given it.

use crate::faults::{Loop, Tmpfs, around, control, kill, reads, regular, wait_for, with_control};
use crate::harness::{Job, World, assert_same};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

fn world() -> World {
    let mut w = World::plan().files(20).args(&["--plain"]).build();
    w.settle();
    w
}

/// One of the data files, below the root.
fn some_file(w: &World) -> PathBuf {
    let mut all = regular(w.backing());
    all.sort();
    let rel = all.iter().find(|p| p.extension().is_some_and(|e| e == "bin")).unwrap();
    w.root().join(rel.strip_prefix(w.backing()).unwrap())
}

/// A directory with another file of the same name as `file` of the root.
fn other_data(w: &World, file: &Path) -> PathBuf {
    let other = w.scratch().join("other");
    let twin = other.join(file.strip_prefix(w.root()).unwrap());
    fs::create_dir_all(twin.parent().unwrap()).unwrap();
    fs::write(twin, "other data").unwrap();
    other
}

#[test]
fn another_mount_at_the_path_of_the_root() {
    let w = world();
    let file = some_file(&w);
    let other = other_data(&w, &file);
    // Mounted before the process starts, and by the process itself.
    let outer = "mount --bind \"$1\" \"$2\" && exec cat \"$3\"";
    let job =
        |script: &str| Job::new("unshare").args(["-m", "sh", "-c", script, "sh"]).arg(&other).arg(w.root()).arg(&file);
    let bare = w.bare(&job(outer));
    if !bare.status.success() {
        println!("skipped: {}", bare.errors());
        return;
    }
    assert_eq!(bare.text(), "other data");
    assert_same(&bare, &w.run(&job(outer)));
    assert_eq!(w.counter("other_mount"), 1);
    let inner = "import ctypes, os, sys\n\
        other, root, file = map(os.fsencode, sys.argv[1:])\n\
        before = open(file, 'rb').read()\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        assert libc.unshare(0x20000) == 0\n\
        assert open(file, 'rb').read() == before\n\
        assert libc.mount(b'none', b'/', None, 0x44000, None) == 0\n\
        assert libc.mount(other, root, None, 4096, None) == 0, ctypes.get_errno()\n\
        print(open(file).read(), os.stat(file).st_size, sorted(os.listdir(root)))\n\
        assert libc.umount2(root, 2) == 0\n\
        assert open(file, 'rb').read() == before\n";
    w.same(&Job::new("python3").args(["-c", inner]).arg(&other).arg(w.root()).arg(&file)).good();
    assert_eq!(w.counter("other_mount"), 2);
    // No other process is concerned.
    let hits = w.counter("hits");
    w.run(&reads(&w)).good();
    assert_eq!(w.counter("hits"), hits + 20);
}

#[test]
fn another_directory_at_the_path_of_an_alias() {
    let w = world();
    let file = some_file(&w);
    let (link, rel) = (w.scratch().join("link"), file.strip_prefix(w.root()).unwrap());
    symlink(w.root(), &link).unwrap();
    let other = other_data(&w, &file);
    // In the job's namespace a directory of its own lies where the link was; the root itself is the
    // same.
    let script = "import ctypes, os, sys\n\
        link, other, rel = sys.argv[1:]\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        n = len(open(link + '/' + rel, 'rb').read())\n\
        assert libc.unshare(0x20000) == 0\n\
        assert libc.mount(b'none', b'/', None, 0x44000, None) == 0\n\
        here = os.path.dirname(link)\n\
        assert libc.mount(b'none', here.encode(), b'tmpfs', 0, None) == 0, ctypes.get_errno()\n\
        os.makedirs(os.path.dirname(link + '/' + rel))\n\
        open(link + '/' + rel, 'w').write('of the job')\n\
        print(n, open(link + '/' + rel).read(), os.stat(link + '/' + rel).st_size, open(link + '/' + rel).read())\n";
    let job = Job::new("python3").args(["-c", script]).arg(&link).arg(&other).arg(rel).dir("/");
    let bare = w.bare(&job);
    if bare.status.success() {
        assert_same(&bare, &w.run(&job));
    } else {
        println!("skipped: {}", bare.errors());
    }
}

#[test]
fn another_root_directory_of_the_process() {
    let w = world();
    let file = some_file(&w);
    let other = other_data(&w, &file);
    let tree = w.scratch().join("tree");
    let there = tree.join(w.root().strip_prefix("/").unwrap());
    fs::create_dir_all(there.parent().unwrap()).unwrap();
    fs::rename(other, &there).unwrap();
    let script = "import os, sys\n\
        tree, file = sys.argv[1:]\n\
        a = open(file, 'rb').read()\n\
        os.chroot(tree)\n\
        print(open(file).read(), os.stat(file).st_size, os.listdir(os.path.dirname(file)))\n\
        pid = os.fork()\n\
        if pid == 0:\n\
        \x20   print(open(file).read(), flush=True)\n\
        \x20   os._exit(0)\n\
        os.waitpid(pid, 0)\n";
    w.same(&Job::new("python3").args(["-u", "-c", script]).arg(&tree).arg(&file)).good();
}

#[test]
fn the_job_mounts_something_below_the_root() {
    let w = world();
    let file = some_file(&w);
    let script = "import ctypes, os, sys\n\
        dir, file = map(os.fsencode, sys.argv[1:])\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        n = len(os.listdir(dir))\n\
        assert libc.mount(b'none', dir, b'tmpfs', 0, None) == 0, ctypes.get_errno()\n\
        try:\n\
        \x20   print(n, os.listdir(dir), os.path.exists(file))\n\
        \x20   open(file, 'w').write('mine')\n\
        \x20   print(open(file).read())\n\
        finally:\n\
        \x20   assert libc.umount2(dir, 0) == 0\n\
        print(len(open(file, 'rb').read()), len(os.listdir(dir)))\n";
    let job = Job::new("python3").args(["-c", script]).arg(file.parent().unwrap()).arg(&file);
    let bare = w.bare(&job);
    if bare.status.success() {
        assert_same(&bare, &w.run(&job));
    } else {
        println!("skipped: {}", bare.errors());
    }
}

/// By a program without the shim: the job saw the directory as it had been.
#[test]
fn a_mount_that_another_process_makes_below_the_root_is_seen() {
    let w = world();
    let dir = some_file(&w).parent().unwrap().to_owned();
    let script = "import os, sys, time\n\
        dir = sys.argv[1]; before = os.listdir(dir)\n\
        print('ready' if before else 'empty', flush=True); sys.stdin.readline()\n\
        end = time.time() + 10\n\
        while os.listdir(dir) != ['here'] and time.time() < end: time.sleep(0.01)\n\
        print(os.listdir(dir), open(dir + '/here').read(), os.path.exists(os.path.join(dir, before[0])))\n";
    let mut job = w.start(&Job::new("python3").args(["-c", script]).arg(&dir));
    job.until_written("ready");
    let mount = |program: &str, args: &[&str]| std::process::Command::new(program).args(args).arg(&dir).status();
    if !mount("mount", &["-t", "tmpfs", "none"]).is_ok_and(|s| s.success()) {
        println!("skipped: nothing can be mounted");
        return;
    }
    fs::write(dir.join("here"), "mounted").unwrap();
    job.begin();
    let ended = job.end();
    assert!(mount("umount", &["-l"]).unwrap().success());
    assert_eq!(ended.good().text(), "ready\n['here'] mounted False\n");
}

#[test]
fn shared_memory_of_other_programs_is_left_alone() {
    let w = world();
    let real = fs::read(control(&w)).unwrap();
    let at = |name: &str| w.scratch().join(name);
    let put = |name: &str, bytes: &[u8]| {
        fs::write(at(name), bytes).unwrap();
        at(name)
    };
    let mut version = real.clone();
    version[8] ^= 0x55;
    let noise: Vec<u8> = (0..real.len()).map(|i| ((i * 2_654_435_761) >> 7) as u8).collect();
    let mut half_noise = real.clone();
    half_noise[64..].copy_from_slice(&noise[64..]);
    let foreign = put("foreign", &real);
    chown(&foreign, Some(65534), Some(65534)).unwrap();
    let open_to_others = put("open", &real);
    fs::set_permissions(&open_to_others, fs::Permissions::from_mode(0o666)).unwrap();
    symlink(control(&w), at("link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let all = [
        put("empty", b""),
        put("short", &real[..100]),
        put("cut", &real[..real.len() / 2]),
        put("noise", &noise),
        put("half noise", &half_noise),
        put("version", &version),
        foreign,
        open_to_others,
        at("fifo"),
        at("nothing"),
        w.scratch().to_owned(),
        PathBuf::from("/dev/zero"),
        PathBuf::from("relative/control"),
        PathBuf::new(),
    ];
    let bare = w.bare(&reads(&w)).good();
    let text = |t: String| t.lines().map(|l| l.split(" slowest").next().unwrap().to_owned()).collect::<Vec<_>>();
    for path in all {
        let hits = w.counter("hits");
        let ours = w.bare(&with_control(reads(&w), &path));
        assert!(ours.status.success(), "{}: {}", path.display(), ours.errors());
        assert_eq!((text(ours.text()), ours.errors()), (text(bare.text()), String::new()), "{}", path.display());
        assert_eq!(w.counter("hits"), hits, "{}", path.display());
    }
}

#[test]
fn an_agent_whose_name_is_squatted_takes_another_or_the_job_reads_the_pfs() {
    for squat in ["foreign", "link", "file", "open"] {
        let w = World::plan().files(8).args(&["--plain"]).build();
        let uid = rustix::process::getuid().as_raw();
        for base in [w.runtime(), w.tier()] {
            let name = base.join(format!("monarch-{uid}"));
            fs::create_dir_all(base).unwrap();
            match squat {
                "foreign" => {
                    fs::create_dir(&name).unwrap();
                    chown(&name, Some(65534), Some(65534)).unwrap();
                }
                "link" => {
                    fs::create_dir_all(w.scratch().join("elsewhere")).unwrap();
                    symlink(w.scratch().join("elsewhere"), &name).unwrap();
                }
                "file" => fs::write(&name, "").unwrap(),
                _ => {
                    fs::create_dir(&name).unwrap();
                    fs::set_permissions(&name, fs::Permissions::from_mode(0o777)).unwrap();
                }
            }
        }
        let ended = w.run(&reads(&w).args(["--rounds", "2"])).good();
        assert!(ended.errors().lines().count() <= 1, "{squat}: {}", ended.errors());
        assert_eq!(
            fs::read_dir(w.scratch().join("elsewhere")).map_or(0, Iterator::count),
            0,
            "{squat}: a link was followed"
        );
    }
}

#[test]
fn no_room_for_shared_memory() {
    let Some(tmpfs) = Tmpfs::mount("size=64k") else { return };
    let w = World::plan().files(8).args(&["--plain"]).build();
    let job = reads(&w).option("--set").option(format!("runtime_dir={}", tmpfs.path().display()));
    let ended = w.run(&job).good();
    assert!(ended.errors().lines().count() <= 1, "{}", ended.errors());
}

#[test]
fn no_room_for_the_index() {
    // The control block fits, the index of so many files does not.
    let Some(tmpfs) = Tmpfs::mount("size=3m") else { return };
    let w = World::plan().files(3000).size(2000).args(&["--plain"]).build();
    let filler = tmpfs.path().join("filler");
    let job = reads(&w).option("--set").option(format!("runtime_dir={}", tmpfs.path().display()));
    let size = tmpfs.free().saturating_sub(1_500_000);
    fs::write(&filler, vec![1u8; size as usize]).unwrap();
    let ended = w.run(&job).good();
    assert!(ended.errors().lines().count() <= 1, "{}", ended.errors());
}

#[test]
fn the_runtime_directory_is_wiped_under_a_job() {
    let w = world();
    let readers = Loop::start(&w, &["--procs", "2"]);
    let old = crate::faults::agent_pid(&w);
    for dir in fs::read_dir(w.runtime()).unwrap().flatten() {
        fs::remove_dir_all(dir.path()).unwrap();
    }
    readers.more(3);
    wait_for("the next agent", || w.agent().is_some_and(|s| s.pid as i32 != old));
    readers.more(3);
    readers.end();
    assert!(!kill(old, 0), "the old agent is still there");
    // Later jobs find everything again.
    w.run(&reads(&w)).good();
    w.until("all copies", |s| s.tiers[0].files == 20);
}

#[test]
fn times_far_in_the_future_do_not_keep_a_file_from_being_copied() {
    let mut w = World::plan().files(6).args(&["--plain"]).build();
    let far = std::time::SystemTime::now() + std::time::Duration::from_secs(400 * 86_400);
    for p in regular(w.backing()) {
        fs::File::options().write(true).open(p).unwrap().set_modified(far).unwrap();
    }
    w.settle();
    let hits = w.counter("hits");
    w.run(&reads(&w)).good();
    assert_eq!(w.counter("hits"), hits + 6);
}

#[test]
fn under_a_fork_storm_the_agent_and_the_readers_live() {
    let w = world();
    let script = "import os, sys, time\n\
        end = time.monotonic() + 4\n\
        paths = [os.path.join(d, f) for d, _, fs in os.walk(sys.argv[1]) for f in fs]\n\
        n = 0\n\
        while time.monotonic() < end:\n\
        \x20   pids = []\n\
        \x20   for i in range(64):\n\
        \x20       pid = os.fork()\n\
        \x20       if pid == 0:\n\
        \x20           for p in paths[i % 7::7]:\n\
        \x20               with open(p, 'rb') as f: f.read(100)\n\
        \x20           os._exit(0)\n\
        \x20       pids.append(pid)\n\
        \x20   for pid in pids:\n\
        \x20       assert os.waitpid(pid, 0)[1] == 0\n\
        \x20   n += 64\n\
        print('ok')\n";
    let old = crate::faults::agent_pid(&w);
    let readers = Loop::start(&w, &[]);
    let ended = w.run(&Job::new("python3").args(["-c", script]).arg(w.root())).good();
    assert_eq!(ended.text(), "ok\n");
    readers.more(1);
    readers.end();
    assert_eq!(crate::faults::agent_pid(&w), old);
}

#[test]
fn in_a_mount_namespace_of_its_own_the_whole_job_is_served() {
    let w = World::plan().files(20).args(&["--plain"]).build();
    // `run` itself inside: its agent sees what its job sees.
    let report = w.scratch().join("report.json");
    let job = reads(&w).args(["--rounds", "20"]).option("--report").option(&report);
    let mut c = around(&["unshare", "-m"], &w.monarch_run(&job));
    let out = c.stdin(std::process::Stdio::null()).output().unwrap();
    if String::from_utf8_lossy(&out.stderr).contains("Operation not permitted") {
        return;
    }
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert!(report.pointer("/counters/hits").and_then(serde_json::Value::as_u64) > Some(20), "{report:#}");
}
