//! Names of open descriptors: a call that opens, writes, mounts or asks by them is about the file
//! on the PFS.

use crate::guest::{python, small};
use crate::harness::Job;
use std::fs;

/// A descriptor of a copy of `x`.
const COPY: &str = "path = root + '/x'\n\
    fd = os.open(path, os.O_RDONLY)\n\
    assert '/copies/' in os.readlink(f'/proc/self/fd/{fd}'), 'no copy to try this with'\n\
    import subprocess\n\
    def other(): return subprocess.run(['cat', path], capture_output=True, text=True).stdout\n";

#[test]
fn spawn_actions_that_open_names_of_descriptors_write_the_pfs_file() {
    let truncates = "os.O_WRONLY | os.O_TRUNC, 0";
    let actions = [
        format!("(os.POSIX_SPAWN_DUP2, fd, 40), (os.POSIX_SPAWN_OPEN, 1, '/proc/self/fd/40', {truncates})"),
        format!("(os.POSIX_SPAWN_DUP2, fd, 0), (os.POSIX_SPAWN_OPEN, 1, '/dev/stdin', {truncates})"),
        format!("(os.POSIX_SPAWN_DUP2, fd, 0), (os.POSIX_SPAWN_OPEN, 1, '/proc/thread-self/fd/0', {truncates})"),
        format!("(os.POSIX_SPAWN_OPEN, 41, path, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, '/dev/fd/41', {truncates})"),
    ];
    for actions in actions {
        let w = small();
        python(
            &w,
            &format!(
                "{COPY}\
                 pid = os.posix_spawn('/bin/echo', ['echo', 'SPAWNED'], os.environ, file_actions=[{actions}])\n\
                 assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n\
                 assert read(path) == other() == 'SPAWNED\\n', read(path)\n"
            ),
        );
        assert_eq!(fs::read(w.root().join("x")).unwrap(), b"SPAWNED\n", "{actions}");
    }
}

#[test]
fn a_file_reopened_by_the_name_of_a_descriptor_has_the_changes_of_the_job() {
    for by in ["open(path, 'w').write('CHANGED')", "os.write(os.open(own, os.O_WRONLY | os.O_TRUNC), b'CHANGED')"] {
        let w = small();
        python(
            &w,
            &format!(
                "{COPY}\
                 own = f'/proc/self/fd/{{fd}}'\n\
                 {by}\n\
                 for name in own, f'/dev/fd/{{fd}}', f'/proc/{{os.getpid()}}/fd/{{fd}}', f'/proc/thread-self/fd/{{fd}}':\n\
                 \x20   assert read(name) == 'CHANGED', (name, read(name))\n\
                 \x20   assert os.read(os.open(name, os.O_RDONLY), 99) == b'CHANGED', name\n\
                 libc.fopen.restype = ctypes.c_void_p\n\
                 libc.fgets.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]\n\
                 line = ctypes.create_string_buffer(99)\n\
                 libc.fgets(line, 99, libc.fopen(own.encode(), b'r'))\n\
                 assert line.value == b'CHANGED', line.value\n\
                 # The same directory, spelled otherwise.\n\
                 for name in f'/{{own}}', f'/.{{own}}', f'/..{{own}}', f'//./{{own}}', f'/proc//self/./fd/{{fd}}':\n\
                 \x20   assert read(name) == 'CHANGED', (name, read(name))\n\
                 \x20   assert os.read(os.open(name, os.O_RDONLY), 99) == b'CHANGED', name\n\
                 # Numbers relative to the directory of descriptors.\n\
                 for names in '/proc/self/fd', '/dev/fd':\n\
                 \x20   of = os.open(names, os.O_RDONLY)\n\
                 \x20   again = os.open(str(fd), os.O_RDONLY, dir_fd=of)\n\
                 \x20   assert os.read(again, 99) == b'CHANGED', names\n\
                 os.chdir('/proc/self/fd')\n\
                 assert read(str(fd)) == 'CHANGED'\n\
                 # The descriptor itself keeps its version.\n\
                 assert os.pread(fd, 99, 0) == b'x of the root'\n\
                 assert subprocess.run(['cat', '/dev/stdin'], stdin=fd, capture_output=True).stdout == b'CHANGED'\n"
            ),
        );
    }
}

#[test]
fn a_copy_is_not_written_by_names_of_mapped_files_or_of_another_proc_however_often() {
    let another = "subprocess.run(['mount', '-t', 'proc', 'p', root + '/../another'], check=True)\n\
         name = f'{root}/../another/self/fd/{fd}'\n";
    let mapped = "import mmap\n\
         m = mmap.mmap(fd, 0, prot=mmap.PROT_READ)\n\
         line = [l for l in open('/proc/self/maps') if '/copies/' in l][0]\n\
         name = '/proc/self/map_files/' + line.split()[0]\n";
    for by in [another, mapped] {
        let w = small();
        fs::create_dir_all(w.root().join("../another")).unwrap();
        python(
            &w,
            &format!(
                "libc.unshare(0x20000); libc.mount(b'none', b'/', None, 0x4c000, None)\n\
                 {COPY}{by}\
                 for i in range(4):\n\
                 \x20   text = 'written ' + 'x' * i\n\
                 \x20   out = os.open(name, os.O_WRONLY | os.O_TRUNC)\n\
                 \x20   assert os.fstat(out).st_ino == os.stat(path).st_ino, i\n\
                 \x20   os.write(out, text.encode())\n\
                 \x20   assert read(path) == other() == text, (i, read(path))\n"
            ),
        );
    }
}

