//! Corners of the system-call interface in which a copy, or a call that the shim answers, could
//! differ from the PFS's file.

use crate::faults::{around, open_to_all};
use crate::harness::{Job, World, has_command, has_program};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};

/// A root with `x` and `y` (40 kB) and `big` (3 MB, of chunks); everything resident.
fn world() -> World {
    world_with(|_| ())
}

/// The same with further files.
fn world_with(more: impl FnOnce(&World)) -> World {
    let plan = World::plan().files(2).args(&["--plain"]).disk();
    let mut w = plan.set("source.chunk_threshold=1MiB").set("source.chunk_size=256KiB").build();
    fill(&w);
    more(&w);
    w.settle();
    w
}

fn fill(w: &World) {
    let bytes = |n: usize| (0..n).map(|i| (i * 31 % 251) as u8).collect::<Vec<u8>>();
    fs::write(w.backing().join("x"), bytes(40_000)).unwrap();
    fs::write(w.backing().join("y"), bytes(40_001)).unwrap();
    fs::write(w.backing().join("big"), bytes(3_000_000)).unwrap();
}

const PRELUDE: &str = r#"
import ctypes, errno, fcntl, mmap, os, stat, subprocess, sys
root = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
x, big = root + '/x', root + '/big'
def is_copy(fd): return not os.readlink(f'/proc/self/fd/{fd}').startswith(root)
def attempt(call, *args, **more):
    try: return call(*args, **more)
    except OSError as e: return errno.errorcode[e.errno]
"#;

fn job(w: &World, text: &str) -> Job {
    Job::new("python3").arg("-c").arg(format!("{PRELUDE}{text}")).arg(w.root())
}

#[track_caller]
fn run(w: &World, text: &str) -> String {
    w.run(&job(w, text)).good().text()
}

#[track_caller]
fn corner(w: &World, words: &[&str]) {
    let job = w.program("corners").args(words.iter().map(|word| word.replace("ROOT", w.root().to_str().unwrap())));
    w.same(&job).good();
}

#[test]
fn one_directory_stream_gives_each_name_to_one_of_several_threads() {
    let w = World::plan().files(2).args(&["--plain"]).disk().build();
    let dir = w.backing().join("d");
    fs::create_dir(&dir).unwrap();
    for n in 0..10_000 {
        fs::write(dir.join(format!("n{n}")), "").unwrap();
    }
    let mut w = w;
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    corner(&w, &["stream", "ROOT/d", "10000"]);
}

#[test]
fn a_process_that_may_only_read_and_write_is_left_alone() {
    let w = world();
    corner(&w, &["strict", "ROOT/x"]);
    corner(&w, &["strict", "ROOT/big"]);
}

#[test]
fn threads_are_cancelled_where_they_would_be_and_clean_up() {
    let w = world();
    for scratch in ["bare", "ours"] {
        fs::create_dir(w.scratch().join(scratch)).unwrap();
    }
    let job = |scratch| w.program("corners").arg("cancel").arg(w.root().join("x")).arg(w.scratch().join(scratch));
    let bare = w.bare(&job("bare")).good();
    assert_eq!(w.run(&job("ours")).good().text(), bare.text());
}

/// The reader waits for a chunk that the PFS takes seconds to give.
#[test]
fn a_handler_that_jumps_out_of_a_wait_leaves_the_offset_where_it_was() {
    let plan =
        World::plan().files(2).args(&["--plain"]).set("source.chunk_threshold=1MiB").set("prefetch.enabled=false");
    let mut w = plan.set("source.chunk_size=256KiB").patient().pfs(|b| b.bandwidth(400_000)).build();
    fill(&w);
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    let ended = w.run(&w.program("corners").arg("jump").arg(w.root().join("big"))).good();
    assert_eq!(ended.text(), "ok jump\n");
    assert!(ended.errors().contains("jumped"), "{}", ended.errors());
}

#[test]
fn an_offset_that_another_thread_sets_while_the_end_is_read_stays_set() {
    let w = world();
    corner(&w, &["seek", "ROOT/x"]);
    corner(&w, &["seek", "ROOT/big"]);
}

#[test]
fn odd_counts_offsets_and_vectors_are_answered_as_by_the_kernel() {
    let w = world();
    corner(&w, &["odd", "ROOT/x"]);
    corner(&w, &["odd", "ROOT/big"]);
}

