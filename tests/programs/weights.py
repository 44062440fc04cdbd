#!/usr/bin/env python3
"""Files of weights, read by pages and past the page cache.

    weights.py make DIR BYTES [NAME...]       files of random bytes (default `model.safetensors`)
    weights.py read ROOT TRUTH [WAY...]       reads every file below ROOT in these ways, compares with TRUTH

Ways: `all` (a mapping, in order), `part` (5 of 40 parts of it), `back` (parts in reverse order),
`advised` (after madvise), `populated` (MAP_POPULATE), `private` (a mapping that may be written),
`stream` (the C library's fread), `direct` (O_DIRECT), `load` and `load_file` (the package). Prints a
line for each, and FAIL with status 1 for wrong bytes.
"""
import ctypes, mmap, os, random, sys

PARTS = 40
libc = ctypes.CDLL(None, use_errno=True)


def mapped(path, **how):
    fd = os.open(path, os.O_RDONLY)
    m = mmap.mmap(fd, 0, **(how or dict(prot=mmap.PROT_READ)))
    os.close(fd)
    return m


def pieces(size, numbers):
    each = size // PARTS
    return [(i * each, size if i == PARTS - 1 else (i + 1) * each) for i in numbers]


def by_pieces(numbers, advise=None, **how):
    def read(path, truth):
        m = mapped(path, **how)
        if advise is not None:
            m.madvise(advise)
        return all(m[a:b] == truth[a:b] for a, b in pieces(len(truth), numbers)) and len(m) == len(truth)
    return read


def stream(path, truth):
    libc.fopen.restype = ctypes.c_void_p
    f = ctypes.c_void_p(libc.fopen(path.encode(), b"rb"))
    room, got = ctypes.create_string_buffer(1 << 18), bytearray()
    while n := libc.fread(room, 1, len(room), f):
        got += room.raw[:n]
    libc.fclose(f)
    return got == truth


def direct(path, truth):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    room, got = mmap.mmap(-1, 1 << 20), bytearray()
    while n := os.preadv(fd, [room], len(got)):
        got += room[:n]
        if n % 4096:
            break
    os.close(fd)
    return got == truth


def load(path, truth):
    import monarch
    return monarch.load(path) == truth


def load_file(path, truth):
    import monarch
    with monarch.load_file(path) as f:
        f.seek(-100, os.SEEK_END)
        tail = f.read()
        f.seek(0)
        return f.read() == truth and tail == truth[-100:]


WAYS = {
    "all": by_pieces(range(PARTS)),
    "part": by_pieces(range(3, PARTS, 8)),
    "back": by_pieces(range(PARTS - 1, -1, -1)),
    "advised": by_pieces(range(PARTS), advise=mmap.MADV_WILLNEED),
    "populated": by_pieces(range(PARTS), flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ),
    "private": by_pieces(range(PARTS), access=mmap.ACCESS_COPY),
    "stream": stream,
    "direct": direct,
    "load": load,
    "load_file": load_file,
}


def main():
    what, *words = sys.argv[1:]
    if what == "make":
        directory, size, *names = words
        os.makedirs(directory, exist_ok=True)
        os.makedirs(directory, exist_ok=True)
        for name in names or ["model.safetensors"]:
            with open(f"{directory}/{name}", "wb") as f:
                rng = random.Random(name)
                for at in range(0, int(size), 1 << 20):
                    f.write(rng.randbytes(min(1 << 20, int(size) - at)))
            os.utime(f"{directory}/{name}", (1_600_000_000, 1_600_000_000))
        return
    root, truth, *ways = words
    # (Not listed: the job may start before there is an index.)
    for way in ways or WAYS:
        for name in sorted(os.listdir(truth)):
            with open(f"{truth}/{name}", "rb") as f:
                right = WAYS[way](f"{root}/{name}", f.read())
            # One write: several processes have one pipe.
            sys.stdout.write(f"{'right' if right else 'FAIL'} {way} {name}\n")
            sys.stdout.flush()
            if not right:
                sys.exit(1)


main()
