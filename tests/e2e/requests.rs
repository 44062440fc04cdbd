//! Requests about a file by its descriptor other than for its bytes: a request about a copy is
//! about the PFS's file.

use crate::harness::{Job, World, has_command};
use std::fs;

fn world() -> World {
    let mut w = World::plan().files(2).args(&["--plain"]).disk().build();
    fs::write(w.backing().join("x"), "x".repeat(40_000)).unwrap();
    fs::write(w.backing().join("y"), "y".repeat(40_000)).unwrap();
    w.settle();
    w
}

const PRELUDE: &str = r#"
import array, ctypes, errno, fcntl, os, struct, sys
root = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
x, y = root + '/x', root + '/y'
"#;

fn job(w: &World, text: &str) -> Job {
    Job::new("python3").arg("-c").arg(format!("{PRELUDE}{text}")).arg(w.root())
}

/// The same output bare and under `monarch run`, where the file is a copy.
#[track_caller]
fn same(w: &World, text: &str) -> String {
    w.same(&job(w, text)).good().text()
}

#[track_caller]
fn run(w: &World, text: &str) -> String {
    w.run(&job(w, text)).good().text()
}

/// The tier is in memory, the root on a disk: nothing of this is the same there.
#[test]
fn requests_about_a_copy_are_answered_by_the_file_system_of_the_root() {
    let w = world();
    let text = same(
        &w,
        r#"
def ask(name, request, size):
    fd = os.open(x, os.O_RDONLY)
    buf = array.array('B', bytes(size))
    if name == 'FIEMAP': buf[8:16] = array.array('B', b'\xff' * 8); buf[24:28] = array.array('B', struct.pack('I', 4))
    try: r = fcntl.ioctl(fd, request, buf, True); print(name, r, bytes(buf[:28] if name == 'FIEMAP' else buf).hex())
    except OSError as e: print(name, errno.errorcode[e.errno])
    os.close(fd)
ask('GETFLAGS', 0x80086601, 8)
ask('GETVERSION', 0x80087601, 8)
ask('FSGETXATTR', 0x801c581f, 28)
ask('FIEMAP', 0xc020660b, 32 + 4 * 56)
ask('FIGETBSZ', 2, 4)
ask('FIBMAP', 1, 4)
ask('FIONREAD', 0x541b, 4)
ask('TCGETS', 0x5401, 64)
ask('FIOQSIZE', 0x5460, 8)
ask('of Lustre', 0x80086605, 64)
ask('of nobody', 0xabcd1234, 64)
"#,
    );
    assert!(text.contains("FIGETBSZ 0 00100000"), "{text}");
}

#[test]
fn a_descriptor_keeps_its_offset_after_a_request() {
    let w = world();
    run(
        &w,
        r#"
fd = os.open(x, os.O_RDONLY)
assert not os.readlink(f'/proc/self/fd/{fd}').startswith(root)
dup = os.dup(fd)
assert os.read(fd, 100) == b'x' * 100
fcntl.ioctl(fd, 2, b'1234')
assert os.readlink(f'/proc/self/fd/{fd}') == x
assert os.lseek(dup, 0, 1) == 100 and len(os.read(fd, 50000)) == 39900 and os.lseek(dup, 0, 1) == 40000
"#,
    );
}

#[test]
fn attributes_that_are_set_by_a_request_are_the_files() {
    let w = world();
    run(
        &w,
        r#"
GET, SET, NODUMP = 0x80086601, 0x40086602, 0x40
def flags(fd): return struct.unpack('i', fcntl.ioctl(fd, GET, b'1234'))[0]
before = os.stat(x).st_ctime_ns
fd = os.open(x, os.O_RDONLY)
try: fcntl.ioctl(fd, SET, struct.pack('i', flags(fd) | NODUMP))
except OSError as e:
    if e.errno in (errno.ENOTTY, errno.EOPNOTSUPP): sys.exit(print('note: no attributes here'))
    raise
assert flags(os.open(x, os.O_RDONLY)) & NODUMP
assert os.stat(x).st_ctime_ns > before, 'answered from memory'
"#,
    );
}