#[test]
fn a_descriptor_without_rights_reads_nothing() {
    let w = world();
    w.same(&job(
        &w,
        r#"
for path in (x, big):
    fd = os.open(path, os.O_PATH)
    print(attempt(os.read, fd, 10), attempt(os.pread, fd, 10, 0), attempt(os.preadv, fd, [bytearray(5)], 0), os.fstat(fd).st_size,
          attempt(mmap.mmap, fd, 4096, prot=mmap.PROT_READ), attempt(os.sendfile, 1, fd, 0, 10))
    fd = os.open(path, os.O_RDONLY)
    print(hex(fcntl.fcntl(fd, fcntl.F_GETFL)), hex(fcntl.fcntl(os.open(path, os.O_NOFOLLOW | os.O_NONBLOCK), fcntl.F_GETFL)))
    # A file is no directory, whatever is asked below it.
    for name in ('..', '.', 'x', '../x', ''): print(attempt(os.stat, name, dir_fd=fd), attempt(os.open, name, 0, dir_fd=fd))
d = os.open(root, os.O_PATH)
print(os.stat('x', dir_fd=d).st_size, len(os.pread(os.open('x', 0, dir_fd=d), 50000, 0)))
"#,
    ))
    .good();
}

#[test]
fn a_link_to_a_copy_is_one_to_the_file() {
    let w = world();
    run(
        &w,
        r#"
for number, (path, flags) in enumerate(((x, 0x400), (root + '/y', 0x1000), (big, 0x400))):
    fd = os.open(path, os.O_RDONLY)
    assert is_copy(fd)
    name = f'/proc/self/fd/{fd}' if flags == 0x400 else ''
    to = f'{root}/link{number}'
    at = -100 if name else fd
    assert libc.linkat(at, name.encode(), -100, to.encode(), flags) == 0, errno.errorcode[ctypes.get_errno()]
    assert os.stat(to).st_ino == os.stat(path).st_ino == os.fstat(fd).st_ino and os.stat(path).st_nlink >= 2
    assert f'link{number}' in os.listdir(root)
"#,
    );
}

#[test]
fn a_removed_file_has_no_links_for_a_process_that_has_it_open() {
    let w = world_with(|w| {
        for name in ["a", "b", "c", "e", "f"] {
            fs::write(w.backing().join(name), name).unwrap();
        }
        fs::hard_link(w.backing().join("a"), w.backing().join("a2")).unwrap();
    });
    run(
        &w,
        r#"
def links(fd): return os.fstat(fd).st_nlink
fds = {name: os.open(f'{root}/{name}', os.O_RDONLY) for name in ('x', 'b', 'c', 'e', 'f', 'a', 'big')}
assert all(is_copy(fd) and links(fd) == (2 if name == 'a' else 1) for name, fd in fds.items())
os.unlink(x)
open(root + '/new', 'w').close()
os.rename(root + '/new', root + '/b')
os.rename(root + '/c', root + '/c2')
os.chmod(root + '/e', 0o600)
os.unlink(root + '/e')
os.rename(root + '/f', root + '/f')
assert libc.remove(big.encode()) == 0
assert [links(fds[name]) for name in ('x', 'b', 'c', 'e', 'f', 'big')] == [0, 0, 1, 0, 1, 0]
os.unlink(root + '/c2')
assert os.stat(fds['x']).st_nlink == 0 and os.pread(fds['x'], 3, 0) == bytes([0, 31, 62])
assert libc.linkat(-100, f'/proc/self/fd/{fds["x"]}'.encode(), -100, (root + '/x').encode(), 0x400) == -1
assert ctypes.get_errno() == errno.ENOENT
# A new file may get the number of the removed one: nothing that is done by the old descriptor hits it.
open(x, 'w').write('new'); os.chmod(x, 0o604)
os.fchmod(fds['x'], 0o600)
assert os.stat(x).st_mode & 0o777 == 0o604
"#,
    );
}

