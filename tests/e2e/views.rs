//! Processes whose view of the system is not the agent's: another name of a file, a working
//! directory that the shim was not told, other mounts, other rights. They get what the kernel
//! gives.

use crate::faults::open_to_all;
use crate::guest::{python, small};
use crate::harness::{Job, Running, World};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;

/// A directory beside the root, on its device.
fn beside(w: &World) -> PathBuf {
    let dir = w.root().with_file_name("beside");
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Whether this machine lets a process have mounts of its own.
fn can_mount() -> bool {
    std::process::Command::new("unshare").args(["-m", "true"]).output().is_ok_and(|o| o.status.success())
}

#[test]
fn changes_by_a_hard_link_outside_of_the_root_are_seen() {
    let w = World::plan().files(2).args(&["--plain"]).disk();
    let mut w = w.build();
    let outside = beside(&w);
    for name in ["v", "w", "x", "y", "z"] {
        fs::write(w.root().join(name), "before").unwrap();
        fs::hard_link(w.root().join(name), outside.join(name)).unwrap();
    }
    w.settle();
    let script = "import os, sys\n\
         root, out = sys.argv[1:]\n\
         read = lambda name: open(root + '/' + name).read()\n\
         assert [read(n) for n in 'xyz'] == ['before'] * 3\n\
         open(out + '/x', 'r+').write('AFTER!')\n\
         assert read('x') == 'AFTER!', read('x')\n\
         os.truncate(out + '/y', 2)\n\
         assert read('y') == 'be', read('y')\n\
         os.chmod(out + '/z', 0o600)\n\
         assert os.stat(root + '/z').st_mode & 0o777 == 0o600\n\
         assert os.stat(root + '/v').st_nlink == os.stat(root + '/w').st_nlink == 2\n\
         os.unlink(out + '/v')\n\
         open(out + '/other', 'w').write('1')\n\
         os.rename(out + '/other', out + '/w')\n\
         assert os.stat(root + '/v').st_nlink == os.stat(root + '/w').st_nlink == 1\n";
    w.run(&Job::new("python3").arg("-c").arg(script).arg(w.root()).arg(&outside)).good();
}

#[test]
fn a_working_directory_that_another_process_renames_is_not_taken_for_another() {
    let w = small();
    python(
        &w,
        "import subprocess\n\
         os.chdir(root + '/a')\n\
         assert read('x') == 'x of a'\n\
         subprocess.run(['mv', root + '/a', root + '/c'], check=True)\n\
         subprocess.run(['mv', root + '/b', root + '/a'], check=True)\n\
         assert read('x') == 'x of a', read('x')\n\
         assert os.stat('x').st_ino == os.stat(root + '/c/x').st_ino\n\
         os.rename(root + '/c', root + '/d')\n\
         assert read('x') == 'x of a'\n\
         open('x', 'w').write('new')\n\
         assert read(root + '/d/x') == 'new' and read(root + '/a/x') == 'x of b'\n",
    );
}

#[test]
fn a_working_directory_changed_by_number_or_by_a_task_of_its_own_is_asked_for() {
    let w = small();
    python(
        &w,
        "os.chdir(root + '/a')\n\
         assert read('x') == 'x of a'\n\
         assert libc.syscall(80, (root + '/b').encode()) == 0\n\
         assert read('x') == 'x of b', read('x')\n\
         # A task that shares the memory, not the working directory.\n\
         CLONE_VM, SIGCHLD = 0x100, 17\n\
         stack = ctypes.create_string_buffer(1 << 20)\n\
         top = ctypes.c_void_p(ctypes.addressof(stack) + (1 << 20) - 64)\n\
         @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)\n\
         def unused(_): return 0\n\
         os.chdir('/')\n\
         os.stat('usr')\n\
         pid = os.fork()\n\
         if pid == 0:\n\
         \x20   os.chdir(root + '/a')\n\
         \x20   os._exit(read('x') != 'x of a')\n\
         assert os.waitpid(pid, 0)[1] == 0\n\
         os.chdir(root + '/b')\n\
         assert read('x') == 'x of b'\n",
    );
}

#[test]
fn a_directory_whose_name_ends_like_a_removed_one_is_no_removed_one() {
    let mut w = World::plan().files(2).args(&["--plain"]).disk().build();
    for dir in ["gone", "gone (deleted)"] {
        fs::create_dir(w.root().join(dir)).unwrap();
        fs::write(w.root().join(dir).join("x"), dir).unwrap();
    }
    w.settle();
    python(
        &w,
        "there = os.open(root + '/gone (deleted)', os.O_RDONLY)\n\
         gone = os.open(root + '/gone', os.O_RDONLY)\n\
         os.unlink(root + '/gone/x'); os.rmdir(root + '/gone')\n\
         assert os.read(os.open('x', os.O_RDONLY, dir_fd=there), 99) == b'gone (deleted)'\n\
         try: os.stat('x', dir_fd=gone); assert False\n\
         except FileNotFoundError: pass\n",
    );
}

#[test]
fn mounts_that_a_child_makes_in_a_private_namespace_are_seen_there() {
    if !can_mount() {
        return;
    }
    let w = small();
    let other = beside(&w);
    fs::write(other.join("x"), "other data").unwrap();
    // The shell has looked before its child mounts something, and reads by itself afterwards.
    for (mount, path, expected) in [
        ("mount --bind $1 $0/a", "a/x", "other data"),
        ("mount --bind $1/x $0/b/x", "b/x", "other data"),
        ("mount -t tmpfs none $0/a && echo fresh > $0/a/x", "a/x", "fresh"),
        ("mount --bind $1 $0", "x", "other data"),
        (
            "mkdir -p /tmp/upper.$$ && mount -t tmpfs none /tmp/upper.$$ && mkdir /tmp/upper.$$/u /tmp/upper.$$/w && \
          mount -t overlay none -o lowerdir=$1,upperdir=/tmp/upper.$$/u,workdir=/tmp/upper.$$/w $0/a",
            "a/x",
            "other data",
        ),
    ] {
        let script = format!(
            "read -r l < $0/a/x; [ \"$l\" = 'x of a' ] || exit 3; read -r l < $0/b/x; {mount} || exit 77; \
             read -r l < $0/{path}; echo \"$l\"; cat $0/{path}"
        );
        let job = Job::new("unshare").args(["-m", "bash", "-c"]).arg(script).arg(w.root()).arg(&other);
        let ended = w.run(&job);
        if ended.status.code() == Some(77) {
            continue;
        }
        let text = ended.good().text();
        assert_eq!(text.trim_end().lines().collect::<Vec<_>>(), [expected, expected], "{mount}");
    }
}

#[test]
fn a_process_that_makes_another_directory_its_root_sees_what_lies_there() {
    if !can_mount() {
        return;
    }
    let w = small();
    let root = w.root().to_str().unwrap();
    // A tree in which another file has the path of the root's.
    let jail = w.scratch().join("jail");
    let inside = jail.join(root.trim_start_matches('/'));
    fs::create_dir_all(&inside).unwrap();
    fs::write(inside.join("x"), "of the jail").unwrap();
    fs::create_dir_all(jail.join("old")).unwrap();
    let script = "jail = sys.argv[2]\n\
         assert read(root + '/x') == 'x of the root'\n\
         CLONE_NEWNS = 0x20000\n\
         MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18\n\
         def child():\n\
         \x20   assert libc.unshare(CLONE_NEWNS) == 0\n\
         \x20   assert libc.mount(b'none', b'/', None, MS_REC | MS_PRIVATE, None) == 0\n\
         \x20   assert libc.mount(jail.encode(), jail.encode(), None, MS_BIND, None) == 0\n\
         \x20   assert libc.syscall(155, jail.encode(), (jail + '/old').encode()) == 0\n\
         \x20   os.chdir('/')\n\
         def jailed(): os.chroot(jail)\n\
         def by_number(): assert libc.syscall(161, jail.encode()) == 0\n\
         for enter in [child, jailed, by_number]:\n\
         \x20   pid = os.fork()\n\
         \x20   if pid == 0:\n\
         \x20       enter()\n\
         \x20       found = read(root + '/x')\n\
         \x20       os._exit(0 if found == 'of the jail' else 1)\n\
         \x20   assert os.waitpid(pid, 0)[1] == 0, enter.__name__\n\
         assert read(root + '/x') == 'x of the root'\n";
    let text = format!(
        "import ctypes, os, sys\nroot = sys.argv[1]\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         def read(p):\n    with open(p) as f: return f.read()\n{script}"
    );
    w.run(&Job::new("python3").arg("-c").arg(text).arg(w.root()).arg(&jail)).good();
}

#[test]
fn writes_by_a_container_with_the_root_at_another_path_are_seen_outside() {
    if !can_mount() {
        return;
    }
    let w = small();
    let elsewhere = w.scratch().join("data");
    fs::create_dir(&elsewhere).unwrap();
    // In a namespace of its own the root lies at another path only; the job outside reads what was
    // changed there.
    let script = "cat $0/x $0/a/x >/dev/null; ls $0/b >/dev/null\n\
         unshare -m bash -c 'mount --bind $0 $1 && mount -t tmpfs none $0 && cd / && \
             echo changed > $1/x && echo more >> $1/a/x && echo new > $1/b/new && rm $1/b/x' $0 $1 || exit 77\n\
         cat $0/x $0/a/x; ls $0/b";
    let ended = w.run(&Job::new("bash").arg("-c").arg(script).arg(w.root()).arg(&elsewhere));
    if ended.status.code() == Some(77) {
        return;
    }
    assert_eq!(ended.good().text(), "changed\nx of amore\nnew\n");
}

#[test]
fn changes_through_a_mount_over_another_part_of_the_root_are_seen() {
    if !can_mount() {
        return;
    }
    let w = small();
    // A directory over another one, in a namespace of its own: by each kind of call.
    let script = "cat $0/x $0/b/x >/dev/null; ls $0/b >/dev/null; stat $0/b/x >/dev/null\n\
         unshare -m sh -c 'mount --bind $0/b $0/a && echo changed > $0/a/x && mkdir $0/a/new && echo y > $0/a/y && \
             mv $0/a/y $0/a/z && chmod 600 $0/a/x' $0 || exit 77\n\
         cat $0/b/x; ls $0/b; stat -c %a $0/b/x; cat $0/a/x";
    let ended = w.run(&Job::new("bash").arg("-c").arg(script).arg(w.root()));
    if ended.status.code() == Some(77) {
        return;
    }
    assert_eq!(ended.good().text(), "changed\nnew\nx\nz\n600\nx of a");
    // A file over another one, where all processes of the job see it.
    let w = small();
    let script = "cat $0/x $0/a/x $0/b/x >/dev/null; stat $0/b/x >/dev/null\n\
         mount --bind $0/b/x $0/a/x || exit 77; trap 'umount $0/a/x' EXIT\n\
         echo changed > $0/a/x; cat $0/b/x; chmod 600 $0/a/x; stat -c %a $0/b/x; truncate -s 3 $0/a/x; cat $0/b/x; echo";
    let ended = w.run(&Job::new("bash").arg("-c").arg(script).arg(w.root()));
    if ended.status.code() != Some(77) {
        assert_eq!(ended.good().text(), "changed\n600\ncha\n");
    }
}

#[test]
fn a_process_with_fewer_capabilities_reads_no_more_than_the_kernel_allows() {
    let mut w = World::plan().files(2).args(&["--plain"]).disk().build();
    let secret = w.root().join("secret");
    fs::write(&secret, "for its owner").unwrap();
    chown(&secret, Some(1234), Some(1234)).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let shut = w.root().join("shut");
    fs::create_dir(&shut).unwrap();
    fs::write(shut.join("x"), "behind a door").unwrap();
    chown(&shut, Some(1234), Some(1234)).unwrap();
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o700)).unwrap();
    w.settle();
    // Root without the capabilities that override modes; by capset, by its number, and in a child
    // user namespace.
    python(
        &w,
        "import struct\n\
         assert read(root + '/secret') == 'for its owner'\n\
         def denied(what):\n\
         \x20   try: what()\n\
         \x20   except PermissionError: return\n\
         \x20   os._exit(9)\n\
         def look():\n\
         \x20   denied(lambda: read(root + '/secret'))\n\
         \x20   denied(lambda: os.listdir(root + '/shut'))\n\
         \x20   denied(lambda: os.stat(root + '/shut/x'))\n\
         header = struct.pack('=Ii', 0x20080522, 0)\n\
         def drop(call):\n\
         \x20   data = bytearray(24)\n\
         \x20   buf = (ctypes.c_char * 24).from_buffer(data)\n\
         \x20   assert libc.capget(header, buf) == 0\n\
         \x20   words = list(struct.unpack('=6I', data))\n\
         \x20   words[0] &= ~6\n\
         \x20   assert call(header, struct.pack('=6I', *words)) == 0\n\
         def by_number(h, d): return libc.syscall(126, h, d)\n\
         def new_users():\n\
         \x20   assert libc.unshare(0x10000000) == 0\n\
         for enter in [lambda: drop(libc.capset), lambda: drop(by_number), new_users, lambda: os.setresuid(4321, 4321, 4321)]:\n\
         \x20   pid = os.fork()\n\
         \x20   if pid == 0:\n\
         \x20       enter()\n\
         \x20       look()\n\
         \x20       os._exit(0)\n\
         \x20   assert os.waitpid(pid, 0)[1] == 0\n\
         assert read(root + '/secret') == 'for its owner'\n",
    );
    // A program started without them finds out at its start.
    let words = ["--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search", "cat"];
    let ended = w.run(&Job::new("setpriv").args(words).arg(&secret));
    assert!(!ended.status.success() && ended.out.is_empty(), "{}", ended.text());
    // One of the two is enough to read everything; containers commonly have one.
    for dropped in ["-dac_override", "-dac_read_search"] {
        let words = [format!("--bounding-set={dropped}"), format!("--inh-caps={dropped}")];
        let script = "import os, sys; print(os.readlink('/proc/self/fd/%d' % os.open(sys.argv[1], os.O_RDONLY)))";
        let job = Job::new("setpriv").args(words).args(["python3", "-c", script]).arg(&secret);
        let opened = w.run(&job).good().text();
        assert!(!opened.contains("secret"), "{dropped}: not a copy: {opened}");
    }
}

