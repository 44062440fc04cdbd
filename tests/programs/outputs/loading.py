"""What was just written is loaded, executed, and handed to children before they run:
`loading.py [--no-barriers] [NAME...]` in the directory where it goes.
"""
import ctypes, os, socket, subprocess, sys

from see import C, RW, T, W, X, data, fails, look, main, put, replay, say, tool

LIBC = ctypes.CDLL(None, use_errno=True)
# Children must not add lines of their own.
ENVIRONMENT = {**os.environ, "LC_ALL": "C"}


def compiled(name, code, *options):
    """Compiles elsewhere, and puts the result here by one write."""
    there = f"{os.environ['TMPDIR']}/compiled"
    subprocess.run(["gcc", "-w", "-x", "c", "-", "-o", there, *options], input=code, text=True, check=True)
    with open(there, "rb") as f:
        put(name, f.read(), mode=0o777)
    os.unlink(there)


def library(name, code, *options):
    compiled(name, code, "-shared", "-fPIC", *options)


def value(path, function="value", load=ctypes.CDLL):
    try:
        return load(path)[function]()
    except OSError as e:
        return f"{e}".replace(os.getcwd(), "HERE")


@replay(barrier=True, needs=["gcc"])
def libraries_that_were_just_written():
    library("first.so", "int value() { return 1; }")
    say("absolute", value(os.path.abspath("first.so")))
    library("second.so", "int value() { return 2; }")
    say("relative", value("./second.so"))
    library("third.so", "int value() { return 3; }")
    os.symlink("third.so", "third.so.1")
    say("by a link", value("./third.so.1"))
    library("tmp.so", "int value() { return 4; }")
    os.rename("tmp.so", "fourth.so")
    say("renamed", value("./fourth.so"))
    put("busy", data("busy", 50_000))
    os.unlink("second.so")
    say("removed", value(os.path.abspath("second.so")))
    put("short.so", b"no library")
    say("no library", value("./short.so"))
    say("never there", value("./none.so"), value("none.so"))
    library("fifth.so", "int value() { return 5; }")
    LIBC.dlmopen.restype = LIBC.dlsym.restype = ctypes.c_void_p
    LIBC.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    handle = LIBC.dlmopen(ctypes.c_long(-1), b"./fifth.so", ctypes.c_int(2))
    found = handle and LIBC.dlsym(handle, b"value")
    say("in a namespace of its own", found and ctypes.CFUNCTYPE(ctypes.c_int)(found)())


@replay(barrier=True, needs=["gcc"])
def libraries_that_need_others():
    """The search path of a library is that of the caller of dlopen."""
    os.makedirs("sub")
    library("sub/libinner.so", "int inner() { return 10; }")
    library("libdep.so", "int dep() { return 100; }", "-Wl,-soname,libdep.so")
    outer = """
#include <dlfcn.h>
int dep(void);
int value(void) {
  void *inner = dlopen("libinner.so", RTLD_NOW);
  int (*call)(void) = inner ? (int (*)(void))dlsym(inner, "inner") : 0;
  return dep() + (call ? call() : -1);
}"""
    library("outer.so", outer, "-L.", "-ldep", "-ldl", "-Wl,--enable-new-dtags,-rpath,$ORIGIN:$ORIGIN/sub")
    # (Not here: what is mapped must not be written.)
    script = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).value())"
    tool(sys.executable, "-c", script, "./outer.so")
    # The library is published, and what it needs is written again.
    library("libdep.so", "int dep() { return 200; }", "-Wl,-soname,libdep.so")
    tool(sys.executable, "-c", script, "./outer.so")
    library("sub/libinner.so", "int inner() { return 20; }")
    library("libdep.so", "int dep() { return 300; }", "-Wl,-soname,libdep.so")
    tool(sys.executable, "-c", script, "./outer.so")
    library("sub/libinner.so", "int value() { return 30; }")
    search = {**ENVIRONMENT, "LD_LIBRARY_PATH": os.path.abspath("sub")}
    tool(sys.executable, "-c", script, "libinner.so", env=search)