#[test]
fn a_clone_of_a_copy_is_one_of_the_file() {
    let w = world();
    same(
        &w,
        r#"
for number, (request, arg) in enumerate(((0x40049409, None), (0x4020940d, 'range'))):
    source, to = os.open(x, os.O_RDONLY), os.open(root + f'/clone{number}', os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if arg: print(fcntl.ioctl(to, request, struct.pack('qQQQ', source, 0, 4096, 0)), os.pread(to, 3, 0))
        else: print(fcntl.ioctl(to, request, source), os.pread(to, 3, 0))
    except OSError as e: print(errno.errorcode[e.errno])
    os.unlink(root + f'/clone{number}')
"#,
    );
}

#[test]
fn the_file_system_of_a_copy_is_the_roots() {
    let w = world();
    same(
        &w,
        r#"
fd = os.open(x, os.O_RDONLY)
st = os.fstatvfs(fd)
print(st.f_bsize, st.f_frsize, st.f_blocks, st.f_files, st.f_namemax, st.f_flag)
for name in sorted(os.pathconf_names):
    try: print(name, os.fpathconf(fd, name))
    except OSError as e: print(name, errno.errorcode[e.errno])
buf = (ctypes.c_long * 15)()
for call in (libc.fstatfs, libc.fstatfs64): print(call(fd, buf), hex(buf[0]), buf[1], buf[2])
"#,
    );
}

#[test]
fn a_sync_of_a_copy_is_one_of_the_root_and_of_what_the_job_wrote() {
    if !has_command("strace") {
        eprintln!("note: no strace");
        return;
    }
    let w = world();
    let text = format!(
        "{PRELUDE}
fd = os.open(x, os.O_RDONLY)
with open(x, 'r+b') as f: f.write(b'new')
os.fsync(fd); os.fdatasync(fd)
assert libc.syncfs(fd) == 0
"
    );
    let out = w.scratch().join("calls");
    let words = ["-f", "-y", "-e", "trace=syncfs,fsync,fdatasync", "-o"];
    let strace = Job::new("strace").args(words).arg(&out).args(["python3", "-c"]).arg(text).arg(w.root());
    w.run(&strace).good();
    let calls = fs::read_to_string(out).unwrap();
    let on = |call: &str, path: &str| {
        calls.contains(&format!("{call}("))
            && calls.lines().any(|l| l.contains(&format!("{call}(")) && l.contains(&format!("<{path}>")))
    };
    let root = w.root().to_str().unwrap().to_owned();
    assert!(on("syncfs", &root), "{calls}");
    assert!(on("fsync", &format!("{root}/x")) && on("fdatasync", &format!("{root}/x")), "{calls}");
}

#[test]
fn a_write_through_a_file_handle_is_seen() {
    let w = world();
    run(
        &w,
        r#"
class Handle(ctypes.Structure): _fields_ = [('size', ctypes.c_uint), ('kind', ctypes.c_int), ('bytes', ctypes.c_char * 128)]
h, mount = Handle(128), ctypes.c_int()
copy = os.open(x, os.O_RDONLY)
assert not os.readlink(f'/proc/self/fd/{copy}').startswith(root)
# By the descriptor of a copy: the handle is that of the file.
if libc.name_to_handle_at(copy, b'', ctypes.byref(h), ctypes.byref(mount), 0x1000) < 0:
    sys.exit(print('note: no handles', ctypes.get_errno()))
at = os.open(root, os.O_RDONLY)
fd = libc.open_by_handle_at(at, ctypes.byref(h), os.O_RDWR)
if fd < 0: sys.exit(print('note: no handles', ctypes.get_errno()))
assert os.readlink(f'/proc/self/fd/{fd}') == x
os.write(fd, b'written by its handle')
os.close(fd)
assert open(x, 'rb').read(21) == b'written by its handle'
"#,
    );
}

#[test]
fn nodes_made_by_old_programs_are_listed() {
    let w = world();
    run(
        &w,
        r#"
dev = ctypes.c_ulong(0)
assert sorted(os.listdir(root))[-2:] == ['x', 'y']
assert libc.__xmknod(0, (root + '/z1').encode(), 0o100644, ctypes.byref(dev)) == 0
assert libc.__xmknodat(0, os.open(root, os.O_RDONLY), b'z2', 0o100644, ctypes.byref(dev)) == 0
assert sorted(os.listdir(root))[-2:] == ['z1', 'z2']
"#,
    );
}
