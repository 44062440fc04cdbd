"""Creates a marker with one descriptor left, so that it cannot be staged, after its data.
`unstaged.py` in the directory where it goes: says `marker` before it creates it.
"""
import errno, os, resource, sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from see import C, T, W, data, put, say

put("data", data("data", 2_000_000))
soft = max(int(fd) for fd in os.listdir("/proc/self/fd")) + 8
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError as e:
    say(errno.errorcode[e.errno])
try:
    os.open("marker", W | C | T)
except OSError as e:
    say("none left:", errno.errorcode[e.errno])
os.close(taken.pop())
say("marker")
fd = os.open("marker", W | C | T)
os.write(fd, b"data")
os.close(fd)
for other in taken:
    os.close(other)
say("## end")
