//! Locks and leases on copies exclude those on the PFS's file, and reads under them are right.

use crate::harness::{Job, Plan, World};
use std::fs;

/// Returns a world with `x` (40 kB), `big` (3 MB, of chunks) and `lines` (1 to 8), everything
/// resident.
fn world(shape: impl FnOnce(Plan) -> Plan) -> World {
    let plan =
        World::plan().files(2).args(&["--plain"]).set("source.chunk_threshold=1MiB").set("source.chunk_size=256KiB");
    let mut w = shape(plan).build();
    let bytes = |n: usize| (0..n).map(|i| (i * 31 % 251) as u8).collect::<Vec<u8>>();
    fs::write(w.backing().join("x"), bytes(40_000)).unwrap();
    fs::write(w.backing().join("big"), bytes(3_000_000)).unwrap();
    fs::write(w.backing().join("lines"), "1\n2\n3\n4\n5\n6\n7\n8\n").unwrap();
    w.settle();
    w
}

/// The beginning of the scripts below. `stranger` runs a line of Python in a process without the
/// shim.
const PRELUDE: &str = r#"
import ctypes, errno, fcntl, os, struct, subprocess, sys, time
root = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
x, big = root + '/x', root + '/big'
clean = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD' and not k.startswith('MONARCH')}
def stranger(text):
    text = 'import fcntl, os, struct, sys\nx, big = sys.argv[1] + "/x", sys.argv[1] + "/big"\n' + text
    return subprocess.run([sys.executable, '-c', text, root], env=clean, capture_output=True, text=True, check=True).stdout.strip()
def is_copy(fd): return not os.readlink(f'/proc/self/fd/{fd}').startswith(root)
def whole(kind): return struct.pack('hhqqi', kind, 0, 0, 0, 0)
TRY = '''
fd = os.open({path}, os.O_RDWR)
try:
    {call}
    print("free")
except OSError: print("held")
'''
def flock_free(path='x'): return stranger(TRY.format(path=path, call='fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)')) == 'free'
def record_free(path='x'): return stranger(TRY.format(path=path, call='fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)')) == 'free'
"#;

#[track_caller]
fn python(w: &World, text: &str) -> String {
    w.run(&Job::new("python3").arg("-c").arg(format!("{PRELUDE}{text}")).arg(w.root())).good().text()
}

#[test]
fn a_lock_on_a_copy_excludes_processes_with_the_file_on_the_pfs() {
    let w = world(Plan::disk);
    python(
        &w,
        r#"
for path, name in ((x, 'x'), (big, 'big')):
    # flock
    fd = os.open(path, os.O_RDONLY)
    assert is_copy(fd) and flock_free(name)
    os.lseek(fd, 77, 0)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert not flock_free(name) and os.lseek(fd, 0, 1) == 77
    fcntl.flock(fd, fcntl.LOCK_UN)
    assert flock_free(name)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert not flock_free(name)
    os.close(fd)
    assert flock_free(name)
    # fcntl, of open files and of processes; lockf
    OFD_SETLK = 37
    for command in (fcntl.F_SETLK, fcntl.F_SETLKW, OFD_SETLK):
        fd = os.open(path, os.O_RDONLY)
        fcntl.fcntl(fd, command, whole(fcntl.F_RDLCK))
        assert not record_free(name), command
        try: fcntl.fcntl(fd, command, whole(fcntl.F_WRLCK))
        except OSError as e: assert e.errno == errno.EBADF
        else: assert False
        os.close(fd)
        assert record_free(name), command
"#,
    );
}

#[test]
fn a_lock_of_another_process_excludes_a_copy() {
    let w = world(Plan::disk);
    python(
        &w,
        r#"
HOLD = '''
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX); fcntl.lockf(fd, fcntl.LOCK_EX)
print('held', flush=True)
sys.stdin.read()
'''
p = subprocess.Popen([sys.executable, '-c', HOLD, x], env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert p.stdout.readline() == b'held\n'
def refused(call):
    fd = os.open(x, os.O_RDONLY)
    assert is_copy(fd)
    try: call(fd)
    except OSError as e: assert e.errno in (errno.EAGAIN, errno.EACCES), e
    else: assert False, call
for call in (lambda fd: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB),
             lambda fd: fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB),
             lambda fd: fcntl.fcntl(fd, 37, whole(fcntl.F_RDLCK))):
    pid = os.fork()
    if pid == 0:
        refused(call)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
fd = os.open(x, os.O_RDONLY)
kind = struct.unpack('hhqqi', fcntl.fcntl(fd, fcntl.F_GETLK, whole(fcntl.F_RDLCK)))
assert kind[0] == fcntl.F_WRLCK and kind[4] == p.pid, kind
libc.lockf.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long]
assert libc.lockf(os.open(x, os.O_RDONLY), 3, 0) == -1 and ctypes.get_errno() in (errno.EAGAIN, errno.EACCES)
p.communicate()
"#,
    );
}