#[test]
fn a_copy_on_a_tier_that_forbids_it_is_mapped_executable_all_the_same() {
    let dir = tempfile::Builder::new().prefix("monarch-e2e-noexec-").tempdir().unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "noexec,size=512m", "none"]).arg(dir.path()).status();
    assert!(mounted.unwrap().success(), "a tmpfs (needs root)");
    let done = std::panic::catch_unwind(|| {
        let mut w = World::plan().files(2).args(&["--plain"]).disk().tier_dir(dir.path().join("tier")).build();
        // A function that returns 42: mov eax, 42; ret (x86-64), or mov w0, 42; ret (aarch64).
        let code: &[u8] = if cfg!(target_arch = "x86_64") {
            &[0xb8, 42, 0, 0, 0, 0xc3]
        } else {
            &[0x40, 0x05, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6]
        };
        fs::write(w.backing().join("code"), code).unwrap();
        w.settle();
        run(
            &w,
            r#"
fd = os.open(root + '/code', os.O_RDONLY)
assert is_copy(fd)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
at = libc.mmap(None, 4096, 5, 2, fd, 0)
assert at != 2**64 - 1, errno.errorcode[ctypes.get_errno()]
assert ctypes.CFUNCTYPE(ctypes.c_int)(at)() == 42
"#,
        );
    });
    let unmounted = Command::new("umount").arg("-l").arg(dir.path()).status();
    assert!(unmounted.unwrap().success());
    if let Err(e) = done {
        std::panic::resume_unwind(e);
    }
}

#[test]
fn changes_by_a_process_without_the_shim_are_seen() {
    let w = world();
    run(
        &w,
        r#"
def off(text):
    subprocess.run([sys.executable, '-c', 'import os, sys\nroot = sys.argv[1]\n' + text, root], env={**os.environ, 'MONARCH_DISABLE': '1'}, check=True)
fd = os.open(x, 0)
assert is_copy(fd) and 'new' not in os.listdir(root)
off('fd = os.open(root + "/x", 0)\nassert os.readlink(f"/proc/self/fd/{fd}") == root + "/x", "served"')
off('open(root + "/x", "w").write("changed"); open(root + "/new", "w").close(); os.chdir(root); os.rename("big", "moved")')
assert open(x).read() == 'changed' and 'new' in os.listdir(root)
assert attempt(os.stat, big) == 'ENOENT' and os.stat(root + '/moved').st_size == 3000000
"#,
    );
}

/// A change by each kind of call, made by a process that is not served; the job's own process looks
/// before and after.
const CHANGES: &str = r#"
def each(outsider):
    assert all(is_copy(os.open(f'{root}/{n}', 0)) for n in ['x', 'y'])
    assert 'new' not in os.listdir(root) and os.listdir(root + '/sub') == ['f']
    assert attempt(os.stat, root + '/made') == 'ENOENT'
    outsider('open(root + "/x", "w").write("changed")')
    assert open(x).read() == 'changed' and os.stat(x).st_size == 7
    outsider('open(root + "/new", "w").close()')
    assert 'new' in os.listdir(root)
    outsider('os.mkdir(root + "/made"); os.symlink("x", root + "/link")')
    assert {'made', 'link'} <= set(os.listdir(root)) and os.stat(root + '/made') and os.readlink(root + '/link') == 'x'
    outsider('os.truncate(root + "/y", 5)')
    assert os.stat(root + '/y').st_size == 5 == len(open(root + '/y', 'rb').read())
    outsider('os.chdir(root); os.rename("big", "moved"); os.rename("sub", "other")')
    assert attempt(os.stat, big) == 'ENOENT' and os.stat(root + '/moved').st_size == 3000000
    assert attempt(os.stat, root + '/sub/f') == 'ENOENT' and open(root + '/other/f').read() == 'f'
    outsider('fd = os.open(root + "/other", os.O_RDONLY); os.unlink("f", dir_fd=fd); os.close(os.open("g", os.O_CREAT | os.O_WRONLY, dir_fd=fd))')
    assert os.listdir(root + '/other') == ['g']
    outsider('import ctypes; libc = ctypes.CDLL(None); libc.fopen.restype = ctypes.c_void_p; libc.fclose.argtypes = [ctypes.c_void_p]; libc.fputs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]\nf = libc.fopen((root + "/z").encode(), b"a"); libc.fputs(b"more\\n", f); libc.fclose(f)')
    assert open(root + '/z').read() == 'z\nmore\n'
    outsider('os.utime(root + "/times", (1, 1)); os.link(root + "/times", root + "/hard")')
    assert os.stat(root + '/times').st_mtime == 1 and os.stat(root + '/times').st_nlink == 2
    print('all seen')
"#;