#[test]
fn a_write_through_a_bind_mount_of_a_copys_descriptor_is_on_the_pfs() {
    let w = small();
    let job = "exec 7<$0/x; touch $1; mount --bind /proc/self/fd/7 $1; echo BOUND > $1; umount $1; cat $0/x";
    let target = w.root().join("../bound");
    let job = Job::new("unshare").args(["-m", "sh", "-c", job]).arg(w.root()).arg(&target);
    assert_eq!(w.run(&job).good().text(), "BOUND\n");
    assert_eq!(fs::read(w.root().join("x")).unwrap(), b"BOUND\n");
}

#[test]
fn a_file_handle_by_the_name_of_a_descriptor_is_the_pfs_files() {
    let w = small();
    python(
        &w,
        &format!(
            "{COPY}\
             def handle(name, flags):\n\
             \x20   h = ctypes.create_string_buffer((128).to_bytes(4, 'little') + bytes(132), 136)\n\
             \x20   mount = ctypes.c_int()\n\
             \x20   done = libc.name_to_handle_at(-100, name.encode(), h, ctypes.byref(mount), flags)\n\
             \x20   return (done, ctypes.get_errno()) if done else (h.raw, mount.value)\n\
             assert handle(path, 0) == handle(f'/proc/self/fd/{{fd}}', 0x400)\n"
        ),
    );
}

#[test]
fn writes_by_libc_into_a_log_of_logins_are_seen() {
    let w = small();
    python(
        &w,
        &format!(
            "{COPY}\
             libc.updwtmp(path.encode(), ctypes.create_string_buffer(384))\n\
             assert os.stat(path).st_size == 13 + 384 or os.stat(path).st_size == 384, os.stat(path).st_size\n\
             assert len(open(path, 'rb').read()) == os.stat(path).st_size\n"
        ),
    );
}

#[test]
fn spawning_with_ordinary_names_leaves_copies_alone() {
    let w = small();
    python(
        &w,
        &format!(
            "{COPY}\
             import tempfile\n\
             for name in 'stdout.log', 'std-err', '17':\n\
             \x20   log = (os.POSIX_SPAWN_OPEN, 1, tempfile.mkdtemp() + '/' + name, os.O_WRONLY | os.O_CREAT, 0o600)\n\
             \x20   os.waitpid(os.posix_spawn('/bin/true', ['true'], os.environ, file_actions=[log]), 0)\n\
             \x20   assert '/copies/' in os.readlink(f'/proc/self/fd/{{fd}}'), name\n\
             assert '/copies/' in os.readlink(f'/proc/self/fd/{{os.open(path, os.O_RDONLY)}}')\n"
        ),
    );
}

#[test]
fn a_file_reopened_by_name_is_closed_at_exec_as_asked_and_costs_no_record_lock() {
    let w = small();
    python(
        &w,
        &format!(
            "{COPY}\
             import fcntl\n\
             own = f'/proc/self/fd/{{fd}}'\n\
             os.write(os.open(own, os.O_WRONLY | os.O_TRUNC), b'CHANGED')\n\
             libc.fopen.restype = ctypes.c_void_p\n\
             libc.fileno.argtypes = [ctypes.c_void_p]\n\
             for mode, want in (b're', 1), (b'r', 0):\n\
             \x20   assert fcntl.fcntl(libc.fileno(libc.fopen(own.encode(), mode)), fcntl.F_GETFD) == want, mode\n\
             held = os.open(path, os.O_RDWR)\n\
             fcntl.lockf(held, fcntl.LOCK_EX)\n\
             again = os.open(own, os.O_RDONLY)\n\
             text = 'import fcntl, os, sys\\n' \\\n\
             \x20   'try: fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)\\n' \\\n\
             \x20   'except OSError: sys.exit(7)'\n\
             assert subprocess.run(['python3', '-c', text, path]).returncode == 7\n"
        ),
    );
}

#[test]
fn a_log_of_logins_that_is_named_by_a_descriptor_is_the_pfs_file() {
    let w = small();
    python(
        &w,
        &format!(
            "{COPY}\
             libc.updwtmp(f'/proc/self/fd/{{fd}}'.encode(), ctypes.create_string_buffer(384))\n\
             assert os.stat(path).st_size == len(open(path, 'rb').read()) >= 384, os.stat(path).st_size\n"
        ),
    );
    assert!(fs::metadata(w.root().join("x")).unwrap().len() >= 384);
}
