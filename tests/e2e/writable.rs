//! A program can write to no copy: by whatever name a descriptor of a copy is opened or changed,
//! the call is about the file on the PFS.

use crate::guest::{python, small};
use crate::harness::{Job, World};
use std::fs;

/// The beginning of the scripts below: a descriptor of the copy of `x`, all its names, and a check
/// by all readers.
const NAMES: &str = "import threading\n\
    path = root + '/x'\n\
    fd = os.open(path, os.O_RDONLY)\n\
    assert '/copies/' in os.readlink(f'/proc/self/fd/{fd}'), 'no copy to try this with'\n\
    own = [f'/proc/self/fd/{fd}', f'/dev/fd/{fd}', f'/proc/{os.getpid()}/fd/{fd}', f'/proc/thread-self/fd/{fd}',\n\
           f'//proc/./self/fd/{fd}', f'/tmp/../proc/self/fd/{fd}', f'/proc/self/task/{os.getpid()}/fd/{fd}']\n";

/// Gives `x` its first content again, as a version that has settled, with a copy.
fn restore(w: &mut World) {
    fs::write(w.root().join("x"), "x of the root").unwrap();
    w.release();
    w.settle();
}

#[test]
fn a_descriptor_of_a_copy_opened_for_writing_by_another_name_writes_the_pfs_file() {
    let mut w = small();
    for name in 0..7 {
        python(
            &w,
            &format!(
                "{NAMES}\
                 new = os.open(own[{name}], os.O_RDWR)\n\
                 assert os.write(new, b'WRITTEN') == 7\n\
                 assert os.pread(new, 99, 0) == b'WRITTENe root', os.pread(new, 99, 0)\n\
                 assert read(path) == 'WRITTENe root', read(path)\n"
            ),
        );
        assert_eq!(fs::read(w.root().join("x")).unwrap(), b"WRITTENe root", "by name {name}");
        restore(&mut w);
    }
}

#[test]
fn a_relative_number_in_a_directory_of_descriptors_is_the_pfs_file() {
    let mut w = small();
    for how in [
        "os.chdir('/proc/self/fd'); new = os.open(str(fd), os.O_WRONLY)",
        "new = os.open(str(fd), os.O_WRONLY, dir_fd=os.open('/proc/self/fd', os.O_RDONLY))",
        "new = os.open('fd/' + str(fd), os.O_WRONLY, dir_fd=os.open('/proc/self', os.O_RDONLY))",
        "os.chdir('/dev'); new = os.open('fd/' + str(fd), os.O_WRONLY)",
    ] {
        python(
            &w,
            &format!("{NAMES}{how}\nos.write(new, b'WRITTEN')\nassert read(path) == 'WRITTENe root', read(path)\n"),
        );
        assert_eq!(fs::read(w.root().join("x")).unwrap(), b"WRITTENe root", "{how}");
        restore(&mut w);
    }
}

#[test]
fn standard_input_that_is_a_copy_is_truncated_on_the_pfs() {
    let mut w = small();
    let root = w.root().to_owned();
    for how in ["> /dev/stdin", "> /proc/self/fd/0", "> /dev/fd/0"] {
        let job = Job::new("bash").arg("-c").arg(format!("exec < $0/x; echo new {how}; cat $0/x")).arg(&root);
        assert_eq!(w.run(&job).good().text(), "new\n", "{how}");
        assert_eq!(fs::read(root.join("x")).unwrap(), b"new\n", "{how}");
        restore(&mut w);
    }
}

#[test]
fn a_link_somewhere_to_a_descriptor_of_a_copy_does_not_open_the_copy_for_writing() {
    let mut w = small();
    for flags in ["os.O_WRONLY", "os.O_RDWR | os.O_TRUNC", "os.O_WRONLY | os.O_APPEND"] {
        python(
            &w,
            &format!(
                "{NAMES}import tempfile\n\
                 link = tempfile.mkdtemp() + '/link'\n\
                 os.symlink(own[0], link)\n\
                 new = os.open(link, {flags})\n\
                 assert '/copies/' not in os.readlink(f'/proc/self/fd/{{new}}')\n\
                 os.write(new, b'WRITTEN')\n\
                 assert read(path).count('WRITTEN') == 1, read(path)\n"
            ),
        );
        assert!(fs::read_to_string(w.root().join("x")).unwrap().contains("WRITTEN"), "{flags}");
        restore(&mut w);
    }
}