@replay(barrier=True, needs=["gcc"])
def libraries_that_the_environment_names():
    hello = '#include <unistd.h>\n__attribute__((constructor)) static void hello(void) { write(1, "%s\\n", 5); }'
    preloaded = os.environ.get("LD_PRELOAD", "")
    for n, join in enumerate([" ", ":"]):
        library("hello.so", hello % f"said{n}")
        preload = join.join(word for word in (preloaded, os.path.abspath("hello.so")) if word)
        done = subprocess.run(["/bin/true"], env={**ENVIRONMENT, "LD_PRELOAD": preload}, capture_output=True, text=True)
        say("preloaded", done.stdout.strip(), done.returncode)
    compiled("program", "int value(void); int main() { return value(); }", "-Wl,--unresolved-symbols=ignore-all", "-Wl,--no-as-needed")
    os.makedirs("lib")
    library("lib/libvalue.so", "int value() { return 42; }", "-Wl,-soname,libvalue.so")
    compiled("program", "int value(void); int main() { return value(); }", "-Llib", "-lvalue")
    library("lib/libvalue.so", "int value() { return 43; }", "-Wl,-soname,libvalue.so")
    tool(os.path.abspath("program"), env={**ENVIRONMENT, "LD_LIBRARY_PATH": os.path.abspath("lib")})


@replay(barrier=True, needs=["gcc"])
def programs_that_were_just_written():
    program = '#include <stdio.h>\nint main(int n, char **words) { printf("%s", n > 1 ? words[n - 1] : "none"); return 7; }'
    compiled("program", program)
    tool("./program", "word")
    put("script", b"#!/bin/sh\necho script $1\n", mode=0o777)
    tool("./script", "word")
    for n, blanks in enumerate(["", "  ", "\t"]):
        compiled(f"interpreter{n}", program)
        put("by_own", f"#!{blanks}{os.path.abspath(f'interpreter{n}')} -x\n".encode(), mode=0o777)
        tool("./by_own")
    put("inner", f"#!{os.path.abspath('deepest')}\n".encode(), mode=0o777)
    put("outer", f"#!{os.path.abspath('inner')}\n".encode(), mode=0o777)
    compiled("deepest", program)
    done = subprocess.run(["./outer"], capture_output=True, text=True)
    say("through another script", done.returncode, os.path.basename(done.stdout))
    put("busy", data("busy", 50_000))
    os.unlink("program")
    fails("removed", os.posix_spawn, "./program", ["program"], ENVIRONMENT)
    put("not_executable", b"#!/bin/sh\n")
    fails("not executable", os.posix_spawn, "./not_executable", ["x"], ENVIRONMENT)
    fd = os.open("written", W | C | T, 0o777)
    os.write(fd, b"#!/bin/sh\n")
    fails("being written", os.posix_spawn, "./written", ["x"], ENVIRONMENT)
    os.close(fd)


@replay(barrier=True)
def programs_that_are_looked_for():
    os.makedirs("bin")
    os.environ["PATH"] = f"{os.path.abspath('bin')}:{os.environ['PATH']}"

    def ends(name):
        pid = os.posix_spawnp(name, [name], ENVIRONMENT)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    put("bin/own-tool", b"#!/bin/sh\nexit 3\n", mode=0o777)
    say("found", ends("own-tool"))
    put("bin/own-tool", b"#!/bin/sh\nexit 4\n", mode=0o777)
    say("written again", ends("own-tool"))
    # A name in the working directory is none of the search path.
    put("true", b"no program")
    put("bin/true", b"#!/bin/sh\nexit 5\n", mode=0o777)
    say("hides another", ends("true"))
    put("busy", data("busy", 50_000))
    os.unlink("bin/true")
    os.unlink("true")
    say("removed", ends("true"))
    tool("sh", "-c", "own-tool; echo $?")
    os.environ["PATH"] = os.environ["PATH"].partition(":")[2]


def spawned(command, actions, **more):
    """The end of a shell that had these actions."""
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", command], ENVIRONMENT, file_actions=actions, **more)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@replay
def files_that_a_child_gets():
    open_, close, dup = os.POSIX_SPAWN_OPEN, os.POSIX_SPAWN_CLOSE, os.POSIX_SPAWN_DUP2
    null = (open_, 0, "/dev/null", os.O_RDONLY, 0)
    say(spawned("echo one; echo two >&2", [null, (open_, 1, "out", W | C | T, 0o666), (dup, 1, 2)]))
    look("out")
    say("mode", spawned("echo x", [(open_, 1, "private", W | C | X, 0o600)]))
    look("private")
    say("again", spawned("echo written again", [(open_, 1, os.path.abspath("out"), W | C | T, 0o666)]))
    look("out")
    say("two", spawned("echo a; echo b >&2; echo c >&7", [(open_, 1, "a", W | C | T, 0o640), (close, 2), (open_, 2, "b", W | C | T, 0o644), (open_, 7, "c", RW | C | T, 0o644)]))
    look("a", "b", "c")
    say("one file twice", spawned("echo a; echo bb >&2", [(open_, 1, "twice", W | C | T, 0o644), (open_, 2, "twice", W | C | T, 0o644)]))
    look("twice")
    say("not written", spawned("exit 3", [(open_, 9, "empty", W | C | T, 0o644)]))
    look("empty")
    say("read", spawned("cat <&8 >&9", [(open_, 8, "out", os.O_RDONLY, 0), (open_, 9, "copy", W | C | T, 0o644)]))
    look("copy")
    say("cut", spawned("echo cut", [(open_, 1, "a", W | T, 0)]))
    look("a")
    say("not cut", spawned("printf X", [(open_, 1, "out", W, 0)]))
    look("out")
    for n in range(3):
        say("by a number that is used", spawned("echo n >&3; echo n >&4", [(open_, 3 + n, f"n{n}", W | C | T, 0o644)]))
        look(f"n{n}")
    before = os.listdir("/proc/self/fd")
    spawned("echo x", [(open_, 1, "out", W | C | T, 0o666)])
    say("left open", len(os.listdir("/proc/self/fd")) - len(before))
    put("later", data("later", 1000))
    look("later", "out")


