"""Copies in the tier that somebody else has made stale behind Monarch.
`stale.py read|directory` in the directory where it goes. It says `step N`, and waits for a line, where
somebody else acts.
"""
import errno, os, sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from see import C, RW, T, data, digest, get, put, say

NAMES = ("same_size", "longer", "shorter", "replaced", "removed")


def others_act(n):
    say("step", n)
    sys.stdin.readline()


def read():
    """Clean copies, then a new version of each on the PFS."""
    for name in NAMES:
        put(name, data(name, 5000))
    others_act(1)
    for name in NAMES:
        say(name, len(get(name)), digest(get(name)))
    others_act(2)
    for name in NAMES:
        try:
            content = get(name)
        except OSError as e:
            say(name, errno.errorcode[e.errno])
        else:
            say(name, len(content), digest(content))


def directory():
    """A directory is committed by a rename; somebody else removes it; it is committed again."""
    for n, tag in enumerate(("first", "second"), 1):
        os.mkdir("tmp")
        fd = os.open("tmp/model", RW | C | T)
        os.rename("tmp", "final")
        os.write(fd, data(tag, 30_000))
        os.close(fd)
        say(tag, digest(get("final/model")), sorted(os.listdir()), sorted(os.listdir("final")))
        others_act(n)


{"read": read, "directory": directory}[sys.argv[1]]()
say("## end")