/// A world for [`CHANGES`], in which every user may change files.
fn world_for_all() -> World {
    world_with(|w| {
        fs::create_dir(w.backing().join("sub")).unwrap();
        for (name, text) in [("sub/f", "f"), ("z", "z\n"), ("times", "t")] {
            fs::write(w.backing().join(name), text).unwrap();
        }
        open_to_all(w.root());
        for dir in ["", "sub"] {
            fs::set_permissions(w.backing().join(dir), fs::Permissions::from_mode(0o777)).unwrap();
        }
        for name in ["x", "y", "z", "big", "times", "sub/f"] {
            fs::set_permissions(w.backing().join(name), fs::Permissions::from_mode(0o666)).unwrap();
            chown(w.backing().join(name), Some(65534), Some(65534)).unwrap();
        }
    })
}

#[test]
fn changes_by_another_user_of_the_job_are_seen() {
    let w = world_for_all();
    let text = r#"
def outsider(text):
    words = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', sys.executable, '-c', 'import os, sys\nroot = sys.argv[1]\n' + text, root]
    subprocess.run(words, check=True, cwd='/')
each(outsider)
"#;
    assert_eq!(run(&w, &format!("{CHANGES}{text}")), "all seen\n");
}

#[test]
fn changes_by_another_user_through_another_mount_are_seen() {
    if !has_command("unshare") {
        return;
    }
    let w = world_for_all();
    let elsewhere = w.scratch().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    open_to_all(&elsewhere);
    let text = format!(
        r#"
elsewhere = {elsewhere:?}
def outsider(text):
    script = 'mount --bind "$0" "$1" && shift && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"'
    words = ['unshare', '-m', 'sh', '-c', script, root, elsewhere, sys.executable, '-c', 'import os, sys\nroot = sys.argv[1]\n' + text, elsewhere]
    done = subprocess.run(words, cwd='/')
    if done.returncode:
        print('cannot' if subprocess.run(['unshare', '-m', 'true']).returncode else 'failed'); sys.exit()
each(outsider)
"#
    );
    let seen = run(&w, &format!("{CHANGES}{text}"));
    assert!(matches!(seen.as_str(), "all seen\n" | "cannot\n"), "{seen}");
}

#[test]
fn changes_by_another_user_while_the_agent_is_stopped_delay_no_process_and_are_seen() {
    let mut w = world_for_all();
    w.keep();
    let agent = w.agent().unwrap().pid;
    let text = format!(
        r#"
import signal, time
text = """import os, signal, sys, time
signal.signal(signal.SIGALRM, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, .3, .3)
root = sys.argv[1]
for n in range(20): open(root + '/x', 'w').write(str(n)); open('/dev/null', 'w').close()
signal.setitimer(signal.ITIMER_REAL, 0)
"""
os.kill({agent}, signal.SIGSTOP)
start = time.time()
words = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', sys.executable, '-c', text, root]
subprocess.run(words, check=True, cwd='/')
took = time.time() - start
os.kill({agent}, signal.SIGCONT)
assert took < 30, took
for _ in range(200):
    if open(x, 'rb').read() == b'19': break
    time.sleep(.05)
assert open(x, 'rb').read() == b'19'
"#
    );
    run(&w, &text);
}

#[test]
fn a_call_that_the_kernel_refuses_takes_no_copy_away() {
    let w = world();
    open_to_all(w.root());
    let text = r#"
words = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', 'sh', '-c', 'cd "$0"; touch x; rm -f x y; chmod 0 x; mv x z; echo > x; mkdir new; exit 0', root]
subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
assert is_copy(os.open(x, 0)) and is_copy(os.open(root + '/y', 0))
"#;
    run(&w, text);
}

#[test]
fn pages_that_are_moved_or_unmapped_are_no_longer_taken_for_readable() {
    let w = world();
    run(
        &w,
        r#"
libc.mmap.restype = libc.mremap.restype = libc.shmat.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmdt.argtypes = [ctypes.c_void_p]
libc.open.argtypes = libc.access.argtypes = [ctypes.c_void_p, ctypes.c_int]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def page(): return libc.mmap(None, 4096, 3, 0x22, -1, 0)
def seen(at):
    ctypes.memmove(at, x.encode() + b'\0', len(x) + 1)
    assert libc.access(at, os.R_OK) == 0
def faults(at, how):
    assert libc.access(at, os.R_OK) == -1 and ctypes.get_errno() == errno.EFAULT, how
    assert libc.open(at, 0) == -1 and ctypes.get_errno() == errno.EFAULT, how
at = page(); seen(at)
elsewhere = libc.mmap(None, 8192, 0, 0x22, -1, 0)
assert libc.mremap(at, 4096, 4096, 3, elsewhere) == elsewhere
faults(at, 'mremap'); seen(elsewhere)
at = page(); seen(at)
assert libc.mmap(at, 4096, 0, 0x32, -1, 0) == at
faults(at, 'mmap over it')
identity = libc.shmget(0, 4096, 0o1600)
if identity >= 0:
    at = libc.shmat(identity, None, 0); seen(at)
    assert libc.shmdt(at) == 0
    faults(at, 'shmdt')
    libc.shmctl(identity, 0, None)
at = page(); seen(at)
if libc.madvise(at, 4096, 102) == 0: faults(at, 'a guard')
"#,
    );
}