@replay
def what_a_child_cannot_open():
    open_, close, dup = os.POSIX_SPAWN_OPEN, os.POSIX_SPAWN_CLOSE, os.POSIX_SPAWN_DUP2
    put("there", b"there")
    os.makedirs("dir")
    first = (open_, 1, "first", W | C | T, 0o644)
    for what, action in {
        "exclusive": (open_, 5, "there", W | C | X, 0o644),
        "no directory": (open_, 5, "none/f", W | C | T, 0o644),
        "a directory": (open_, 5, "dir", W | C | T, 0o644),
        "below a file": (open_, 5, "there/f", W | C | T, 0o644),
        "not there": (open_, 5, "none", os.O_RDONLY, 0),
        "no descriptor": (dup, 77, 5),
        "a bad number": (close, -1),
    }.items():
        fails(what, spawned, "echo x", [first, action])
        say("made", os.path.exists("first"), "not yet" if not os.path.exists("second") else "MADE")
        # What follows an action that fails is not made.
        fails(f"{what}, first", spawned, "echo x", [action, (open_, 1, "second", W | C | T, 0o644)])
        say("not made", os.path.exists("second"))
        for name in ("first", "second"):
            if os.path.exists(name):
                os.unlink(name)
    fails("no program", os.posix_spawn, "/bin/none-such", ["x"], ENVIRONMENT, file_actions=[first])
    look("first")


@replay(barrier=True)
def sockets_with_names():
    def bound(path):
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path)
    put("file", b"a file")
    fails("over a file", bound, "file")
    look("file")
    os.symlink("file", "link")
    fails("over a link", bound, "link")
    put("dir.busy", data("busy", 20_000))
    os.makedirs("dir")
    fails("over a directory", bound, "dir")
    fails("in a directory", bound, "dir/socket")
    fails("again", bound, "dir/socket")
    fails("below a file", bound, "file/socket")
    fails("no directory", bound, "none/socket")
    put("gone", b"gone")
    os.link("gone", "published")
    put("dir.busy", data("busy again", 20_000))
    os.unlink("gone")
    fails("where a file was removed", bound, "gone")
    look("dir/socket", "gone")
    put("file2", b"a file")
    with socket.socket(socket.AF_UNIX) as s:
        fails("connect to a file", s.connect, "file2")
        os.unlink("file2")
        fails("connect to nothing", s.connect, "file2")
        fails("connect", s.connect, "dir/socket")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as s:
        server.bind("listens")
        server.listen()
        fails("connect", s.connect, "listens")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(b"\0monarch-%d" % os.getpid())
    for name in ("dir/socket", "gone", "listens"):
        os.unlink(name)


@replay(barrier=True)
def names_through_a_link_that_is_pending():
    os.mkdir("d")
    for n in range(3):
        put("d/busy", data(n, 20_000))
        os.symlink("d", f"to_d{n}")
        fails("mkdir", os.mkdir, f"to_d{n}/sub{n}")
    os.symlink("d", "to_d")
    put("d/busy", data("again", 20_000))
    os.unlink("to_d")
    os.symlink("d", "to_d")
    fails("mkfifo", os.mkfifo, "to_d/fifo")
    fails("rename", os.rename, "to_d0/sub0", "to_d1/renamed")
    fails("rmdir", os.rmdir, "to_d2/renamed")
    fails("unlink", os.unlink, "to_d/fifo")
    say(sorted(os.listdir("to_d")))


main()