#[test]
fn the_holder_of_a_lease_on_a_copy_is_notified_of_writers_on_the_pfs() {
    let w = world(Plan::disk);
    python(
        &w,
        r#"
import signal
notified = []
signal.signal(signal.SIGRTMIN, lambda *a: notified.append(1))
fd = os.open(x, os.O_RDONLY)
fcntl.fcntl(fd, 10, signal.SIGRTMIN)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
assert fcntl.fcntl(fd, fcntl.F_GETLEASE) == fcntl.F_RDLCK
assert stranger('try: os.open(x, os.O_WRONLY | os.O_NONBLOCK)\nexcept BlockingIOError: print("later")') == 'later'
limit = time.time() + 10
while not notified and time.time() < limit: time.sleep(0.01)
assert notified
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
"#,
    );
}

#[test]
fn a_locked_file_is_still_read_from_its_copy() {
    let w = world(|p| p);
    w.pfs().reset().unwrap();
    python(
        &w,
        r#"
want = {x: bytes(i * 31 % 251 for i in range(40000)), big: bytes(i * 31 % 251 for i in range(3000000))}
for path, bytes_ in want.items():
    for lock in (lambda fd: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB), lambda fd: fcntl.lockf(fd, fcntl.LOCK_SH)):
        fd = os.open(path, os.O_RDONLY)
        assert is_copy(fd)
        lock(fd)
        assert not is_copy(fd)
        assert os.pread(fd, 1000, 30000) == bytes_[30000:31000]
        got = b''
        while part := os.read(fd, 70001): got += part
        assert got == bytes_
        a, b = bytearray(100), bytearray(50)
        assert os.preadv(fd, [a, b], 39900) == min(150, len(bytes_) - 39900) and a == bytes_[39900:40000]
        os.lseek(fd, 10, 0)
        assert os.readv(fd, [a, b]) == 150 and a + b == bytes_[10:160] and os.lseek(fd, 0, 1) == 160
        os.close(fd)
"#,
    );
    let read = w.pfs().counters().unwrap().bytes_read;
    assert!(read == 0, "{read} bytes of the PFS");
}

#[test]
fn a_reader_with_a_lock_reads_what_another_process_writes() {
    let w = world(Plan::disk);
    python(
        &w,
        r#"
WRITE = '''
fd = os.open(x, os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX)
os.pwrite(fd, b'%s', 0)
os.close(fd)
'''
one, two = os.open(x, os.O_RDONLY), os.open(x, os.O_RDONLY)
assert is_copy(one) and is_copy(two)
stranger(WRITE % 'first')
fcntl.lockf(one, fcntl.LOCK_SH)
# Also by a descriptor that was opened before, and one opened now, whose user relies on the lock of the first.
assert os.pread(one, 5, 0) == os.pread(two, 5, 0) == os.pread(os.open(x, os.O_RDONLY), 5, 0) == b'first'
assert os.read(two, 5) == b'first' and open(x, 'rb').read(5) == b'first'
fcntl.lockf(one, fcntl.LOCK_UN)
stranger(WRITE % 'again')
fcntl.lockf(one, fcntl.LOCK_SH)
assert os.pread(one, 5, 0) == os.pread(two, 5, 0) == b'again'
"#,
    );
}