#[test]
fn a_thread_with_another_user_for_files_reads_what_that_user_may() {
    let mut w = World::plan().files(2).args(&["--plain"]).disk().build();
    fs::write(w.root().join("secret"), "of root").unwrap();
    fs::set_permissions(w.root().join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    w.settle();
    open_to_all(w.root());
    python(
        &w,
        "import threading\n\
         assert read(root + '/secret') == 'of root'\n\
         result = []\n\
         def other():\n\
         \x20   libc.syscall(122, 1234)\n\
         \x20   try: result.append(read(root + '/secret'))\n\
         \x20   except PermissionError: result.append('denied')\n\
         t = threading.Thread(target=other); t.start(); t.join()\n\
         assert result == ['denied'], result\n",
    );
}

#[test]
fn a_link_to_another_link_of_the_same_name_does_not_confuse_parents() {
    let w = small();
    let outside = beside(&w);
    symlink(w.root(), outside.join("way")).unwrap();
    let script = "import os, sys\n\
         root, out = sys.argv[1:]\n\
         assert 'made' not in os.listdir(root + '/a')\n\
         os.chdir(out)\n\
         open('way/a/made', 'w').write('1')\n\
         assert 'made' in os.listdir(root + '/a')\n\
         os.rename('way/a/made', 'way/b/made')\n\
         assert 'made' not in os.listdir(root + '/a') and 'made' in os.listdir(root + '/b')\n";
    w.run(&Job::new("python3").arg("-c").arg(script).arg(w.root()).arg(&outside)).good();
}

#[test]
fn files_of_an_overlay_have_the_devices_of_their_layers() {
    // Two layers on two file systems, as a container has them: a directory on disk below, memory
    // above.
    let w = World::plan().files(2).args(&["--plain"]).disk().build();
    let (lower, upper, merged) = (beside(&w), w.scratch().join("upper"), w.scratch().join("merged"));
    for dir in [&upper, &merged] {
        fs::create_dir_all(dir).unwrap();
    }
    fs::write(lower.join("below"), "below").unwrap();
    let script = "set -e; mount -t tmpfs none $2; mkdir $2/u $2/w; \
         mount -t overlay none -o lowerdir=$1,upperdir=$2/u,workdir=$2/w $3 || exit 77; echo above > $3/above; shift 3; exec \"$@\"";
    // Numbers of such devices are the kernel's choice at each mount: as `stat` reports them without
    // the shim.
    let look = "import os, subprocess, sys, time\n\
         root = sys.argv[1]\n\
         def true(name): return int(subprocess.run(['stat', '-c', '%d', root + '/' + name], env={'PATH': os.environ['PATH']}, capture_output=True).stdout)\n\
         for turn in range(2):\n\
         \x20   for name in ['above', 'below']:\n\
         \x20       f = open(root + '/' + name); s, d = os.stat(root + '/' + name), os.fstat(f.fileno())\n\
         \x20       print(name, s.st_dev == true(name), d.st_dev == true(name), s.st_ino, d.st_ino, s.st_mode, d.st_mode, f.read())\n\
         \x20   time.sleep(1)\n";
    let job = |root: &std::path::Path| Job::new("python3").arg("-c").arg(look).arg(root);
    let inside = |command: &std::process::Command| {
        let mut words =
            vec!["unshare", "-m", "sh", "-c", script, "sh"].into_iter().map(String::from).collect::<Vec<_>>();
        words.extend([&lower, &upper, &merged].map(|p| p.display().to_string()));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        crate::faults::around(&words, command).stdin(std::process::Stdio::null()).output().unwrap()
    };
    let mut bare = std::process::Command::new("python3");
    bare.args(["-c", look]).arg(&merged);
    let bare = inside(&bare);
    if bare.status.code() == Some(77) || String::from_utf8_lossy(&bare.stderr).contains("not permitted") {
        return;
    }
    let mut run = w.monarch("run");
    run.args(["--set", "dataset.min_file_age=0s", "--root"]).arg(&merged).arg("--tier").arg(w.tier()).arg("--");
    run.args(job(&merged).words());
    let ours = inside(&run);
    assert!(ours.status.success(), "{}", String::from_utf8_lossy(&ours.stderr));
    assert_eq!(String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&bare.stdout));
    assert!(!String::from_utf8_lossy(&bare.stdout).contains("False"), "{}", String::from_utf8_lossy(&bare.stdout));
}

