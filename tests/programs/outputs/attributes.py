"""Modes, owners, times, extended attributes, and files that are reopened, truncated and inherited.
`attributes.py [--no-barriers] [NAME...]` in the directory where they go.
"""
import os, shutil, struct, subprocess, sys

from see import A, C, LONG_AGO, RW, T, W, X, data, fails, fsync, get, look, main, put, replay, same, say, tool


@replay
def changed_after_close():
    for n, name in enumerate("abcde"):
        put(name, data(name, 2000))
        os.chmod(name, 0o400 + n)
        os.utime(name, (LONG_AGO + n, LONG_AGO + 10 * n))
        look(name)
    os.utime("a", ns=(LONG_AGO * 10**9 + 123, LONG_AGO * 10**9 + 456_789_012))
    look("a")
    os.chmod("a", 0o4755)
    look("a")
    os.rename("a", "renamed")
    look("renamed")
    shutil.copystat("b", "renamed")
    look("renamed")


@replay(barrier=True)
def the_sticky_bit():
    put("f", b"f")
    os.chmod("f", 0o1644)
    look("f")


@replay
def changed_while_open():
    fd = os.open("f", RW | C | T, 0o600)
    os.fchmod(fd, 0o751)
    os.write(fd, b"some")
    os.utime(fd, (LONG_AGO, LONG_AGO))
    say(oct(os.fstat(fd).st_mode), os.fstat(fd).st_mtime_ns, same(os.fstat(fd), os.stat("f"), "stat"))
    os.chmod("f", 0o640)
    say(oct(os.fstat(fd).st_mode))
    os.close(fd)
    look("f")
    fd = os.open("g", RW | C | T, 0o600)
    os.utime(fd, (LONG_AGO, LONG_AGO))
    os.write(fd, b"written after its time was set")
    os.close(fd)
    say(os.stat("g").st_mtime > LONG_AGO + 1)
    os.utime("g", (LONG_AGO, LONG_AGO + 7))
    look("g")


@replay
def owners():
    put("f", b"f")
    fails("chown", os.chown, "f", 1234, 2345)
    look("f")
    fd = os.open("g", W | C | T)
    fails("fchown", os.fchown, fd, 77, -1)
    os.write(fd, b"g")
    os.close(fd)
    look("g")
    put("g", b"written again, by another user than its owner")
    look("g")
    # These are not the last files that are closed: written again, they are other staged files.
    for name, owner, mode in (("h", (-1, 4321), 0o640), ("i", (77, -1), 0o604), ("j", (77, 4321), 0o6755)):
        put(name, b"first")
        os.chown(name, *owner)
        os.chmod(name, mode)
        put(f"{name}.after", b"closed after it")
        put(name, b"written again")
        look(name)


@replay(barrier=True)
def owners_of_links():
    put("f", b"f")
    os.symlink("f", "link")
    fails("lchown", os.lchown, "link", 5, 6)
    look("link", "f")


@replay
def another_user():
    """A process of the job that gives up its rights."""
    os.mkdir("open")
    os.chmod("open", 0o777)
    os.mkdir("closed")
    put("private", b"for its owner", W | C | T, 0o600)
    if not os.fork():
        os.setgid(65534)
        os.setuid(65534)
        fails("in an open directory", put, "open/f", b"by another user")
        fails("in a closed one", put, "closed/f", b"")
        fails("a private file", get, "private")
        fails("over it", put, "private", b"")
        fails("renamed", os.rename, "open/f", "open/g")
        fails("chmod of another's", os.chmod, "private", 0o666)
        fails("removed", os.unlink, "private")
        os._exit(0)
    os.wait()
    look("open/f", "open/g", "closed", "private")
    put("open/g", b"over another's file")
    look("open/g")


@replay
def modes_and_masks():
    for mask in (0o000, 0o027, 0o077):
        os.umask(mask)
        put(f"w{mask:03o}", b"x", W | C | T, 0o666)
        put(f"x{mask:03o}", b"x", W | C | X, 0o777)
        open(f"o{mask:03o}", "w").close()
        os.mkdir(f"d{mask:03o}")
        look(f"w{mask:03o}", f"x{mask:03o}", f"o{mask:03o}", f"d{mask:03o}")
    os.umask(0o022)
    put("setuid", b"x", W | C | T, 0o6755)
    put("sticky", b"x", W | C | T, 0o1644)
    put("none", b"x", W | C | T, 0)
    look("setuid", "sticky", "none")


@replay
def a_directory_with_a_group():
    os.mkdir("g")
    os.chown("g", -1, 4321)
    os.chmod("g", 0o2775)
    put("g/f", b"f")
    os.mkdir("g/sub")
    put("g/sub/h", b"h")
    look("g", "g/f", "g/sub", "g/sub/h")
    os.rename("g/f", "moved")
    look("moved")


