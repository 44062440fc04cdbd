"""Fills a file system with names or bytes, then creates a marker, or opens a pending file again.
`full_tier.py names|bytes DIR` in the directory where files go: fills the file system of DIR; says
`full` when it is, and `refused` with the error of an open.
"""
import os, sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from see import C, RW, W, data, put, say

# More records than what is left of the journal's last page can take.
OPENS = 300
how, where = sys.argv[1:]
filler = os.path.join(where, "filler")
os.mkdir(filler)
put("data", data("data", 2_000_000))
try:
    fd = os.open(os.path.join(filler, "bytes"), W | C)
    while how == "bytes":
        os.write(fd, bytes(65536))
    n = 0
    while True:
        os.close(os.open(os.path.join(filler, str(n)), W | C))
        n += 1
except OSError:
    pass
try:
    while how == "bytes":
        os.write(fd, bytes(100))
except OSError:
    pass
os.close(fd)
say("full")
try:
    if how == "names":
        put("marker", b"data")
    else:
        for _ in range(OPENS):
            os.close(os.open("data", RW))
except OSError as e:
    say("refused", e.errno)
say("done")
for name in os.listdir(filler):
    os.unlink(os.path.join(filler, name))
os.rmdir(filler)
say("## end")
