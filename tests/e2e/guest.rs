//! Corners in which a program could notice a preloaded library: working directories, links and
//! mounts on the way to a root, descriptors of files that have moved, rights that have changed.

use crate::faults::{around, open_to_all, regular};
use crate::harness::{Job, World};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::Stdio;

/// A root on a plain disk with `x`, `a/x`, `b/x`, `empty/` and `run.sh`; everything resident.
pub fn small() -> World {
    let w = World::plan().files(2).args(&["--plain"]).disk();
    let mut w = w.build();
    for dir in ["a", "b", "empty"] {
        fs::create_dir(w.root().join(dir)).unwrap();
    }
    for (name, text) in
        [("x", "x of the root"), ("a/x", "x of a"), ("b/x", "x of b"), ("run.sh", "#!/bin/sh\necho ran $1\n")]
    {
        fs::write(w.root().join(name), text).unwrap();
    }
    fs::set_permissions(w.root().join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    w.settle();
    w
}

/// Runs a Python script with the root as its argument; a failed assertion fails the job.
#[track_caller]
pub fn python(w: &World, text: &str) -> String {
    let prelude = "import ctypes, os, sys\n\
                   root = sys.argv[1]\n\
                   libc = ctypes.CDLL(None, use_errno=True)\n\
                   read = lambda p: open(p).read()\n";
    w.run(&Job::new("python3").arg("-c").arg(format!("{prelude}{text}")).arg(w.root())).good().text()
}

#[test]
fn a_walk_that_changes_directory_inside_libc() {
    let w = small();
    python(
        &w,
        "os.chdir(root)\n\
         assert read('x') == 'x of the root'\n\
         seen = []\n\
         @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int * 2))\n\
         def visit(path, st, kind, where):\n\
         \x20   if path.endswith(b'/x'): seen.append(read(path[where.contents[0]:]))\n\
         \x20   return 0\n\
         assert libc.nftw(b'a', visit, 9, 4 | 1) == 0\n\
         assert seen == ['x of a'], seen\n\
         assert read('x') == 'x of the root'\n",
    );
}

#[test]
fn relative_paths_of_forked_workers_and_their_children() {
    let w = small();
    python(
        &w,
        "import subprocess\n\
         os.chdir(root + '/a')\n\
         assert read('x') == 'x of a'\n\
         for n in range(3):\n\
         \x20   pid = os.fork()\n\
         \x20   if pid == 0:\n\
         \x20       ok = read('x') == 'x of a'\n\
         \x20       subprocess.run(['cat', 'x'], cwd='../b', stdout=subprocess.DEVNULL)\n\
         \x20       ok = ok and read('x') == 'x of a'\n\
         \x20       os.chdir('../b')\n\
         \x20       os._exit(0 if ok and read('x') == 'x of b' else 1)\n\
         \x20   assert os.waitpid(pid, 0)[1] == 0\n\
         assert read('x') == 'x of a'\n",
    );
}

#[test]
fn a_root_that_is_renamed_and_replaced() {
    let w = small();
    python(
        &w,
        "assert read(root + '/x') == 'x of the root'\n\
         os.mkdir(root + '.new')\n\
         open(root + '.new/x', 'w').write('new')\n\
         try: os.rmdir(root)\n\
         except OSError: pass\n\
         assert read(root + '/x') == 'x of the root'\n\
         os.rename(root, root + '.old')\n\
         assert not os.path.exists(root + '/x')\n\
         os.rename(root + '.new', root)\n\
         assert read(root + '/x') == 'new' and os.listdir(root) == ['x']\n",
    );
}

#[test]
fn calls_that_fail_do_not_cost_the_root_its_copies() {
    let w = small();
    let before = w.counter("hits");
    python(
        &w,
        "for call in (os.rmdir, os.unlink, lambda p: os.rename(p, '/proc/x'), os.mkdir):\n\
         \x20   try: call(root)\n\
         \x20   except OSError: continue\n\
         \x20   assert False\n\
         os.makedirs(root + '/a', exist_ok=True)\n\
         assert read(root + '/x') == 'x of the root' and read(root + '/b/x') == 'x of b'\n",
    );
    assert!(w.counter("hits") >= before + 2);
}

#[test]
fn a_link_to_the_root_that_the_job_repoints() {
    let w = small();
    let (link, other) = (w.scratch().join("data"), w.scratch().join("other"));
    symlink(w.root(), &link).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("x"), "other").unwrap();
    let hits = w.counter("hits");
    let script =
        "cat data/x; ln -sfn other data; cat data/x; rm data; cat data/x 2>/dev/null; ln -s \"$1\" data; cat data/x";
    let ended = w.run(&Job::new("sh").args(["-c", script, "sh"]).arg(w.root()).dir(w.scratch())).good();
    assert_eq!(ended.text(), "x of the roototherx of the root");
    assert!(w.counter("hits") > hits);
}

