"""Renames over, and of, names that a descriptor or another process still writes.
`over_open.py [--no-barriers] [NAME...]` in the directory where they go.
"""
import contextlib, ctypes, errno, os, sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from see import C, RW, T, W, X, data, digest, fails, get, look, main, put, replay, say

MORE = data("more", 50_000)
NOREPLACE, EXCHANGE = 1, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def renameat2(old, new, flags):
    if LIBC.renameat2(-100, old.encode(), -100, new.encode(), flags):
        raise OSError(ctypes.get_errno(), old)


def publish():
    """A hard link waits until everything that is closed is published."""
    put("barrier", b"barrier")
    os.link("barrier", "barrier2")
    os.unlink("barrier")
    os.unlink("barrier2")


def begin(path, content=b"old "):
    fd = os.open(path, RW | C | T)
    os.write(fd, content)
    return fd


def finish(fd):
    """The writer goes on, sees its own file, and closes it."""
    os.write(fd, MORE)
    say("the writer's", digest(os.pread(fd, 1 << 20, 0)), f"x{os.fstat(fd).st_nlink}")
    os.close(fd)


@contextlib.contextmanager
def another_process(path, by_exit=False):
    """It has the file open for writing within the block, and writes more at the end."""
    (ready, began), (end, go) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.close(go)
        fd = begin(path)
        os.write(began, b"x")
        os.read(end, 1)
        os.write(fd, MORE)
        if not by_exit:
            os.close(fd)
        os._exit(0)
    os.read(ready, 1)
    yield
    os.write(go, b"x")
    say("the other process", os.waitpid(pid, 0)[1])
    [os.close(fd) for fd in (ready, began, end, go)]


@replay
def pending_over_an_open_name():
    fd = begin("model")
    put("new", b"new content")
    os.rename("new", "model")
    look("model", "new")
    finish(fd)
    look("model", "new")


@replay
def pending_over_a_name_that_another_process_writes():
    for by_exit in (False, True):
        with another_process("model", by_exit):
            put("new", f"new content {by_exit}".encode())
            os.rename("new", "model")
            look("model", "new")
        look("model", "new")


@replay
def an_open_file_over_an_open_name():
    old = begin("model")
    new = begin("new", b"new ")
    os.rename("new", "model")
    look("model", "new")
    finish(old)
    look("model")
    os.write(new, b"and on")
    look("model")
    os.close(new)
    look("model", "new")


@replay
def the_newer_writer_closes_first():
    old = begin("model")
    new = begin("new", b"new ")
    os.rename("new", "model")
    os.close(new)
    look("model")
    finish(old)
    look("model", "new")


@replay
def many_over_one_name():
    writers = []
    for n in range(5):
        writers.append(begin("model", f"writer {n} ".encode()))
        put("new", data(n, 2000 + n))
        os.replace("new", "model")
    with another_process("model"):
        put("new", b"over that of the other process")
        os.replace("new", "model")
    look("model")
    [finish(fd) for fd in writers]
    look("model", "new")


@replay
def made_again_while_the_old_writer_writes():
    old = begin("model")
    put("new", b"new content")
    os.rename("new", "model")
    os.unlink("model")
    fails("exclusive", put, "model", b"made again", W | C | X)
    finish(old)
    look("model", "new")


@replay
def renamed_on_while_the_old_writer_writes():
    old = begin("model")
    put("new", b"new content")
    os.rename("new", "model")
    os.rename("model", "best")
    finish(old)
    look("model", "new", "best")
    old = begin("model")
    put("new", b"newer content")
    os.rename("model", "aside")
    os.rename("new", "model")
    finish(old)
    look("model", "new", "aside")


@replay(barrier=True)
def published_over_an_open_name():
    put("new", b"published before")
    publish()
    fd = begin("model")
    os.rename("new", "model")
    look("model", "new")
    finish(fd)
    look("model", "new")


@replay(barrier=True)
def published_over_a_name_that_another_process_writes():
    for by_exit in (False, True):
        put("new", f"published before {by_exit}".encode())
        publish()
        with another_process("model", by_exit):
            os.rename("new", "model")
            look("model", "new")
        look("model", "new")


@replay(barrier=True)
def over_a_published_name_that_is_written_again():
    put("model", b"the first version")
    publish()
    with another_process("model"):
        put("new", b"the third version")
        os.rename("new", "model")
        look("model", "new")
    look("model", "new")


@replay(barrier=True)
def one_that_goes_through_over_an_open_name():
    put("new.log", b"never staged")
    fd = begin("model")
    os.rename("new.log", "model")
    look("model", "new.log")
    finish(fd)
    look("model", "new.log")


@replay
def renames_that_fail_change_nothing():
    os.mkdir("dir")
    fd = begin("model")
    put("new", b"new content")
    fails("into nothing", os.rename, "new", "missing/model")
    fails("the open one into nothing", os.rename, "model", "missing/model")
    look("model", "new", "dir")
    finish(fd)
    look("model", "new", "dir")
    with another_process("model"):
        fails("into nothing", os.rename, "model", "missing/model")
    look("model")