#[test]
fn duplicates_in_the_process_go_along_with_a_lock() {
    let w = world(Plan::disk);
    python(
        &w,
        r#"
fd = os.open(x, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
flags = fcntl.fcntl(fd, fcntl.F_GETFL)
dup, apart = os.dup(fd), os.open(x, os.O_RDONLY)
os.set_inheritable(dup, True)
os.lseek(apart, 5, 0)
fcntl.flock(fd, fcntl.LOCK_SH)
assert not is_copy(fd) and not is_copy(dup) and is_copy(apart), 'the lock is of the open file'
assert fcntl.fcntl(fd, fcntl.F_GETFL) == fcntl.fcntl(dup, fcntl.F_GETFL) == flags
assert os.get_inheritable(dup) and not os.get_inheritable(fd)
os.lseek(dup, 11, 0)
assert os.lseek(fd, 0, 1) == 11 and os.lseek(apart, 0, 1) == 5
os.close(fd)
assert not flock_free(), 'the duplicate holds the lock'
os.close(dup)
assert flock_free()
dup, more = os.dup(apart), os.open(x, os.O_RDONLY)
fcntl.lockf(apart, fcntl.LOCK_SH)
assert not is_copy(apart) and not is_copy(dup) and not is_copy(more), 'the lock is of the process'
assert not is_copy(os.open(x, os.O_RDONLY)) and os.lseek(dup, 0, 1) == 5 and os.lseek(more, 0, 1) == 0
"#,
    );
}

#[test]
fn a_process_keeps_its_record_locks_whatever_it_does_with_the_file_through_the_shim() {
    let w = world(Plan::disk);
    python(
        &w,
        r#"
import mmap
for path, name in ((x, 'x'), (big, 'big')):
    early = [os.open(path, os.O_RDONLY) for _ in range(4)]
    fd = os.open(path, os.O_RDONLY)
    fcntl.lockf(fd, fcntl.LOCK_SH)
    late = [os.open(path, os.O_RDONLY) for _ in range(3)]
    # (A map of Python's closes a descriptor when it goes.)
    streams, maps = [], []
    for other in early + late:
        os.fstat(other); os.pread(other, 10, 0)
        fcntl.flock(other, fcntl.LOCK_SH); fcntl.flock(other, fcntl.LOCK_UN)
        maps.append(mmap.mmap(other, 4096, prot=mmap.PROT_READ))
        fcntl.ioctl(other, 2, b'1234')
    for other in late: streams.append(os.fdopen(other, 'rb')); streams[-1].read(10)
    os.stat(path); os.access(path, os.R_OK); os.listxattr(path)
    libc.fdopen.restype = ctypes.c_void_p
    assert libc.fdopen(early[0], b'r')
    assert not record_free(name)
    os.close(early[1])
    assert record_free(name), 'as for any process that closes a descriptor'
    for f in streams: f.close()
"#,
    );
}

#[test]
fn fdopen_of_a_large_file_keeps_its_lock() {
    let w = world(Plan::disk);
    python(
        &w,
        r#"
libc.fdopen.restype = ctypes.c_void_p
fd = os.open(big, os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_SH)
assert libc.fdopen(fd, b'r')
assert not is_copy(fd) and not flock_free('big')
# One that was handed down: this process has locked nothing.
fd = os.open(big, os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_SH)
os.set_inheritable(fd, True)
text = f'''
import ctypes, os
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
assert libc.fdopen({fd}, b'r')
print(os.readlink('/proc/self/fd/{fd}'))
'''
out = subprocess.run([sys.executable, '-c', text], close_fds=False, capture_output=True, text=True, check=True).stdout
assert out.strip() == big, out
"#,
    );
}

/// The lock is on the version that the job has open, as without Monarch: no other process can have
/// that version open by its name.
#[test]
fn a_lock_on_a_file_that_was_replaced_stays_on_its_copy() {
    let w = world(Plan::disk);
    python(
        &w,
        r#"
fd = os.open(x, os.O_RDONLY)
stranger('open(x + ".new", "w").write("new"); os.rename(x + ".new", x)')
fcntl.flock(fd, fcntl.LOCK_EX)
assert is_copy(fd) and flock_free() and os.pread(fd, 3, 0) == bytes([0, 31, 62])
"#,
    );
}

#[test]
fn sqlite_reads_what_another_writer_commits() {
    let w = World::plan().files(2).args(&["--plain"]).disk().build();
    let make = "import sqlite3, sys\n\
                db = sqlite3.connect(sys.argv[1] + '/set.db')\n\
                db.execute('create table t (a integer, b text)')\n\
                db.executemany('insert into t values (?, ?)', [(i, 'x' * 100) for i in range(5000)])\n\
                db.commit()\n";
    w.bare(&Job::new("python3").args(["-c", make]).arg(w.backing())).good();
    let mut w = w;
    w.settle();
    python(
        &w,
        r#"
import sqlite3
path = root + '/set.db'
fd = os.open(path, os.O_RDONLY)
assert is_copy(fd)
os.close(fd)
one, two = (sqlite3.connect(f'file:{path}?mode=ro', uri=True) for _ in range(2))
def sums(): return [c.execute('select count(*), sum(a) from t').fetchone() for c in (one, two)]
assert sums() == [(5000, 12497500)] * 2
COMMIT = '''
import sqlite3
db = sqlite3.connect(sys.argv[1] + "/set.db", timeout=0.3)
db.execute("insert into t values (1000000, 'more')")
try: db.commit(); print("done")
except sqlite3.OperationalError: print("locked")
'''
assert stranger(COMMIT) == 'done'
assert sums() == [(5001, 13497500)] * 2
# While a reader is in a transaction nobody commits.
one.execute('begin'); one.execute('select count(*) from t').fetchone()
assert stranger(COMMIT) == 'locked'
one.rollback()
assert stranger(COMMIT) == 'done'
assert sums() == [(5002, 14497500)] * 2
"#,
    );
}

#[test]
fn a_lock_taken_while_another_thread_reads_costs_that_thread_no_bytes_and_repeats_none() {
    let w = world(|plan| plan);
    let text = r#"
import threading
path = x
want = open(path, 'rb').read()
for _ in range(60):
    fd = os.open(path, os.O_RDONLY)
    got = []
    def reader():
        while True:
            part = os.read(fd, 37)
            if not part: return
            got.append(part)
    t = threading.Thread(target=reader); t.start()
    fcntl.flock(fd, fcntl.LOCK_SH)
    t.join()
    assert b''.join(got) == want, (sum(map(len, got)), len(want))
    os.close(fd)
"#;
    python(&w, text);
}

/// A descriptor that `dup2` had moved to the PFS shared its offset with no other process any more.
#[test]
fn processes_that_share_an_open_file_share_its_offset_whatever_numbers_they_give_it() {
    let w = world(|plan| plan);
    let text = "reader() { exec 3<&0; read line <&3; echo $line; }; \
                { for i in 1 2 3; do bash -c \"$(declare -f reader); reader\"; done; } < $0/lines; \
                exec 4<$0/lines; (exec 5<&4; read a <&5; echo $a); read b <&4; echo $b; (read c <&9; echo $c) 9<&4";
    w.same(&Job::new("bash").args(["-c", text]).arg(w.root()));
    let said = w.run(&Job::new("bash").args(["-c", text]).arg(w.root())).good().text();
    assert_eq!(said, "1\n2\n3\n1\n2\n3\n");
}

/// Says whether the first argument can be locked by a process without the shim.
const FREE: &str = "free() { env -u LD_PRELOAD flock -n $0/x true && echo free || echo held; }; ";

/// A tester found that such a lock was on the copy, and excluded no other process.
#[test]
fn a_lock_that_a_shells_child_takes_by_a_number_of_the_shells_is_on_the_pfs_file() {
    let w = world(Plan::disk);
    let idioms = [
        "( flock 9; free ) 9<$0/x; free",
        "( flock 3; free ) 3<$0/x; free",
        "exec 9<$0/x; flock 9; free; flock -u 9; free",
        "exec 3<$0/x; flock -s 3; free; exec 3<&-; free",
        "exec 4<$0/x 5<$0/big; flock 4; free; exec 6<&4 4<&-; free; exec 6<&-; free",
        "exec 9<$0/x; (flock 9); free; (exec 9<&-; exec 9<$0/x; free); flock -u 9; free",
        "{ flock 9; free; } 9<$0/x; free",
        "for i in 1 2; do ( flock 7 && free ) 7<$0/x; free; done",
    ];
    for shell in ["bash", "dash"] {
        for idiom in idioms {
            let job = Job::new(shell).args(["-c", &format!("{FREE}{idiom}")]).arg(w.root());
            let native = w.bare(&job).good().text();
            assert!(native.contains("held") && native.contains("free"), "{shell} {idiom}: {native}");
            assert_eq!(w.run(&job).good().text(), native, "{shell} {idiom}");
        }
    }
    let idiom = format!("{FREE}exec {{lock}}<$0/x; flock $lock; free; exec {{lock}}<&-; free");
    w.same(&Job::new("bash").args(["-c", &idiom]).arg(w.root()));
}

#[test]
fn what_a_shell_reads_by_a_number_it_shares_with_its_children_and_they_with_each_other() {
    let w = world(|plan| plan);
    let idioms = [
        "while read -r a <&9; do echo got $a; sh -c 'read b <&9; echo child $b'; done 9<$0/lines",
        "while read -r a; do echo $a $(cat /dev/null); done < $0/lines; read -r b < $0/lines; echo $b",
        "exec 3<$0/lines; read a <&3; (read b <&3; echo $b); sh -c 'read c <&3; echo $c' 3<&3; read d <&3; echo $a $d",
        // A child gives what it has inherited another number, and makes children of its own.
        "exec 4<$0/lines; (exec 5<&4; (read a <&5; echo $a); read b <&4; echo $b; read c <&5; echo $c); read d <&4; echo $d",
        "{ sh -c 'exec 5<&0; (read a <&5; echo $a); read b; echo $b'; read c; echo $c; } < $0/lines",
        "{ true; (exec 5<&0; (read a <&5; echo $a); true); read b; echo $b; exec 6<&0; (read c <&6; echo $c); read d; echo $d; } < $0/lines",
        "exec 8<$0/lines; exec 0<&8; (read a; echo $a); read b <&8; echo $b; (exec 7<&0; (read c <&7; echo $c); :); read d; echo $d",
        "exec 9<$0/lines; (read a <&9; exec 9<$0/lines; (read b <&9; echo $b); read b <&9; echo $a $b); read c <&9; echo $c",
    ];
    for shell in ["bash", "dash"] {
        for idiom in idioms {
            w.same(&Job::new(shell).args(["-c", idiom]).arg(w.root()));
        }
    }
}