#[test]
fn streams_that_are_reopened_for_writing_are_the_pfs_file() {
    let mut w = small();
    for (mode, after) in [("r+", "WRITTENe root"), ("w", "WRITTEN"), ("a", "x of the rootWRITTEN"), ("w+", "WRITTEN")] {
        python(
            &w,
            &format!(
                "libc.fopen.restype = libc.freopen.restype = ctypes.c_void_p\n\
                 libc.freopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]\n\
                 libc.fputs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]\n\
                 libc.fclose.argtypes = [ctypes.c_void_p]\n\
                 f = libc.fopen((root + '/x').encode(), b'r')\n\
                 f = libc.freopen(None, b'{mode}', f)\n\
                 assert f, ctypes.get_errno()\n\
                 assert libc.fputs(b'WRITTEN', f) >= 0 and libc.fclose(f) == 0\n\
                 assert read(root + '/x') == '{after}', read(root + '/x')\n"
            ),
        );
        assert_eq!(fs::read_to_string(w.root().join("x")).unwrap(), after, "{mode}");
        restore(&mut w);
    }
}

#[test]
fn attributes_set_by_the_name_of_a_descriptor_are_those_of_the_pfs_file() {
    let w = small();
    python(
        &w,
        &format!(
            "{NAMES}\
             os.chmod(own[0], 0o640)\n\
             assert os.stat(path).st_mode & 0o777 == 0o640 and os.fstat(fd).st_mode & 0o777 == 0o640\n\
             os.utime(own[1], (5, 6))\n\
             assert os.stat(path).st_mtime == 6\n\
             os.setxattr(own[2], 'user.a', b'1')\n\
             assert os.getxattr(path, 'user.a') == b'1' and os.getxattr(own[0], 'user.a') == b'1'\n\
             os.truncate(own[3], 3)\n\
             assert read(path) == 'x o'\n"
        ),
    );
    assert_eq!(fs::read_to_string(w.root().join("x")).unwrap(), "x o");
}

#[test]
fn each_name_and_the_number_of_a_descriptor_report_the_same_file() {
    let w = small();
    python(
        &w,
        &format!(
            "{NAMES}\
             real = os.stat(path)\n\
             same = lambda st: (st.st_ino, st.st_dev, st.st_mode, st.st_size) == (real.st_ino, real.st_dev, real.st_mode, real.st_size)\n\
             for name in own: assert same(os.stat(name)), name\n\
             assert os.access(own[0], os.W_OK)\n\
             os.dup2(fd, 0)\n\
             assert same(os.stat('/dev/stdin'))\n\
             import struct\n\
             buf = ctypes.create_string_buffer(256)\n\
             for call in [lambda: libc.syscall(5, fd, buf), lambda: libc.syscall(262, fd, b'', buf, 0x1000), lambda: libc.syscall(4, own[0].encode(), buf)]:\n\
             \x20   assert call() == 0\n\
             \x20   dev, ino, nlink, mode = struct.unpack_from('=QQQI', buf.raw)\n\
             \x20   assert (dev, ino, mode) == (real.st_dev, real.st_ino, real.st_mode)\n\
             for mask in [0x7ff, 0x102]:\n\
             \x20   assert libc.syscall(332, fd, b'', 0x1000, mask, buf) == 0\n\
             \x20   mode, = struct.unpack_from('=H', buf.raw, 28); ino, = struct.unpack_from('=Q', buf.raw, 32)\n\
             \x20   assert (mode, ino) == (real.st_mode, real.st_ino)\n\
             \x20   assert libc.syscall(332, -100, own[0].encode(), 0, mask, buf) == 0\n\
             \x20   ino, = struct.unpack_from('=Q', buf.raw, 32)\n\
             \x20   assert ino == real.st_ino\n"
        ),
    );
}

