"""Names that are made, removed and made again as something else, while the agent still works at the first."""
import os
import shutil
import sys
import time


def count(rows):
    found = {}
    for row in rows:
        found[row] = found.get(row, 0) + 1
    return found


def tried(work):
    try:
        work()
    except OSError as e:
        return f"{e.strerror} {os.path.basename(e.filename or '')[:14]}"
    return "ok"


def removed_trees():
    """A file that was never published is gone, and its directory is removed with its listing."""
    def one(at):
        d = f"d{at}"
        os.mkdir(d)
        open(f"{d}/n", "w").close()
        os.unlink(f"{d}/n")
        return tried(lambda: shutil.rmtree(d))
    print("trees", count(map(one, range(150))))


def files_and_directories():
    """A directory that is made where files were removed is there."""
    def one(_):
        for _ in range(3):
            open("foo", "w").close()
            os.unlink("foo")
        os.mkdir("foo")
        there = tried(lambda: os.lstat("foo"))
        gone = tried(lambda: os.rmdir("foo"))
        time.sleep(0.002)
        if os.path.isdir("foo"):
            os.rmdir("foo")
            gone += ", and still there"
        return there, gone
    print("directories", count(map(one, range(300))))


def directories_and_files():
    """A file that is made where a directory was removed, whose files were published."""
    for at in range(3):
        name = f"was{at}"
        os.mkdir(name)
        for n in range(at + 1):
            open(f"{name}/f{n}", "w").close()
        os.link(f"{name}/f0", "link")  # Published by now.
        os.unlink("link")
        shutil.rmtree(name)
        with open(name, "x") as f:
            f.write("a file\n")
        print(name, open(name).read().strip())


def links_through_files():
    """The text of a link may lead through a file, or to itself."""
    os.mkdir("s")
    open("s/file", "w").close()
    for text in ("file/broken", "file/", "loop", "x" * 300):
        name = f"s/{text[:4]}{len(text)}"
        print(text[:12], tried(lambda: os.symlink(text, name)), os.path.lexists(name))


def inodes():
    """What is changed after its close has one inode from then on, whatever the agent does with it meanwhile."""
    def opened(flags):
        def change(name):
            fd = os.open(name, flags)
            os.write(fd, b"more")
            os.close(fd)
        return change

    ways = {
        "truncate": lambda name: os.truncate(name, 700),
        "longer": lambda name: os.truncate(name, 70_000),
        "written again": opened(os.O_RDWR),
        "appended": opened(os.O_WRONLY | os.O_APPEND),
        "truncated at open": opened(os.O_WRONLY | os.O_TRUNC),
        "mode": lambda name: os.chmod(name, 0o600),
        "times": lambda name: os.utime(name, (1_000, 1_000)),
    }
    for way, change in ways.items():
        moved = 0
        for at in range(24):
            name = f"inode-{way}-{at}"
            with open(name, "wb") as f:
                f.write(bytes(1000))
            time.sleep(at * 0.0001)
            change(name)
            seen = set()
            for pause in (0, 0.0005, 0.001, 0.003):
                time.sleep(pause)
                seen.add(os.lstat(name).st_ino)
            moved += len(seen) != 1
        print("inodes", way, moved)


rows = [word for word in sys.argv[1:] if not word.startswith("-")]
for row in (removed_trees, files_and_directories, directories_and_files, links_through_files, inodes):
    if not rows or row.__name__ in rows:
        row()
print("## end")
