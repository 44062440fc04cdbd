"""Changes by a symbolic link that leads out of the output root, published or not: the job's program
says what each call did, and what is there then."""
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from see import get, main, put, replay, say

AWAY = os.path.join(os.environ["TMPDIR"], "away")


def there():
    names = lambda top: sorted(os.path.relpath(os.path.join(at, n), top) for at, dirs, files in os.walk(top) for n in dirs + files)
    return names(AWAY)


def each(link, calls):
    shutil.rmtree(AWAY, ignore_errors=True)
    os.makedirs(f"{AWAY}/sub")
    for name in "fghs":
        put(f"{AWAY}/{name}", name.encode())
    os.symlink(AWAY, link)
    if "published" in link:
        put("first", b"first")
        os.link("first", "second")
    put("pending", b"holds all up")
    for name, call in calls:
        try:
            done = call(link)
        except OSError as e:
            done = e.errno
        say(name, done, there())
    put("last", b"the last one")
    say(sorted(os.listdir(".")))


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


@replay(barrier=True)
def removals_by_a_link_that_is_pending():
    each("pending-link", REMOVALS)


@replay(barrier=True)
def removals_by_a_link_that_is_published():
    each("published-link", REMOVALS)


@replay(barrier=True)
def names_by_a_link_that_is_pending():
    each("pending-link", NAMES)


@replay(barrier=True)
def names_by_a_link_that_is_published():
    each("published-link", NAMES)


@replay(barrier=True)
def contents_by_a_link_that_is_pending():
    each("pending-link", CONTENTS)


@replay(barrier=True)
def contents_by_a_link_that_is_published():
    each("published-link", CONTENTS)


main()