#[test]
fn changes_by_number_are_seen() {
    let w = small();
    python(
        &w,
        "p = lambda name: (root + '/' + name).encode()\n\
         assert read(root + '/x') == 'x of the root'\n\
         assert libc.syscall(264, -100, p('a/x'), -100, p('x')) == 0\n\
         assert read(root + '/x') == 'x of a' and 'x' not in os.listdir(root + '/a')\n\
         assert libc.syscall(87, p('b/x')) == 0 and not os.path.exists(root + '/b/x')\n\
         fd = libc.syscall(257, -100, p('run.sh'), os.O_WRONLY | os.O_TRUNC, 0)\n\
         os.write(fd, b'short')\n\
         assert read(root + '/run.sh') == 'short'\n\
         assert libc.syscall(83, p('made'), 0o700) == 0 and 'made' in os.listdir(root)\n",
    );
}

#[test]
fn a_process_reads_what_it_wrote_into_a_removed_file() {
    let w = small();
    python(
        &w,
        &format!(
            "{NAMES}\
             os.unlink(path)\n\
             new = os.open(own[0], os.O_RDWR)\n\
             assert os.write(new, b'WRITTEN') == 7 and os.pread(new, 99, 0) == b'WRITTENe root'\n\
             assert os.fstat(new).st_nlink == 0 and not os.path.exists(path)\n\
             assert os.read(fd, 99) == b'x of the root'\n"
        ),
    );
}

#[test]
fn a_copy_of_a_file_that_another_process_moved_is_not_opened_for_writing() {
    let w = small();
    python(
        &w,
        &format!(
            "{NAMES}import errno, subprocess\n\
             subprocess.run(['mv', path, root + '/elsewhere'], check=True)\n\
             try:\n\
             \x20   os.open(own[0], os.O_RDWR)\n\
             \x20   assert False, 'opened'\n\
             except OSError as e: assert e.errno == errno.ESTALE, e\n\
             assert os.read(fd, 99) == b'x of the root' == open(root + '/elsewhere', 'rb').read()\n"
        ),
    );
}

#[test]
fn a_copy_that_a_program_without_the_shim_has_written_to_is_dropped() {
    let w = small();
    let inherits = "import subprocess, time\n\
         fd = os.open(root + '/x', os.O_RDONLY)\n\
         subprocess.run(['/bin/sh', '-c', 'printf damaged 1<>/dev/stdin'], stdin=fd, env={}, check=True)\n\
         assert os.pread(fd, 99, 0) == b'damagede root', 'the copy was not written to'\n\
         end = time.monotonic() + 30\n\
         while read(root + '/x') != 'x of the root':\n\
         \x20   assert time.monotonic() < end, read(root + '/x')\n\
         \x20   time.sleep(0.05)\n";
    python(&w, inherits);
}

#[test]
fn a_stream_of_a_file_that_another_process_moved_is_not_reopened_for_writing() {
    let w = small();
    python(
        &w,
        "libc.fopen.restype = libc.freopen.restype = ctypes.c_void_p\n\
         libc.freopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]\n\
         f = libc.fopen((root + '/x').encode(), b'r')\n\
         import subprocess; subprocess.run(['mv', root + '/x', root + '/y'], check=True)\n\
         assert not libc.freopen(None, b'r+', f) and ctypes.get_errno() == 116, ctypes.get_errno()\n\
         assert read(root + '/y') == 'x of the root'\n",
    );
}

#[test]
fn a_file_that_keeps_another_name_is_not_taken_for_removed() {
    let w = small();
    python(
        &w,
        &format!(
            "{NAMES}import errno\n\
             os.link(path, path + '~')\n\
             os.unlink(path)\n\
             assert os.fstat(fd).st_nlink == 1\n\
             try:\n\
             \x20   new = os.open(own[0], os.O_RDWR)\n\
             \x20   os.write(new, b'WRITTEN')\n\
             \x20   assert read(path + '~') == 'WRITTENe root', 'lost'\n\
             except OSError as e: assert e.errno == errno.ESTALE, e\n"
        ),
    );
}

#[test]
fn names_of_descriptors_exist_for_a_process_that_creates_a_file() {
    let w = small();
    python(
        &w,
        &format!(
            "{NAMES}\
             for name in own:\n\
             \x20   try: os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC); assert False, name\n\
             \x20   except FileExistsError: pass\n\
             assert read(path) == 'x of the root'\n"
        ),
    );
}

