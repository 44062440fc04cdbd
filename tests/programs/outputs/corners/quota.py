"""Creates beyond what may be pending, while the PFS refuses new files for a quota.
`quota.py SECONDS` in the directory where it goes: tries for so long to create a file. Says
`full` and waits for a line before it does, then `refused` and waits before it ends.
"""
import os, sys, time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from see import data, put, say

# With more bytes than may be pending.
FILES, SIZE = 1, 4_000_000
SECONDS = float(sys.argv[1])

for n in range(FILES):
    put(f"f{n}", data(n, SIZE))
# (The agent looks at sizes from time to time.)
time.sleep(1.5)
say("full")
sys.stdin.readline()
start, told = time.monotonic(), None
while told is None and time.monotonic() - start < SECONDS:
    try:
        put("late", b"late")
        os.unlink("late")
    except OSError as e:
        told = e.errno
say("refused", told, "soon" if time.monotonic() - start < 20 else "LATE")
sys.stdin.readline()
say("## end")