#[test]
fn a_directory_that_the_job_replaced_by_a_link() {
    let w = small();
    python(
        &w,
        "assert read(root + '/a/x') == 'x of a'\n\
         os.rmdir(root + '/empty')\n\
         os.symlink('a', root + '/empty')\n\
         os.unlink(root + '/empty/x')\n\
         assert not os.path.exists(root + '/a/x') and os.listdir(root + '/a') == []\n\
         open(root + '/empty/y', 'w').write('y')\n\
         assert os.listdir(root + '/a') == ['y']\n",
    );
}

#[test]
fn attributes_and_sizes_set_through_descriptors_reach_the_pfs() {
    let w = small();
    python(
        &w,
        "fd = os.open(root + '/x', os.O_RDONLY)\n\
         proc = f'/proc/self/fd/{fd}'\n\
         copy = os.readlink(proc)\n\
         assert copy != root + '/x', 'not a copy'\n\
         class Time(ctypes.Structure): _fields_ = [('s', ctypes.c_long), ('n', ctypes.c_long)]\n\
         times = (Time * 2)(Time(1000, 0), Time(2000, 0))\n\
         assert libc.utimensat(fd, b'', times, 0x1000) == 0, ctypes.get_errno()\n\
         assert os.stat(root + '/x').st_mtime == 2000 == os.fstat(fd).st_mtime\n\
         os.chmod(proc, 0o640)\n\
         assert os.stat(root + '/x').st_mode & 0o777 == 0o640 == os.fstat(fd).st_mode & 0o777\n\
         os.truncate(proc, 1)\n\
         assert read(root + '/x') == 'x' and os.pread(fd, 100, 0) == b'x of the root'\n",
    );
}

#[test]
fn descriptors_of_files_that_have_moved() {
    let w = small();
    python(
        &w,
        "fd = os.open(root + '/x', os.O_RDONLY)\n\
         os.rename(root + '/x', root + '/moved')\n\
         os.fchmod(fd, 0o600)\n\
         try: os.getxattr(fd, 'user.nothing')\n\
         except OSError as e: assert e.errno in (61, 95), e\n\
         fd = os.open(root + '/a/x', os.O_RDONLY)\n\
         open(root + '/a/new', 'w').write('new')\n\
         os.chmod(root + '/a/new', 0o604)\n\
         os.rename(root + '/a/new', root + '/a/x')\n\
         os.fchmod(fd, 0o600)\n\
         os.utime(fd, (1, 1))\n\
         assert os.stat(root + '/a/x').st_mode & 0o777 == 0o604 and os.stat(root + '/a/x').st_mtime > 1\n\
         assert os.read(fd, 100) == b'x of a'\n",
    );
}

#[test]
fn a_write_through_proc_of_a_file_that_was_replaced_spares_the_new_one() {
    let w = small();
    python(
        &w,
        "fd = os.open(root + '/x', os.O_RDONLY)\n\
         open(root + '/new', 'w').write('the new file')\n\
         os.rename(root + '/new', root + '/x')\n\
         open(f'/proc/self/fd/{fd}', 'w').write('lost')\n\
         assert read(root + '/x') == 'the new file'\n",
    );
}

#[test]
fn entries_of_a_stream_stay_while_other_streams_are_read() {
    let w = small();
    python(
        &w,
        "libc.opendir.restype = ctypes.c_void_p\n\
         libc.readdir64.restype = ctypes.c_void_p\n\
         for f in (libc.readdir64, libc.closedir): f.argtypes = [ctypes.c_void_p]\n\
         d = libc.opendir(root.encode())\n\
         entries = []\n\
         while e := libc.readdir64(d): entries.append((e, ctypes.string_at(e + 19)))\n\
         assert len(entries) > 5 and all(ctypes.string_at(e + 19) == name for e, name in entries)\n\
         assert libc.closedir(d) == 0\n",
    );
}

#[test]
fn a_stream_of_a_removed_directory_is_empty_once_it_is_rewound() {
    let w = small();
    python(
        &w,
        "libc.opendir.restype = ctypes.c_void_p\n\
         libc.readdir64.restype = ctypes.c_void_p\n\
         for f in (libc.readdir64, libc.rewinddir, libc.closedir): f.argtypes = [ctypes.c_void_p]\n\
         d = libc.opendir(root.encode() + b'/a')\n\
         assert libc.readdir64(d)\n\
         os.unlink(root + '/a/x'); os.rmdir(root + '/a')\n\
         libc.rewinddir(d)\n\
         assert not libc.readdir64(d)\n\
         assert libc.closedir(d) == 0\n",
    );
}

