"""Descriptors: very many, none left, of published files, reopened by their number.
`descriptors.py [--no-barriers] [NAME...]` in the directory where they go.
"""
import errno, os, resource, subprocess, sys, threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from see import A, C, LONG_AGO, RW, T, W, X, data, digest, fails, get, look, main, put, replay, same, say

MANY = 4096


def publish():
    """A hard link waits until everything that is closed is published."""
    put("barrier", b"barrier")
    os.link("barrier", "barrier2")
    os.unlink("barrier")
    os.unlink("barrier2")


def words(*more):
    return [sys.executable, os.path.abspath(__file__), *more]


def with_many(how, *paths):
    """Opens more descriptors than any table of a small size holds, then writes and ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * MANY, max(2 * MANY, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    while os.open("/dev/null", os.O_RDONLY) <= MANY:
        pass
    for path in paths:
        fd = os.open(path, W | C | T)
        os.write(fd, data(path, 20_000))
        say(path, "high" if fd > MANY else "low")
        if how == "close":
            os.close(fd)
    if how == "_exit":
        os._exit(0)


@replay(barrier=True)
def more_than_any_table_holds():
    for how in ("close", "return", "_exit"):
        put(f"old.{how}", b"published before")
        publish()
        done = subprocess.run(words("with_many", how, f"model.{how}", f"old.{how}"), stdout=subprocess.PIPE, text=True)
        say(how, done.returncode, done.stdout)
        look(f"model.{how}", f"old.{how}")


def fill():
    """Takes every descriptor that is left."""
    soft = max(int(fd) for fd in os.listdir("/proc/self/fd")) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as e:
        say(errno.errorcode[e.errno])
    return taken


def change_names():
    fails("unlink", os.unlink, "removed")
    fails("rename", os.rename, "a", "moved")
    fails("rename over", os.rename, "b", "over")
    fails("unlink nothing", os.unlink, "missing")
    fails("rename nothing", os.rename, "missing", "over")
    fails("rename into nothing", os.rename, "c", "missing/c")
    fails("mkdir", os.mkdir, "dir")
    fails("rename below", os.rename, "c", "dir/c")
    fails("symlink", os.symlink, "over", "link")
    fails("open", os.open, "over", os.O_RDONLY)
    fails("create", os.open, "created", W | C | T)
    say(os.path.exists("removed"), os.path.exists("moved"), os.path.getsize("over"), os.path.exists("created"))
    fails("unlink the moved", os.unlink, "moved")


def files_to_change():
    for name in ("removed", "a", "b", "c", "over"):
        put(name, data(name, 3000))


def look_at_them():
    look("removed", "a", "moved", "b", "over", "c", "dir/c", "link", "created")


@replay(barrier=True)
def none_is_left():
    files_to_change()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = fill()
    change_names()
    [os.close(fd) for fd in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    look_at_them()


def with_none():
    fill()
    change_names()


@replay(barrier=True)
def none_is_left_for_attributes():
    put("f", data("f", 3000))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = fill()
    fails("chmod", os.chmod, "f", 0o600)
    fails("truncate", os.truncate, "f", 1000)
    fails("utime", os.utime, "f", (LONG_AGO, LONG_AGO))
    [os.close(fd) for fd in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    look("f")


@replay(barrier=True)
def none_is_left_for_other_calls():
    os.makedirs("dir/in")
    os.mkdir("full")
    for name in ("a", "b", "c", "d", "full/a"):
        put(name, data(name, 3000))
    written = os.open("written", W | C | T)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = fill()
    fails("unlink what is written", os.unlink, "written")
    fails("symlink", os.symlink, "a", "link")
    fails("rename", os.rename, "a", "a2")
    fails("rename out of a directory", os.rename, "full/a", "dir/a")
    fails("rmdir", os.rmdir, "dir/in")
    fails("rmdir of a full one", os.rmdir, "dir")
    fails("rmdir of an empty one", os.rmdir, "full")
    fails("rename of a directory", os.rename, "dir", "dir2")
    fails("link", os.link, "b", "b2")
    fails("mkfifo", os.mkfifo, "fifo")
    fails("mkdir", os.mkdir, "made")
    fails("setxattr", os.setxattr, "c", "user.note", b"1")
    fails("getxattr", os.getxattr, "c", "user.note")
    fails("chown", os.chown, "c", -1, os.getgid())
    fails("readlink", os.readlink, "link")
    fails("statvfs", lambda: os.statvfs("c").f_namemax)
    fails("access", os.access, "c", os.R_OK | os.W_OK)
    fails("listdir", os.listdir, ".")
    fails("truncate by number", os.truncate, f"/proc/self/fd/{written}", 10)
    say("limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0] - max(taken))
    [os.close(fd) for fd in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.close(written)
    look("a", "a2", "b", "b2", "c", "d", "link", "dir2", "dir2/a", "full", "fifo", "made", "written")


@replay(barrier=True)
def none_is_left_in_another_process():
    files_to_change()
    done = subprocess.run(words("with_none"), stdout=subprocess.PIPE, text=True)
    say(done.returncode, done.stdout)
    look_at_them()


@replay(barrier=True)
def the_last_one_writes():
    """The file is open already when the last descriptor is taken."""
    put("over", b"replaced")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    fd = os.open("model.new", W | C | T)
    taken = fill()
    os.write(fd, data("model", 5000))
    fails("rename", os.rename, "model.new", "model")
    os.write(fd, b"more")
    os.close(fd)
    taken.append(os.open("/dev/null", os.O_RDONLY))
    fails("rename over", os.rename, "model", "over")
    [os.close(fd) for fd in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    look("model.new", "model", "over")


def attributes_by(fd, n):
    fails("fchmod", os.fchmod, fd, 0o600 + n)
    fails("utime", os.utime, fd, (LONG_AGO + n, LONG_AGO + n))
    fails("fchown", os.fchown, fd, -1, os.getgid())
    fails("setxattr", os.setxattr, fd, "user.note", b"by descriptor")
    st = os.fstat(fd)
    say(oct(st.st_mode), st.st_mtime_ns)


@replay(barrier=True)
def one_attribute_by_a_reader_of_a_published_file():
    for name in ("mode", "times", "note"):
        put(name, data(name, 5000))
    publish()
    fds = [os.open(name, os.O_RDONLY) for name in ("mode", "times", "note")]
    fails("fchmod", os.fchmod, fds[0], 0o604)
    fails("utime", os.utime, fds[1], (LONG_AGO, LONG_AGO))
    fails("setxattr", os.setxattr, fds[2], "user.note", b"by descriptor")
    look("mode", "times", "note")
    [os.close(fd) for fd in fds]
    look("mode", "times", "note")


@replay(barrier=True)
def several_attributes_by_a_reader_of_a_published_file():
    put("f", data("f", 5000))
    publish()
    fd = os.open("f", os.O_RDONLY)
    attributes_by(fd, 0o44)
    look("f")
    os.close(fd)
    look("f")


@replay(barrier=True)
def attributes_by_a_reader_that_has_seen_the_publication():
    put("f", data("f", 5000))
    fd = os.open("f", os.O_RDONLY)
    publish()
    attributes_by(fd, 0o40)
    os.close(fd)
    look("f")


@replay(barrier=True)
def attributes_by_a_reader_of_a_file_that_was_renamed():
    put("f", data("f", 5000))
    publish()
    fd = os.open("f", os.O_RDONLY)
    os.rename("f", "g")
    put("f", b"another of that name")
    attributes_by(fd, 0o4)
    os.close(fd)
    look("f", "g")


@replay(barrier=True)
def attributes_by_a_reader_of_a_file_that_was_replaced():
    put("f", data("f", 5000))
    publish()
    fd = os.open("f", os.O_RDONLY)
    put("new", b"its successor")
    os.rename("new", "f")
    attributes_by(fd, 0o44)
    os.close(fd)
    look("f")


@replay
def attributes_by_a_reader_of_a_pending_file():
    put("f", data("f", 5000))
    fd = os.open("f", os.O_RDONLY)
    attributes_by(fd, 0o44)
    os.close(fd)
    look("f")


@replay
def opens_that_must_not_wait():
    """While the agent holds leases of the files that it copies, no open says EAGAIN."""
    failed, over = {}, threading.Event()

    def opens(path, seed):
        n = 0
        while not over.is_set():
            flags = (os.O_RDONLY, RW, W, RW | A, RW | C)[(n + seed) % 5]
            try:
                os.close(os.open(path, flags | os.O_NONBLOCK))
            except OSError as e:
                key = f"{errno.errorcode[e.errno]} of {flags:#o}"
                failed[key] = failed.get(key, 0) + 1
            n += 1
    for n in range(3):
        put(f"f{n}", data(n, 50_000))
    threads = [threading.Thread(target=opens, args=(f"f{n}", n)) for n in range(3)]
    [t.start() for t in threads]
    for n in range(60):
        put(f"g{n % 7}", data(n, 20_000 + n), W | C | T | os.O_NONBLOCK)
        fails_at = [k for k in range(7) if not can_open(f"g{k}", n)]
        if fails_at:
            failed[f"EAGAIN of g{fails_at}"] = n
    over.set()
    [t.join() for t in threads]
    say("failed:", failed)
    look(*(f"f{n}" for n in range(3)), *(f"g{n}" for n in range(7)))


@replay
def opened_for_writing_again_and_again():
    put("f", b"f")
    for n in range(30):
        os.close(os.open("f", W))
        put("g", data(n, 100))
    look("f", "g")


def can_open(path, n):
    try:
        os.close(os.open(path, (os.O_RDONLY, RW, W)[n % 3] | os.O_NONBLOCK))
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def by_number(fd, flags, content):
    """Opens what a descriptor has by its name in /proc, writes, and closes."""
    put(f"/proc/self/fd/{fd}", content, flags)


@replay
def reopened_by_number_while_it_is_written():
    fd = os.open("f", RW | C | T)
    os.write(fd, b"first content, ")
    by_number(fd, W, b"FIRST")
    look("f")
    by_number(fd, W | A, b"appended")
    look("f")
    by_number(fd, W | C | T, b"cut and written anew")
    look("f")
    os.close(fd)
    fails("closed", by_number, fd, W | C | T, b"nothing")
    look("f")


@replay
def reopened_by_number_after_the_writer_closed():
    put("f", data("f", 9000))
    fd = os.open("f", os.O_RDONLY)
    by_number(fd, W, b"in front")
    look("f")
    by_number(fd, W | T, b"cut")
    look("f")
    by_number(fd, W | C | T, b"cut again")
    os.close(fd)
    look("f")


@replay(barrier=True)
def reopened_by_number_after_the_publication():
    for n, flags in enumerate((W, W | A, W | T, W | C | T)):
        put(f"f{n}", data(n, 9000))
        publish()
        fd = os.open(f"f{n}", os.O_RDONLY)
        by_number(fd, flags, b"written by number")
        look(f"f{n}")
        os.close(fd)
        look(f"f{n}")


@replay(barrier=True)
def reopened_by_number_with_the_publication_between():
    for n, flags in enumerate((W, W | A, W | T, W | C | T)):
        put(f"f{n}", data(n, 9000))
        fd = os.open(f"f{n}", os.O_RDONLY)
        publish()
        by_number(fd, flags, b"written by number")
        look(f"f{n}")
        os.close(fd)
        look(f"f{n}")


@replay
def reopened_by_number_after_it_was_renamed():
    put("f", data("f", 9000))
    fd = os.open("f", os.O_RDONLY)
    os.rename("f", "g")
    put("f", b"another of that name")
    by_number(fd, W | T, b"of the renamed one")
    os.close(fd)
    look("f", "g")


@replay
def reopened_by_number_after_it_was_removed():
    fd = os.open("f", RW | C | T)
    os.write(fd, b"first content, ")
    os.unlink("f")
    fails("in front", by_number, fd, W, b"FIRST")
    say(os.pread(fd, 100, 0))
    fails("cut", by_number, fd, W | T, b"cut")
    say(os.pread(fd, 100, 0))
    fails("cut, created", by_number, fd, W | C | T, b"cut again")
    say(os.pread(fd, 100, 0), os.fstat(fd).st_nlink)
    fails("truncate", os.truncate, f"/proc/self/fd/{fd}", 2)
    fails("chmod", os.chmod, f"/proc/self/fd/{fd}", 0o600)
    say(os.pread(fd, 100, 0), oct(os.stat(f"/proc/self/fd/{fd}").st_mode))
    os.close(fd)
    look("f", "f (deleted)")


@replay
def attributes_by_number():
    put("f", data("f", 9000))
    fd = os.open("f", os.O_RDONLY)
    fails("truncate", os.truncate, f"/proc/self/fd/{fd}", 4000)
    fails("utime", os.utime, f"/proc/self/fd/{fd}", (LONG_AGO, LONG_AGO))
    os.close(fd)
    look("f")


@replay
def mode_by_number():
    put("f", data("f", 9000))
    fd = os.open("f", os.O_RDONLY)
    fails("chmod", os.chmod, f"/proc/self/fd/{fd}", 0o640)
    say(same(os.stat("f"), os.fstat(fd), "fstat"))
    os.close(fd)
    look("f")


if __name__ == "__main__":
    if sys.argv[1:2] == ["with_many"]:
        with_many(*sys.argv[2:])
    elif sys.argv[1:2] == ["with_none"]:
        with_none()
    else:
        main()