/// As an ordinary user: root may search every directory and reads any file with O_NOATIME.
#[test]
fn an_ordinary_user_is_refused_what_the_pfs_refuses() {
    const USER: u32 = 65534;
    let w = World::plan().files(2).args(&["--plain"]).disk().build();
    fill(&w);
    let shut = w.root().join("shut");
    fs::create_dir(&shut).unwrap();
    fs::create_dir(w.root().join("open")).unwrap();
    fs::write(w.root().join("theirs"), "theirs").unwrap();
    open_to_all(w.root());
    open_to_all(w.runtime());
    for dir in [w.runtime(), w.scratch(), w.root(), w.tier().parent().unwrap()] {
        chown(dir, Some(USER), Some(USER)).unwrap();
    }
    for path in [w.root().join("x"), shut.clone(), w.root().join("open")] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o600)).unwrap();
    let script = format!(
        "{PRELUDE}{}",
        r#"
import time
limit = time.time() + 60
names = ('x', 'theirs')
while not all(is_copy(os.open(root + '/' + n, 0)) for n in names) and time.time() < limit and 'LD_PRELOAD' in os.environ: time.sleep(0.05)
for way in ('shut/../x', 'shut/.', 'shut/./', 'open/../x', 'open/.', 'shut', './x'):
    print(way, attempt(lambda: os.stat(root + '/' + way).st_size > 0), attempt(lambda: os.open(root + '/' + way, 0) > 0), attempt(os.access, root + '/' + way, os.F_OK))
d = os.open(root + '/shut', 0)
print(attempt(lambda: os.stat('../x', dir_fd=d).st_size), attempt(lambda: os.open('../x', 0, dir_fd=d) > 0))
d = os.open(root + '/open', 0)
print(attempt(lambda: os.stat('../x', dir_fd=d).st_size))
for name in names:
    fd = attempt(os.open, root + '/' + name, os.O_RDONLY | os.O_NOATIME)
    print(name, fd if isinstance(fd, str) else hex(fcntl.fcntl(fd, fcntl.F_GETFL)))
"#
    );
    // (A Python in root's home is not for other users.)
    let python = "/usr/bin/python3";
    let job = Job::new(python).args(["-c", &script]).arg(w.root());
    let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let as_user = |c: &Command| {
        let out = around(&words, c).stdin(Stdio::null()).output().unwrap();
        (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let mut bare = Command::new(python);
    bare.args(["-c", &script]).arg(w.root()).current_dir(w.scratch());
    let (bare, ours) = (as_user(&bare), as_user(&w.monarch_run(&job)));
    assert_eq!(ours, bare);
    assert!(bare.0.contains("shut/../x EACCES EACCES") && bare.0.contains("theirs EPERM"), "{}", bare.0);
}

#[test]
fn changes_by_the_descriptor_of_a_directory_are_seen_where_proc_is_not_mounted() {
    let w = world_with(|w| {
        fs::create_dir(w.backing().join("sub")).unwrap();
        for name in ["a", "b", "c"] {
            fs::write(w.backing().join("sub").join(name), name).unwrap();
        }
    });
    let script = format!(
        "{PRELUDE}{}",
        r#"
sub = root + '/sub'
assert libc.unshare(0x20000) == 0 and libc.mount(b'none', b'/', None, 0x44000, None) == 0
d = os.open(sub, os.O_RDONLY)
fds = [os.open(f'{sub}/{n}', 0) for n in 'abc']
assert all(is_copy(fd) for fd in fds)
pid = os.fork()
if pid == 0:
    while libc.umount2(b'/proc', 2) == 0: pass
    assert not os.path.exists('/proc/self')
    fd = os.open('a', os.O_WRONLY | os.O_TRUNC, dir_fd=d)
    os.write(fd, b'changed')
    os.unlink('b', dir_fd=d)
    os.chdir('/'); os.symlink(sub, '/dev/shm/monarch-noproc')
    try: open('/dev/shm/monarch-noproc/c', 'w').write('through a link')
    finally: os.unlink('/dev/shm/monarch-noproc')
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert open(sub + '/a').read() == 'changed' and attempt(os.stat, sub + '/b') == 'ENOENT'
assert open(sub + '/c').read() == 'through a link'
"#
    );
    w.run(&Job::new("python3").args(["-c", &script]).arg(w.root())).good();
}

/// A C library that borrows names of the GNU C library has other streams and structures all the
/// same.
#[test]
fn a_program_of_another_c_library_with_hooked_names_is_left_alone() {
    if !has_program("mini-gcompat") || !has_command("strace") {
        eprintln!("note: mini-gcompat is not built, or there is no strace");
        return;
    }
    let w = world();
    w.same(&w.program("mini-gcompat").arg(w.root())).good();
    let out = w.scratch().join("calls");
    let strace = Job::new("strace").args(["-f", "-e", "trace=open,openat", "-o"]).arg(&out);
    w.run(&strace.arg(programs_dir().join("mini-gcompat")).arg(w.root())).good();
    let calls = fs::read_to_string(out).unwrap();
    assert!(calls.contains("libmonarch_shim.so"), "it is loaded");
    assert!(!calls.contains("/control\"") && calls.contains(w.root().join("x").to_str().unwrap()), "{calls}");
}

/// The shim took the C library for another one behind a library that wraps `dl_iterate_phdr`
/// (ThreadSanitizer's, fakechroot's): such a process was not served, and what it changed was not
/// seen by the others.
#[test]
fn a_process_with_a_library_that_wraps_dl_iterate_phdr_is_served_and_its_changes_are_seen() {
    let w = world();
    let before = w.counter("hits");
    w.same(&w.program("mini-lister").arg(w.root())).good();
    assert!(w.counter("hits") >= before + 2, "{}", w.counter("hits"));
    let library = programs_dir().join("liblister.so");
    let script = "head -c 6 $0/x >$1; printf change | LD_PRELOAD=$LD_PRELOAD:$2 dd of=$0/x conv=notrunc status=none; head -c 6 $0/x";
    let job = Job::new("sh").args(["-c", script]).arg(w.root()).arg(w.scratch().join("before")).arg(library);
    assert_eq!(w.run(&job).good().text(), "change");
}

#[test]
fn a_library_behind_the_shim_that_translates_paths_decides_which_file_is_read() {
    assert!(has_program("libtranslator.so"));
    let w = world();
    let x = w.root().join("x");
    let elsewhere = w.scratch().join(x.strip_prefix("/").unwrap());
    fs::create_dir_all(elsewhere.parent().unwrap()).unwrap();
    fs::write(&elsewhere, "elsewhere").unwrap();
    let before = w.counter("hits");
    let job = Job::new("sh").args(["-c", "LD_PRELOAD=$LD_PRELOAD:$1 exec cat $0"]).arg(x);
    let job = job.arg(programs_dir().join("libtranslator.so")).env("TRANSLATED_TO", w.scratch());
    assert_eq!(w.same(&job).good().text(), "elsewhere");
    assert_eq!(w.counter("hits"), before);
}

fn programs_dir() -> std::path::PathBuf {
    crate::harness::target().join("programs")
}

/// Reads past the shim are right; a change past the shim is like a change on another node (see
/// SEMANTICS).
#[test]
fn a_library_that_binds_past_the_shim_reads_the_file() {
    let w = world();
    w.same(&job(
        &w,
        r#"
c = ctypes.CDLL('libc.so.6', use_errno=True)
fd = c.open(x.encode(), 0)
print(os.readlink(f'/proc/self/fd/{fd}') == x, os.pread(fd, 3, 0))
buf = ctypes.create_string_buffer(10)
print(c.read(fd, buf, 10), buf.raw, os.fstat(fd).st_ino == os.stat(x).st_ino)
libc.dlmopen.restype = libc.dlsym.restype = ctypes.c_void_p
libc.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
other = libc.dlmopen(ctypes.c_long(-1), b'libc.so.6', 2)
if other:
    f = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int)(libc.dlsym(other, b'open'))
    fd = f(x.encode(), 0)
    print(os.readlink(f'/proc/self/fd/{fd}') == x, os.pread(fd, 3, 0))
"#,
    ))
    .good();
}
