"""Directories that are renamed away while a file below them is open and pending.
`directories.py [NAME...]` in the directory where they go.
"""
import os, sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from see import C, RW, T, W, data, fails, look, main, put, replay, say

MORE = data("more", 30_000)


def begin(path):
    fd = os.open(path, RW | C | T)
    os.write(fd, b"begun ")
    return fd


def finish(fd):
    os.write(fd, MORE)
    os.close(fd)


@replay(barrier=True)
def with_nothing_else():
    os.mkdir("tmp")
    fd = begin("tmp/model")
    os.rename("tmp", "final")
    look("tmp", "final", "final/model", "tmp/model")
    finish(fd)
    look("tmp", "final", "final/model", "tmp/model")


@replay(barrier=True)
def with_other_entries():
    os.makedirs("tmp/deep")
    put("before", b"before")
    put("tmp/closed", b"closed")
    os.symlink("model", "tmp/latest")
    fds = [begin("tmp/model"), begin("tmp/deep/state")]
    put("tmp/deep/other", b"other")
    os.unlink("before")
    os.rename("tmp", "final")
    put("after", b"after")
    look("tmp", "final", "final/deep", "final/closed", "final/latest")
    [finish(fd) for fd in fds]
    look("final/model", "final/deep/state", "final/deep/other", "final/latest", "tmp/model")


@replay(barrier=True)
def renamed_twice_and_filled_again():
    os.mkdir("tmp")
    fd = begin("tmp/model")
    os.rename("tmp", "one")
    os.mkdir("tmp")
    other = begin("tmp/model")
    os.rename("one", "two")
    finish(other)
    look("one", "two/model", "tmp/model")
    finish(fd)
    look("one", "two/model", "tmp/model")


@replay(barrier=True)
def over_an_empty_directory():
    os.mkdir("tmp")
    os.mkdir("final")
    put("final/old", b"old")
    fd = begin("tmp/model")
    fails("not empty", os.rename, "tmp", "final")
    look("tmp/model", "final/old")
    os.unlink("final/old")
    fails("empty", os.rename, "tmp", "final")
    finish(fd)
    look("tmp", "final/model", "final/old")


@replay(barrier=True)
def a_parent_of_its_directory():
    os.makedirs("a/b/c")
    fd = begin("a/b/c/model")
    os.rename("a/b", "b")
    os.rename("b/c", "c")
    os.rename("a", "c/a")
    finish(fd)
    look("a", "b", "c/model", "c/a")


@replay(barrier=True)
def another_process_has_it_open():
    for by_exit in (False, True):
        (ready, began), (end, go) = os.pipe(), os.pipe()
        os.mkdir("tmp")
        pid = os.fork()
        if not pid:
            os.close(go)
            fd = begin("tmp/model")
            os.write(began, b"x")
            os.read(end, 1)
            os.write(fd, MORE)
            if not by_exit:
                os.close(fd)
            os._exit(0)
        os.read(ready, 1)
        os.rename("tmp", f"final{int(by_exit)}")
        look("tmp", f"final{int(by_exit)}/model")
        os.write(go, b"x")
        say(os.waitpid(pid, 0)[1])
        [os.close(fd) for fd in (ready, began, end, go)]
        look("tmp", f"final{int(by_exit)}/model")


@replay(barrier=True)
def removed_or_replaced_below_the_new_place():
    os.mkdir("tmp")
    removed, replaced, renamed = begin("tmp/removed"), begin("tmp/replaced"), begin("tmp/renamed")
    os.rename("tmp", "final")
    os.unlink("final/removed")
    put("new", b"new content")
    os.rename("new", "final/replaced")
    os.rename("final/renamed", "moved")
    [finish(fd) for fd in (removed, replaced, renamed)]
    look("final/removed", "final/replaced", "final/renamed", "moved")


if __name__ == "__main__":
    main()