#[test]
fn a_file_made_unreadable_is_denied_at_the_next_open_under_close_to_open() {
    let plan = World::plan().files(2).args(&["--plain"]).disk();
    let w = plan.set("dataset.consistency=close-to-open").set("dataset.revalidate=0s").build();
    let (file, dir) = (w.root().join("file"), w.root().join("dir"));
    fs::write(&file, "readable").unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("x"), "below").unwrap();
    open_to_all(w.root());
    for own in [w.tier(), w.runtime()] {
        open_to_all(own);
        fs::create_dir_all(own).unwrap();
        chown(own, Some(1234), Some(1234)).unwrap();
    }
    let script = "for i in 1 2 3; do cat $0/file $0/dir/x >/dev/null; ls $0/dir >/dev/null; sleep 0.2; done; echo ready; read -r l; \
         cat $0/file; ls $0/dir; cat $0/dir/x; [ -r $0/file ] && echo readable; echo end";
    let job = Job::new("sh").arg("-c").arg(script).arg(w.root());
    let words = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups"];
    let mut running = Running::new(crate::faults::around(&words, &w.monarch_run(&job)));
    running.until_written("ready");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    running.write(b"\n");
    let ended = running.end();
    assert_eq!(ended.text(), "ready\nend\n", "{}", ended.errors());
    assert!(ended.errors().matches("Permission denied").count() >= 3, "{}", ended.errors());
}

