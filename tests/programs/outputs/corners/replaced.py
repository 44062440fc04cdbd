"""A name that one process replaces again and again by a rename, as of a checkpoint and of a link to
the latest one, is there whenever another process looks, while all that is being published; and so
is a new link: how often it was not, for each call. `replaced.py ROUNDS`.
"""
import ctypes, os, stat, sys, time

ROUNDS = int(sys.argv[1])
LIBC = ctypes.CDLL(None, use_errno=True)
STATX_ALL, BUFFER = 0xFFF, ctypes.create_string_buffer(256)


def put(name, content):
    with open(name, "wb") as f:
        f.write(content)


def statx(name, flags):
    if LIBC.statx(-100, name.encode(), flags, STATX_ALL, BUFFER):
        raise OSError(ctypes.get_errno(), name)
    mode = int.from_bytes(BUFFER.raw[28:30], sys.byteorder)
    return stat.S_IFMT(mode)


def attribute(name):
    try:
        os.getxattr(name, "user.monarch")
    except OSError as e:
        if e.errno not in (61, 95):
            raise


def content(name):
    with open(name) as f:
        return f.read()[:4]


def is_there(name):
    if not os.access(name, os.R_OK):
        raise FileNotFoundError(name)


FILE, LINK = stat.S_IFREG, stat.S_IFLNK
# What is asked of the file and of the link, and what the answer has to be; `None`: any.
LOOKS = {
    "stat": (lambda n: stat.S_IFMT(os.stat(n).st_mode), FILE, FILE),
    "lstat": (lambda n: stat.S_IFMT(os.lstat(n).st_mode), FILE, LINK),
    "statx": (lambda n: statx(n, 0), FILE, FILE),
    "statx of a link": (lambda n: statx(n, 0x100), FILE, LINK),
    "access": (is_there, None, None),
    "access by a shell": (lambda n: os.access(n, os.W_OK, effective_ids=True) or is_there(""), True, True),
    "open": (content, "own-", "own-"),
    "open to write": (lambda n: os.close(os.open(n, os.O_RDWR)), None, None),
    "list attributes": (lambda n: (os.listxattr(n), None)[1], None, None),
    "an attribute": (attribute, None, None),
    "mode": (lambda n: os.chmod(n, 0o644), None, None),
    "times": (lambda n: os.utime(n, (1, 1)), None, None),
    "directory": (lambda n: n in os.listdir("."), True, True),
    "link": (lambda n: os.readlink(n)[:3] if n[0] in "ln" else "run", "run", "run"),
}


def replace():
    for n in range(ROUNDS):
        put("own", b"own-" * 30)
        os.rename("own", "file")
        # (A link to what is pending is pending itself.)
        put(f"run{n}", b"own-run")
        os.symlink(f"run{n}", "link")
        os.rename("link", "latest")
        # (Long enough that both are published, or not.)
        time.sleep(n % 5 / 1000)


put("run", b"own-run")
put("file", b"own-")
os.symlink("run", "latest")
child = os.fork()
if not child:
    replace()
    os._exit(0)
wrong = dict.fromkeys(LOOKS, 0)
while os.waitpid(child, os.WNOHANG) == (0, 0):
    for look, (call, *answers) in LOOKS.items():
        for name, answer in zip(("file", "latest"), answers):
            try:
                wrong[look] += call(name) != answer
            except OSError as e:
                if not wrong[look]:
                    print(f"{look} {name}: {e}", file=sys.stderr)
                wrong[look] += 1
for look, times in wrong.items():
    print(f"{look}: {times}")

# A file and a link to it, from the moment when they are made until both are published.
NEW = {name: LOOKS[name] for name in ("stat", "lstat", "statx of a link", "access", "open", "link", "mode")}
wrong = dict.fromkeys(NEW, 0)
for n in range(ROUNDS):
    put(f"run-{n}", b"own-run")
    os.symlink(f"run-{n}", f"new-{n}")
    end = time.perf_counter() + 0.004
    while time.perf_counter() < end:
        for look, (call, *answers) in NEW.items():
            for name, answer in zip((f"run-{n}", f"new-{n}"), answers):
                try:
                    wrong[look] += call(name) != answer
                except OSError as e:
                    print(f"{look} {name}: {e}", file=sys.stderr)
                    wrong[look] += 1
for look, times in wrong.items():
    print(f"new, {look}: {times}")
# (Which times the files have is a matter of chance.)
for name in os.listdir("."):
    os.unlink(name)
print("## end")