@replay
def default_access_lists():
    os.mkdir("acl")
    entry = lambda tag, perm, who=0xffffffff: struct.pack("<HHI", tag, perm, who)
    acl = struct.pack("<I", 2) + entry(1, 7) + entry(2, 6, 1001) + entry(4, 5) + entry(0x10, 7) + entry(0x20, 0)
    fails("set", os.setxattr, "acl", "system.posix_acl_default", acl)
    put("acl/f", b"f")
    look("acl/f")
    fails("its list", os.getxattr, "acl/f", "system.posix_acl_access")


@replay(barrier=True)
def extended_attributes():
    put("f", b"f")
    fails("set", os.setxattr, "f", "user.note", b"pending")
    fails("get", os.getxattr, "f", "user.note")
    fails("list", os.listxattr, "f")
    fd = os.open("g", RW | C | T)
    fails("set by descriptor", os.setxattr, fd, "user.note", b"open")
    os.write(fd, b"g")
    os.close(fd)
    fails("get", os.getxattr, "g", "user.note")
    fails("none", os.getxattr, "g", "user.other")
    look("f", "g")


@replay
def reopened():
    put("f", data("f", 10_000))
    with open("f", "r+b") as f:
        f.seek(5_000)
        f.write(b"patched")
    look("f")
    with open("f", "ab") as f:
        say(f.tell())
        f.write(b"appended")
    look("f")
    fd = os.open("f", W | C)
    os.pwrite(fd, b"neither truncated nor exclusive", 0)
    os.close(fd)
    look("f")
    put("f", b"short")
    look("f")
    a, b = os.open("f", RW), os.open("f", RW | A)
    os.write(b, b" and long")
    say(os.read(a, 100))
    os.ftruncate(a, 3)
    os.write(b, b"END")
    say(os.pread(a, 100, 0), os.fstat(b).st_size)
    os.close(a)
    os.close(b)
    look("f")
    reader = os.open("f", os.O_RDONLY)
    put("f.new", b"another file of that name")
    os.rename("f.new", "f")
    say("still", os.read(reader, 100))
    os.close(reader)
    look("f")


@replay
def read_while_it_is_written():
    fd = os.open("growing", W | C | T)
    for n in range(5):
        os.write(fd, data(n, 1000))
        say(len(get("growing")), os.path.getsize("growing"))
    tool("sh", "-c", "wc -c < growing; head -c 1000 growing | sha256sum | cut -c1-12")
    os.unlink("growing")
    os.write(fd, b"without a name")
    look("growing")
    say(os.fstat(fd).st_size, os.fstat(fd).st_nlink)
    os.close(fd)
    fd = os.open("deleted", RW | C | X)
    os.unlink("deleted")
    os.write(fd, b"only a descriptor")
    say(os.pread(fd, 100, 0))
    os.close(fd)


@replay
def renamed_and_removed_while_open():
    fd = os.open("a", RW | C | T)
    os.write(fd, b"before ")
    os.rename("a", "b")
    os.write(fd, b"after")
    look("b")
    put("a", b"another a")
    os.write(fd, b" and on")
    os.rename("a", "b")
    os.write(fd, b" nowhere")
    say(os.pread(fd, 100, 0), os.fstat(fd).st_nlink)
    os.close(fd)
    look("a", "b")


@replay
def inherited():
    with open("out.txt", "wb") as f:
        subprocess.run(["sh", "-c", "echo from a child; echo more >&2"], stdout=f, stderr=f)
        subprocess.run(["printf", "%s", "at the same offset"], stdout=f)
    look("out.txt")
    say(get("out.txt"))
    f = open("late.txt", "wb")
    child = subprocess.Popen(["sh", "-c", "sleep 0.3; echo written after the close of the parent"], stdout=f)
    f.close()
    look("late.txt")
    child.wait()
    look("late.txt")
    fd = os.open("both", W | C | T)
    pid = os.fork()
    if not pid:
        os.write(fd, b"child ")
        os._exit(0)
    os.waitpid(pid, 0)
    os.write(fd, b"parent")
    os.close(fd)
    look("both")
    saved = os.dup(1)
    sys.stdout.flush()
    fd = os.open("stdout.txt", W | C | T)
    os.dup2(fd, 1)
    os.close(fd)
    print("to the file", flush=True)
    tool("echo", "and a child")
    os.dup2(saved, 1)
    os.close(saved)
    look("stdout.txt")


@replay
def syncs():
    os.mkdir("d")
    fd = os.open("d/f", RW | C | T)
    os.write(fd, data("f", 9000))
    fails("fsync", os.fsync, fd)
    fails("fdatasync", os.fdatasync, fd)
    os.close(fd)
    fails("of a directory", fsync, "d")
    fails("of a reader", fsync, "d/f")
    os.sync()
    look("d/f")


@replay
def truncated():
    for how in ("os.truncate", "ftruncate", "O_TRUNC"):
        put("f", data("f", 8000))
        if how == "os.truncate":
            os.truncate("f", 100)
        elif how == "ftruncate":
            fd = os.open("f", RW)
            os.ftruncate(fd, 12_000)
            os.close(fd)
        else:
            os.close(os.open("f", W | T))
        look("f")
    put("zero", b"")
    look("zero")
    os.truncate("zero", 1 << 20)
    look("zero")


if __name__ == "__main__":
    main()