#[test]
fn reads_past_the_page_cache_of_a_large_file_end_as_on_the_pfs() {
    // Larger than the tier, so that it is streamed; not a multiple of a block, so that the end is a
    // part of one.
    let w = World::plan().files(2).args(&["--plain"]).disk().tier_size("8MiB").set("source.chunk_threshold=64KiB");
    let w = w.set("source.chunk_size=64KiB").build();
    fs::write(w.root().join("long"), vec![b'l'; (12 << 20) + 1234]).unwrap();
    let script = "import os, sys, mmap\n\
         fd = os.open(sys.argv[1] + '/long', os.O_RDONLY | os.O_DIRECT)\n\
         room = mmap.mmap(-1, 1 << 20)\n\
         total = 0\n\
         while True:\n\
         \x20   n = os.readv(fd, [room])\n\
         \x20   total += n\n\
         \x20   print(n)\n\
         \x20   if n == 0 or total > 12 << 20: break\n\
         def tries(what):\n\
         \x20   try: print(what())\n\
         \x20   except OSError as e: print(e)\n\
         tries(lambda: len(os.pread(fd, 100, 0)))\n\
         tries(lambda: os.preadv(fd, [room], 1))\n\
         tries(lambda: os.lseek(fd, 0, os.SEEK_CUR))\n\
         plain = os.open(sys.argv[1] + '/long', os.O_RDONLY)\n\
         print(len(os.read(plain, 5000)))\n\
         path = os.open(sys.argv[1] + '/long', os.O_PATH)\n\
         tries(lambda: os.read(path, 10))\n\
         write = os.open(sys.argv[1] + '/long', os.O_WRONLY)\n\
         tries(lambda: os.read(write, 10))\n";
    let job = Job::new("python3").arg("-c").arg(script).arg(w.root());
    w.same(&job);
}

