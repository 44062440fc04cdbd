"""Changes by a symbolic link that leads out of the output root, published or not: the job's program
says what each call did, and what is there then."""
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from see import get, main, put, replay, say

SIBLING = os.environ["SIBLING"]


def there(away):
    """What is where the link leads, with its bytes."""
    found = []
    for at, dirs, files in os.walk(away):
        for name in sorted(dirs + files):
            path = os.path.join(at, name)
            is_file = os.path.isfile(path) and not os.path.islink(path)
            found.append((os.path.relpath(path, away), get(path) if is_file else "no file"))
    return sorted(found)


def each(link, calls):
    # On this file system, by a relative path, and on another one.
    away = os.path.join(os.environ["TMPDIR"] if "far" in link else SIBLING, "away")
    shutil.rmtree(away, ignore_errors=True)
    os.makedirs(f"{away}/sub")
    for name in "fghs":
        put(f"{away}/{name}", name.encode())
    os.symlink(away if "far" in link else os.path.relpath(away), "new")
    if "published" in link:
        os.rename("new", link)
        put("first", b"first")
        os.link("first", "second")
    put("pending", b"holds all up")
    if "published" not in link:
        os.rename("new", link)
    for name, call in calls:
        try:
            done = call(link)
        except OSError as e:
            done = e.errno
        say(name, done, there(away))
    put("last", b"the last one")
    say(sorted(os.listdir(".")))
    shutil.rmtree(away, ignore_errors=True)


REMOVALS = [
    ("unlink", lambda l: os.unlink(f"{l}/f")),
    ("unlink none", lambda l: os.unlink(f"{l}/none")),
    ("rmdir", lambda l: os.rmdir(f"{l}/sub")),
    ("rmdir the link", lambda l: os.rmdir(l)),
    ("rmtree", lambda l: shutil.rmtree(f"{l}/.", ignore_errors=True)),
    ("unlink the link", lambda l: os.unlink(l)),
]
NAMES = [
    ("mkdir", lambda l: os.mkdir(f"{l}/new")),
    ("mkdir again", lambda l: os.mkdir(f"{l}/new")),
    ("rmdir", lambda l: os.rmdir(f"{l}/new")),
    ("symlink", lambda l: os.symlink("x", f"{l}/l")),
    ("create", lambda l: put(f"{l}/made", b"made")),
    ("exclusive", lambda l: os.close(os.open(f"{l}/made", os.O_CREAT | os.O_EXCL))),
    ("rename there", lambda l: os.rename(f"{l}/g", f"{l}/g2")),
    ("replace there", lambda l: os.replace(f"{l}/g2", f"{l}/made")),
    ("rename a pending file there", lambda l: os.rename("pending", f"{l}/p")),
    ("rename by the link alone", lambda l: os.rename(f"{l}/p", f"{l}/made")),
    ("rename below a file", lambda l: os.rename(f"{l}/s", "pending/s")),
    ("rename over a pending file", lambda l: (put("victim", b"v"), os.rename(f"{l}/f", "victim"))[0]),
    ("with a slash", lambda l: os.open(f"{l}/s/", os.O_RDONLY)),
    ("rename from there", lambda l: os.rename(f"{l}/h", "h")),
    ("rename over one there", lambda l: (put("other", b"o"), os.rename("other", f"{l}/made"))[0]),
    ("fifo", lambda l: os.mkfifo(f"{l}/fifo")),
    ("unlink", lambda l: os.unlink(f"{l}/fifo")),
    ("link from there", lambda l: os.link(f"{l}/s", "linked")),
    ("link there", lambda l: os.link("pending", f"{l}/linked")),
]
CONTENTS = [
    ("chmod", lambda l: os.chmod(f"{l}/s", 0o600)),
    ("utime", lambda l: os.utime(f"{l}/s", (5, 5))),
    ("truncate", lambda l: os.truncate(f"{l}/s", 0)),
    ("append", lambda l: open(f"{l}/s", "ab").write(b"more")),
    ("read", lambda l: get(f"{l}/s")),
    ("list", lambda l: sorted(os.listdir(l))),
    ("mode", lambda l: (os.stat(f"{l}/s").st_mode, os.stat(f"{l}/s").st_size)),
]


def add(calls, kind, link):
    def row():
        each(link, calls)
    row.__name__ = f"{kind}_by_{link}".replace("-", "_")
    replay(row, barrier=True)


for kind, calls in ("removals", REMOVALS), ("names", NAMES), ("contents", CONTENTS):
    for link in "pending-link", "published-link", "pending-far-link", "published-far-link":
        add(calls, kind, link)

main()
