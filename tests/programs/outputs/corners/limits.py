"""A process that may not make long files (`ulimit -f`), and that makes short ones."""
import os
import resource
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from see import data, fails, get, main, put, replay, say

KIB = 1 << 10


def limited(bytes, work, hard=None, ignores=False):
    """Calls `work` in a child with that limit, and says how it ends."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        done = 99
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN if ignores else signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, bytes if hard is None else hard))
            work()
            done = 0
        except OSError as e:
            say("failed with", e)
            done = e.errno
        finally:
            sys.stdout.flush()
            os._exit(done)
    say("ended:", os.waitpid(child, 0)[1])


def many_short_files(n):
    def make():
        for i in range(n):
            put(f"f{i % 50}.tmp", b"%d" % i)
            os.rename(f"f{i % 50}.tmp", f"f{i % 50}")
            if i % 7 == 0:
                os.symlink(f"f{i % 50}", "l")
                os.unlink("l")
            if i % 11 == 0:
                os.chmod(f"f{i % 50}", 0o600)
                os.utime(f"f{i % 50}", (1_000_000_000, 1_000_000_000))
    return make


def each_call():
    put("a", b"a")
    put("b", b"b")
    os.rename("a", "c")
    os.unlink("b")
    os.symlink("c", "l")
    os.mkdir("d")
    os.rmdir("d")
    put("e.new", b"e")
    os.rename("e.new", "e")
    os.chmod("c", 0o640)
    os.truncate("c", 0)
    with open("c", "ab") as f:
        f.write(b"more")
    with open("e", "r+b") as f:
        f.write(b"E")
    os.link("e", "e2")
    os.rename("e", "e3")
    say(sorted(os.listdir(".")), get("c"), get("e3"))


@replay
def names_are_changed_with_any_limit():
    for n, bytes in enumerate((0, 100, 4 * KIB, 64 * KIB, 256 * KIB)):
        os.mkdir(f"in{n}")
        os.chdir(f"in{n}")
        put("before", b"before")
        limited(bytes, lambda: (os.rename("before", "after"), os.symlink("x", "l"), os.unlink("l")))
        os.chdir("..")


@replay(barrier=True)
def every_call_with_any_limit():
    for n, bytes in enumerate((100, 4 * KIB, 64 * KIB, 256 * KIB)):
        for m, (hard, ignores) in enumerate(((None, False), (None, True), (1 << 30, False))):
            os.mkdir(f"in{n}.{m}")
            os.chdir(f"in{n}.{m}")
            limited(bytes, each_call, hard, ignores)
            os.chdir("..")


@replay
def more_short_files_than_the_journal_may_be_long():
    limited(64 * KIB, many_short_files(400))
    limited(64 * KIB, many_short_files(400), ignores=True)
    limited(64 * KIB, many_short_files(400), hard=1 << 30)
    say(get("f0"), get("f49"))


@replay
def a_limit_that_is_set_while_files_are_open():
    files = [open(f"open{n}", "wb") for n in range(5)]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    for n, f in enumerate(files):
        f.write(b"%d" % n)
        f.close()
        os.rename(f"open{n}", f"closed{n}")
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    say([get(f"closed{n}") for n in range(5)])


@replay
def what_is_too_long_is_said_as_directly():
    def long():
        fails("write", put, "long", data("long", 8 * KIB))
        say(os.path.getsize("long"))
        put("short", b"short")
        fails("cut", os.truncate, "short", 8 * KIB)
        say(get("short"))

    limited(4 * KIB, long, ignores=True)
    limited(4 * KIB, lambda: put("killed", data("killed", 8 * KIB)))
    limited(4 * KIB, lambda: (put("killed2", b"x"), os.truncate("killed2", 8 * KIB)))
    say(os.path.getsize("killed"), os.path.getsize("killed2"))


@replay
def shells():
    script = "ulimit -f 8; for i in 1 2 3 4 5 6 7 8 9; do echo $i > s$i.tmp; mv s$i.tmp s$i || exit; " \
             "ln -s s$i sl$i; rm sl$i; done; cat s?"
    say(subprocess.run(["sh", "-c", script], capture_output=True))


if __name__ == "__main__":
    main()