#[test]
fn a_process_that_walls_itself_in_reads_nothing_behind_the_wall_after_exec_either() {
    let w = small();
    // Landlock: all but the root may be read. (Rules outlive exec.)
    let script = "import ctypes, os, struct, subprocess, sys\n\
         root, places = sys.argv[1], sys.argv[2:]\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         assert open(root + '/x').read() == 'x of the root'\n\
         READ = 1 << 2 | 1 << 3\n\
         rules = libc.syscall(444, struct.pack('=Q', READ), 8, 0)\n\
         if rules < 0: print('none'); sys.exit()\n\
         for place in ['/usr', '/lib', '/lib64', '/bin', '/etc', '/proc', '/dev', '/root'] + places:\n\
         \x20   try: at = os.open(place, os.O_PATH)\n\
         \x20   except OSError: continue\n\
         \x20   libc.syscall(445, rules, 1, struct.pack('=Qi', READ, at), 0)\n\
         assert libc.prctl(38, 1, 0, 0, 0) == 0\n\
         if libc.syscall(446, rules, 0) != 0: print('none'); sys.exit()\n\
         try: open(root + '/x'); print('opened')\n\
         except PermissionError: print('denied')\n\
         print(subprocess.run(['cat', root + '/x'], capture_output=True).stdout)\n";
    let places = [w.tier(), w.runtime()];
    let text = w.run(&Job::new("python3").arg("-c").arg(script).arg(w.root()).args(places)).good().text();
    assert!(text == "none\n" || text == "denied\nb''\n", "{text}");
}