#[test]
fn a_stream_that_is_rewound_shows_new_names() {
    let w = small();
    python(
        &w,
        "libc.opendir.restype = ctypes.c_void_p\n\
         libc.readdir64.restype = ctypes.c_void_p\n\
         for f in (libc.readdir64, libc.rewinddir, libc.closedir, libc.telldir, libc.dirfd): f.argtypes = [ctypes.c_void_p]\n\
         d = libc.opendir(root.encode() + b'/a')\n\
         def names():\n\
         \x20   out = []\n\
         \x20   while e := libc.readdir64(d): out.append(ctypes.string_at(e + 19))\n\
         \x20   return sorted(out)\n\
         assert names() == [b'.', b'..', b'x']\n\
         open(root + '/a/y', 'w').close()\n\
         libc.rewinddir(d)\n\
         assert names() == [b'.', b'..', b'x', b'y']\n\
         libc.rewinddir(d)\n\
         assert names() == [b'.', b'..', b'x', b'y'] and os.fstat(libc.dirfd(d)).st_ino == os.stat(root + '/a').st_ino\n\
         n = len(os.listdir('/proc/self/fd'))\n\
         assert libc.closedir(d) == 0 and len(os.listdir('/proc/self/fd')) == n - 1\n",
    );
}

#[test]
fn a_script_below_the_root_is_executed_by_its_descriptor() {
    let w = small();
    let text = python(
        &w,
        "fd = os.open(root + '/run.sh', os.O_RDONLY)\n\
         os.set_inheritable(fd, True)\n\
         os.execve(fd, ['run.sh', 'well'], dict(os.environ))\n",
    );
    assert_eq!(text, "ran well\n");
}

#[test]
fn a_mount_made_by_the_new_calls() {
    let w = small();
    let script = "AT = -100\n\
         fd = libc.syscall(428, AT, (root + '/b').encode(), 1)\n\
         if fd < 0: sys.exit(print('skipped', ctypes.get_errno()))\n\
         assert read(root + '/a/x') == 'x of a'\n\
         assert libc.move_mount(fd, b'', AT, (root + '/a').encode(), 4) == 0, ctypes.get_errno()\n\
         try: assert read(root + '/a/x') == 'x of b'\n\
         finally: assert libc.umount2((root + '/a').encode(), 2) == 0\n\
         assert read(root + '/a/x') == 'x of a'\n";
    python(&w, script);
}

#[test]
fn a_change_by_a_process_that_cannot_map_the_index() {
    let w = small();
    python(
        &w,
        "import resource, subprocess\n\
         pid = os.fork()\n\
         if pid == 0:\n\
         \x20   most = resource.getrlimit(resource.RLIMIT_NOFILE)\n\
         \x20   resource.setrlimit(resource.RLIMIT_NOFILE, (0, most[1]))\n\
         \x20   os.stat(root + '/x')\n\
         \x20   resource.setrlimit(resource.RLIMIT_NOFILE, most)\n\
         \x20   open(root + '/x', 'w').write('changed')\n\
         \x20   os._exit(0)\n\
         assert os.waitpid(pid, 0)[1] == 0\n\
         assert read(root + '/x') == 'changed' and os.path.getsize(root + '/x') == 7\n",
    );
}

/// Root may search every directory, other users may not.
#[test]
fn an_ordinary_users_job_learns_nothing_behind_closed_doors() {
    const USER: u32 = 65534;
    let w = World::plan().files(12).args(&["--plain"]).disk().build();
    open_to_all(w.root());
    open_to_all(w.runtime());
    for dir in [w.runtime(), w.scratch(), w.root(), w.root().join("data").as_path(), w.tier().parent().unwrap()] {
        chown(dir, Some(USER), Some(USER)).unwrap();
    }
    for path in crate::faults::below(w.root()) {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let script = "import os, sys, time\n\
         root = sys.argv[1]\n\
         d = root + '/data/d00'\n\
         files = [os.path.join(d, f) for f in os.listdir(d) if f.endswith('.bin')]\n\
         def served(f):\n\
         \x20   fd = os.open(f, 0)\n\
         \x20   at = os.readlink(f'/proc/self/fd/{fd}')\n\
         \x20   os.close(fd)\n\
         \x20   return not at.startswith(root)\n\
         limit = time.time() + 60\n\
         while not all(served(f) for f in files) and time.time() < limit: time.sleep(0.01)\n\
         def closed(call, *args):\n\
         \x20   try: call(*args)\n\
         \x20   except PermissionError: return\n\
         \x20   raise AssertionError(call)\n\
         os.setgid(os.getgid())\n\
         assert open(files[0], 'rb').read() and not os.readlink(f'/proc/self/fd/{os.open(files[0], 0)}').startswith(root)\n\
         os.chmod(d, 0)\n\
         closed(os.stat, files[0]); closed(open, files[0]); closed(os.listdir, d)\n\
         os.chmod(d, 0o700)\n\
         assert open(files[0], 'rb').read()\n\
         fd = os.open(root + '/data', os.O_RDONLY)\n\
         os.fchmod(fd, 0o600)\n\
         closed(os.stat, files[0])\n\
         os.fchmod(fd, 0o700)\n\
         print('ok')\n";
    let job = Job::new("python3").args(["-c", script]).arg(w.root());
    let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let out = around(&words, &w.monarch_run(&job)).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert_eq!((String::from_utf8_lossy(&out.stdout).as_ref(), errors.as_ref()), ("ok\n", ""));
    assert!(regular(w.runtime()).iter().any(|p| p.ends_with("agent.log")), "served by an agent of that user");
}
