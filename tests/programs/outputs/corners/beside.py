"""A directory is removed while another process makes a name in it: not both succeed."""
import os
import random
import sys
from time import monotonic

KINDS = ["mkdir", "through", "link", "rename", "symlink", "mkfifo"]


def make(kind, n):
    """Makes a name in the directory; whether that succeeded."""
    name = "dir/name.log" if kind == "through" else "dir/name"
    try:
        if kind == "mkdir":
            os.mkdir(name)
        elif kind == "through":
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        elif kind == "link":
            os.link("published", name)
        elif kind == "rename":
            os.rename(f"other{n}.log", name)
        elif kind == "symlink":
            os.symlink("/nowhere", name)
        else:
            os.mkfifo(name)
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False


def remove():
    """Removes the directory; whether that succeeded."""
    try:
        os.rmdir("dir")
        return True
    except OSError:
        return False


def main(rounds):
    """Both at the same moment, again and again."""
    os.close(os.open("published", os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    chance, both, ends = random.Random(7), 0, set()
    for n in range(rounds):
        kind = KINDS[n % len(KINDS)]
        if kind == "rename":
            os.close(os.open(f"other{n}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        os.mkdir("dir")
        # Something is pending, so that the removal has its turn.
        with open(f"pending{n % 3}", "w") as file:
            file.write("x" * 1000)
        go, told = os.pipe(), os.pipe()
        delays = [chance.random() * 0.006, chance.random() * 0.006]
        child = os.fork()
        if child == 0:
            os.read(go[0], 1)
            until = monotonic() + delays[0]
            while monotonic() < until:
                pass
            os.write(told[1], b"y" if make(kind, n) else b"n")
            os._exit(0)
        os.write(go[1], b"x")
        until = monotonic() + delays[1]
        while monotonic() < until:
            pass
        is_removed = remove()
        is_made = os.read(told[0], 1) == b"y"
        os.waitpid(child, 0)
        [os.close(fd) for fd in (*go, *told)]
        ends.add((is_removed, is_made))
        if is_removed and is_made:
            both += 1
            print("BOTH", kind, n)
        if is_made or not is_removed:
            for name in os.listdir("dir") if os.path.isdir("dir") else []:
                path = os.path.join("dir", name)
                (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
            if os.path.isdir("dir"):
                os.rmdir("dir")
    print(len(ends), "ends, both", both)
    print("## end")


main(int(sys.argv[1]))