/// A library between the shim and the C library (libattr is one) defines functions by `syscall`:
/// `cp -a` never came back from there.
#[test]
fn a_library_that_makes_its_calls_by_number_ends_in_the_kernel() {
    let w = small();
    let dir = w.scratch().join("library");
    fs::create_dir(&dir).unwrap();
    fs::write(
        dir.join("between.c"),
        "#define _GNU_SOURCE\n#include <sys/syscall.h>\n#include <unistd.h>\n\
         int fsetxattr(int f, const char *k, const void *v, unsigned long n, int g) { return syscall(SYS_fsetxattr, f, k, v, n, g); }\n\
         int setxattr(const char *p, const char *k, const void *v, unsigned long n, int g) { return syscall(SYS_setxattr, p, k, v, n, g); }\n\
         int rename(const char *a, const char *b) { return syscall(SYS_rename, a, b); }\n\
         int unlink(const char *p) { return syscall(SYS_unlink, p); }\n\
         int truncate(const char *p, long n) { return syscall(SYS_truncate, p, n); }\n\
         int fchmod(int f, unsigned m) { return syscall(SYS_fchmod, f, m); }\n\
         int fstat(int f, void *s) { return syscall(SYS_fstat, f, s); }\n\
         int flock(int f, int how) { return syscall(SYS_flock, f, how); }\n\
         int chdir(const char *p) { return syscall(SYS_chdir, p); }\n",
    )
    .unwrap();
    fs::write(
        dir.join("program.c"),
        "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <stdio.h>\n#include <sys/file.h>\n#include <sys/stat.h>\n\
         #include <sys/xattr.h>\n#include <unistd.h>\n\
         int main(int c, char **v) { struct stat s; int f = open(\"x\", O_RDONLY); if (c < 2) return 1;\n\
         chdir(v[1]); f = open(\"x\", O_RDONLY); int r[9] = {fstat(f, &s), fchmod(f, 0640), fsetxattr(f, \"user.a\", \"1\", 1, 0),\n\
         setxattr(\"x\", \"user.b\", \"1\", 1, 0), flock(f, LOCK_SH), truncate(\"x\", 3), rename(\"x\", \"y\"), unlink(\"y\"), access(\"x\", F_OK)};\n\
         for (int i = 0; i < 9; i++) printf(\"%d \", r[i]); printf(\"%ld\\n\", (long)s.st_size); return 0; }\n",
    )
    .unwrap();
    let gcc = |words: &[&str]| {
        let done = std::process::Command::new("gcc").args(words).current_dir(&dir).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    gcc(&["-w", "-shared", "-fPIC", "-fno-builtin", "-o", "libbetween.so", "between.c"]);
    gcc(&["-w", "-o", "program", "program.c", "-L.", "-Wl,--no-as-needed", "-lbetween", "-Wl,-rpath,$ORIGIN"]);
    let text = w.run(&Job::new(dir.join("program")).arg(w.root())).good().text();
    assert_eq!(text, "0 0 0 0 0 0 0 0 -1 13\n");
    assert!(!w.root().join("x").exists() && !w.root().join("y").exists());
    w.run(&Job::new("cp").args(["-a", "-r"]).arg(w.root()).arg(w.scratch().join("copied"))).good();
    assert_eq!(fs::read_to_string(w.scratch().join("copied/a/x")).unwrap(), "x of a");
}

#[test]
fn attributes_of_a_renamed_file_are_changed_by_the_descriptor_of_its_copy() {
    let w = small();
    python(
        &w,
        &format!(
            "{NAMES}\
             import fcntl\n\
             os.rename(path, root + '/renamed')\n\
             os.close(os.open(own[0], os.O_RDWR))\n\
             os.fchmod(fd, 0o600)\n\
             assert os.stat(root + '/renamed').st_mode & 0o777 == 0o600 == os.fstat(fd).st_mode & 0o777\n\
             fcntl.flock(fd, fcntl.LOCK_EX)\n\
             other = os.open(root + '/renamed', os.O_RDONLY)\n\
             try: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB); os._exit(9)\n\
             except BlockingIOError: pass\n\
             assert os.pread(fd, 99, 0) == b'x of the root'\n\
             a = os.open(root + '/a/x', os.O_RDONLY)\n\
             assert '/copies/' in os.readlink(f'/proc/self/fd/{{a}}'), 'no copy to try this with'\n\
             os.rename(root + '/a', root + '/moved')\n\
             os.utime(a, (7, 7))\n\
             assert os.stat(root + '/moved/x').st_mtime == 7\n"
        ),
    );
}

#[test]
fn calls_without_a_function_change_the_file_and_not_its_copy() {
    let w = small();
    // setxattrat (463), removexattrat (466), file_setattr (469): Linux 6.13 and 6.17.
    let said = python(
        &w,
        &format!(
            "{NAMES}\
             import struct\n\
             v = ctypes.create_string_buffer(b'val')\n\
             args = ctypes.create_string_buffer(struct.pack('QII', ctypes.addressof(v), 3, 0))\n\
             word = lambda n: ctypes.c_long(n)\n\
             def call(n, *a): return libc.syscall(word(n), *[x if hasattr(x, 'value') else word(x) for x in a]), ctypes.get_errno()\n\
             name, empty = ctypes.create_string_buffer(b'user.x'), ctypes.create_string_buffer(b'')\n\
             done, e = call(463, fd, empty, 0x1000, name, args, 16)\n\
             if done == 0:\n\
             \x20   assert os.getxattr(path, 'user.x') == b'val'\n\
             \x20   assert call(466, fd, empty, 0x1000, name)[0] == 0 and os.listxattr(path) == []\n\
             else: assert e in (38, 95), e\n\
             nodump = ctypes.create_string_buffer(struct.pack('QIIII', 0x80, 0, 0, 0, 0))\n\
             before = os.fstat(fd)\n\
             done, e = call(469, fd, empty, nodump, 24, 0x1000)\n\
             got = ctypes.create_string_buffer(24)\n\
             if done == 0 and call(468, -100, ctypes.create_string_buffer(path.encode()), got, 24, 0)[0] == 0:\n\
             \x20   assert struct.unpack('QIIII', got.raw)[0] & 0x80, 'the copy was changed'\n\
             print(done, e)\n"
        ),
    );
    assert!(said.starts_with("0 ") || said.contains("38") || said.contains("95") || said.contains("22"), "{said}");
}