@replay(barrier=True)
def renames_of_what_is_no_pending_file():
    """What is not pending is renamed on the PFS, once all is published."""
    os.mkdir("dir")
    put("file", b"file")
    fd = begin("model")
    fails("of nothing", os.rename, "missing", "model")
    fails("of nothing, over nothing", renameat2, "missing", "free", NOREPLACE)
    fails("of nothing, over something", renameat2, "missing", "model", NOREPLACE)
    fails("a directory over the open one", os.rename, "dir", "model")
    fails("the open one over a directory", os.rename, "model", "dir")
    fails("below a file", os.rename, "model", "file/model")
    look("model", "dir", "file")
    finish(fd)
    look("model", "dir", "file")
    with another_process("model"):
        fails("of nothing", os.rename, "missing", "model")
    look("model")


@replay
def no_replace():
    put("new", b"new content")
    put("closed", b"pending")
    fd = begin("model")
    fails("over a pending name", renameat2, "new", "closed", NOREPLACE)
    fails("over an open name", renameat2, "new", "model", NOREPLACE)
    fails("over itself", renameat2, "new", "new", NOREPLACE)
    look("new", "closed", "model")
    fails("to a free name", renameat2, "new", "free", NOREPLACE)
    fails("the open one to a free name", renameat2, "model", "moved", NOREPLACE)
    finish(fd)
    look("new", "closed", "model", "free", "moved")


@replay
def no_replace_over_a_name_whose_file_was_removed():
    put("model", b"the first")
    put("new", b"the second")
    os.unlink("model")
    fails("no replace", renameat2, "new", "model", NOREPLACE)
    look("model", "new")


@replay(barrier=True)
def no_replace_over_a_published_name():
    put("model", b"published")
    publish()
    put("new", b"pending")
    fails("over it", renameat2, "new", "model", NOREPLACE)
    look("model", "new")
    os.unlink("model")
    fails("after its removal", renameat2, "new", "model", NOREPLACE)
    look("model", "new")


@replay(barrier=True)
def exchange():
    put("a", b"a")
    put("b", b"bb")
    fails("pending", renameat2, "a", "b", EXCHANGE)
    look("a", "b")
    publish()
    fails("published", renameat2, "a", "b", EXCHANGE)
    look("a", "b")
    put("c", b"ccc")
    fails("one of each", renameat2, "a", "c", EXCHANGE)
    look("a", "c")
    fails("with nothing", renameat2, "a", "missing", EXCHANGE)
    look("a", "missing")


@replay(barrier=True)
def exchange_with_an_open_file():
    """Refused with EINVAL, which changes nothing, or done."""
    fd = begin("model")
    put("new", b"new content")
    for pair in (("new", "model"), ("model", "new")):
        before = [get(path) for path in ("model", "new")]
        try:
            renameat2(*pair, EXCHANGE)
        except OSError as e:
            after, wanted = [get(path) for path in ("model", "new")], before
            say("refused" if e.errno != errno.EINVAL else "done or refused", "whole" if after == wanted else "NOT WHOLE")
        else:
            after, wanted = [get(path) for path in ("model", "new")], before[::-1]
            say("done or refused", "whole" if after == wanted else "NOT WHOLE")
    finish(fd)
    look("model", "new")


@replay(barrier=True)
def exchange_takes_what_is_open_in_directories_along():
    for way in ("file", "directory", "both", "below", "nothing"):
        os.makedirs(f"{way}/a/in")
        if way == "file":
            put(f"{way}/b", b"a file")
        else:
            os.makedirs(f"{way}/b/in")
        publish()
        writers = [begin(f"{way}/a/in/one"), begin(f"{way}/left")]
        os.rename(f"{way}/left", f"{way}/a/two")
        if way in ("both", "below"):
            writers += [begin(f"{way}/b/in/one", b"other "), begin(f"{way}/b/three")]
            os.rename(f"{way}/b/three", f"{way}/out")
        put(f"{way}/a/closed", b"closed")
        pair = ("a", "b") if way in ("file", "both") else ("b", "a")
        if way == "below":
            pair = ("a/in", "b/in")
        elif way == "nothing":
            pair = ("a/in", "missing")
        fails(f"{way} {pair}", renameat2, *(f"{way}/{name}" for name in pair), EXCHANGE)
        look(*(f"{way}/{name}" for name in ("a/in/one", "b/in/one", "a/two", "b/two", "a/closed", "b/closed", "out", "b/three")))
        for fd in writers:
            finish(fd)
        look(*(f"{way}/{name}" for name in ("a/in/one", "b/in/one", "a/two", "b/two", "a/closed", "b/closed", "out")))


@replay
def exchange_with_what_is_missing():
    """It waits for nothing."""
    fd = begin("open")
    put("pending", b"pending")
    os.mkdir("dir")
    for name in ("open", "pending", "dir"):
        for missing in ("missing", "dir/missing", "missing/name", "pending/name", "open/name"):
            for pair in ((name, missing), (missing, name)):
                try:
                    renameat2(*pair, EXCHANGE)
                except OSError as e:
                    say(pair, errno.errorcode[e.errno])
    for pair in (("dir", "open/"), ("dir", "pending/")):
        fails(pair, renameat2, *pair, EXCHANGE)
    finish(fd)


if __name__ == "__main__":
    main()
