#!/usr/bin/env python3
"""Makes a data set whose content can be recomputed from each file's name (the rule is in common.h).

    data/dNN/[n/[m/]]sNNNNNN.zSIZE.bin   --files of them over --dirs directories, three depths
    special/...                          empty, 1 byte, hard links, symlinks, odd names, sparse, 0400, empty directory
    repo/                                a git repository (--git)
    change/...                           fodder for changer (made by `changer prepare`, not here)

Same arguments give the same names, bytes, modes and mtimes (ctime and inodes are the file
system's). Sizes depend on the path alone, so that two trees of different --seed have the same names
and different bytes.
"""
import argparse, os, struct, subprocess, sys

MASK = (1 << 64) - 1
BLOCK_WORDS = 8192
SPARSE_AT, SPARSE_LEN, SPARSE_SIZE = 524288, 4096, 1 << 20
HARD = b"special/hard1.z5000.bin"


def fnv1a(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


_BASE = int.from_bytes(b"".join(struct.pack("<Q", mix(j + 1)) for j in range(BLOCK_WORDS)), "little")
_ONES = int.from_bytes(struct.pack("<Q", 1) * BLOCK_WORDS, "little")


def content(rel, size, seed=1):
    """The bytes of the file with relative path `rel` (bytes)."""
    if b"/hard" in rel:
        rel = HARD
    key = mix((fnv1a(rel) + seed) & MASK)
    if b"sparse" in rel:
        full = _stream(key, min(size, SPARSE_AT + SPARSE_LEN))
        out = bytearray(size)
        out[SPARSE_AT:SPARSE_AT + SPARSE_LEN] = full[SPARSE_AT:]
        return bytes(out[:size])
    return _stream(key, size)


def _stream(key, size):
    parts = []
    for block in range((size + BLOCK_WORDS * 8 - 1) // (BLOCK_WORDS * 8)):
        parts.append((_BASE ^ (_ONES * mix((key + block) & MASK))).to_bytes(BLOCK_WORDS * 8, "little"))
    return b"".join(parts)[:size]


def size_in_name(rel):
    i = rel.rfind(b".z")
    return int(rel[i + 2:].split(b".")[0]) if i >= 0 else -1


def expected(rel, seed=1):
    """Bytes of a file whose name contains its size."""
    return content(rel, size_in_name(rel), seed)


class Maker:
    def __init__(self, root, seed):
        self.root, self.seed = os.fsencode(os.path.abspath(root)), seed

    def path(self, rel):
        return os.path.join(self.root, rel)

    def stamp(self, rel, links=False):
        h = mix(fnv1a(rel))
        t = (1_600_000_000 + h % 50_000_000) * 10**9 + (h >> 20) % 10**9
        os.utime(self.path(rel), ns=(t, t), follow_symlinks=not links)

    def file(self, rel, mode=0o644):
        os.makedirs(os.path.dirname(self.path(rel)), exist_ok=True)
        size = size_in_name(rel)
        with open(self.path(rel), "wb") as f:
            if b"sparse" in rel:
                f.truncate(size)
                f.seek(SPARSE_AT)
                f.write(content(rel, size, self.seed)[SPARSE_AT:SPARSE_AT + SPARSE_LEN])
            else:
                f.write(content(rel, size, self.seed))
            os.fchmod(f.fileno(), mode)
        self.stamp(rel)

    def symlink(self, rel, target):
        os.symlink(target, self.path(rel))
        self.stamp(rel, links=True)

    def data(self, files, size, exact, dirs):
        first = None
        for i in range(files):
            d = i % dirs
            depth = [b"", b"n/", b"n/m/"][(i // dirs) % 3]
            stem = b"data/d%02d/%ss%06d" % (d, depth, i)
            n = size if exact else size // 2 + mix(fnv1a(stem)) % max(size, 1)
            rel = b"%s.z%d.bin" % (stem, n)
            first = first or rel
            self.file(rel)
        return first

    def special(self, first, fifo):
        self.file(b"special/empty.z0.bin")
        self.file(b"special/one.z1.bin")
        self.file(b"special/page.z4096.bin")
        self.file(b"special/block.z65537.bin")
        self.file(HARD)
        os.makedirs(self.path(b"special/sub"))
        os.link(self.path(HARD), self.path(b"special/hard2.z5000.bin"))
        os.link(self.path(HARD), self.path(b"special/sub/hard3.z5000.bin"))
        self.file(b"special/nonutf8-\xff\xfe\x80.z300.bin")
        self.file(b"special/space and\nnewline.z301.bin")
        self.file(b"special/.hidden.z302.bin")
        tail = b".z400.bin"
        self.file(b"special/" + b"L" * (255 - len(tail)) + tail)
        self.file(b"special/sparse.z%d.bin" % SPARSE_SIZE)
        self.file(b"special/readonly.z600.bin", 0o400)
        self.file(b"special/group.z601.bin", 0o640)
        self.file(b"special/exec.z602.bin", 0o755)
        self.file(b"special/nobody.z603.bin", 0o000)
        self.file(b"special/closed/inner.z604.bin")
        os.makedirs(self.path(b"special/emptydir"))
        self.symlink(b"special/link-file", b"one.z1.bin")
        self.symlink(b"special/link-chain", b"link-file")
        self.symlink(b"special/link-up", b"../" + first)
        self.symlink(b"special/link-dir", b"../data")
        self.symlink(b"special/link-self", b".")
        self.symlink(b"special/link-abs", self.path(b"special/page.z4096.bin"))
        self.symlink(b"special/link-absdir", self.path(b"special/sub"))
        self.symlink(b"special/link-out", b"/etc/passwd")
        self.symlink(b"special/link-dangling", b"nowhere")
        self.symlink(b"special/link-slash", b"one.z1.bin/")
        self.symlink(b"special/loop-a", b"loop-b")
        self.symlink(b"special/loop-b", b"loop-a")
        if fifo:
            os.mkfifo(self.path(b"special/fifo"))

    def repo(self):
        where = self.path(b"repo")
        os.makedirs(where)
        env = dict(os.environ, GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL="/dev/null", HOME="/nonexistent",
                   **{f"GIT_{who}_{k}": v for who in ("AUTHOR", "COMMITTER")
                      for k, v in (("NAME", "t"), ("EMAIL", "t@example.org"), ("DATE", "1600000000 +0000"))})

        def git(*args):
            subprocess.run(["git", "-c", "init.defaultBranch=main", "-c", "gc.auto=0", *args], cwd=where, env=env,
                           check=True, stdout=subprocess.DEVNULL)

        git("init", "-q")
        for commit in range(3):
            for i in range(8):
                rel = b"repo/src/m%d/f%d.z%d.txt" % (i % 2, i, 200 + i)
                os.makedirs(os.path.dirname(self.path(rel)), exist_ok=True)
                with open(self.path(rel), "w") as f:
                    f.write(f"file {i} commit {commit}\n" * (10 + commit))
            git("add", "-A")
            git("commit", "-q", "-m", f"commit {commit}")
        with open(self.path(b"repo/src/untracked.txt"), "w") as f:
            f.write("untracked\n")
        with open(self.path(b"repo/src/m0/f0.z200.txt"), "a") as f:
            f.write("modified\n")

    def finish(self):
        """Directory mtimes last, bottom up; the repository's index keeps its own times."""
        for top, dirs, _ in os.walk(self.root, topdown=False):
            if b"/.git" not in top and not os.path.islink(top):
                os.chmod(top, 0o755)
                self.stamp(os.path.relpath(top, self.root))
        if os.path.isdir(self.path(b"special/closed")):
            os.chmod(self.path(b"special/closed"), 0o700)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("root")
    p.add_argument("--files", type=int, default=60, metavar="N")
    p.add_argument("--size", type=int, default=20000, metavar="S", help="sizes are spread over S/2..3S/2")
    p.add_argument("--exact", action="store_true", help="every file exactly S bytes")
    p.add_argument("--seed", type=int, default=1, metavar="K")
    p.add_argument("--dirs", type=int, default=6, metavar="D")
    p.add_argument("--plain", action="store_true", help="only data/: none of the special files")
    p.add_argument("--git", action="store_true", help="a git repository in repo/")
    p.add_argument("--fifo", action="store_true", help="a FIFO in special/")
    a = p.parse_args()
    if os.path.isdir(a.root) and os.listdir(a.root):
        sys.exit(f"{a.root}: not empty")
    os.umask(0o022)
    os.makedirs(a.root, exist_ok=True)
    m = Maker(a.root, a.seed)
    first = m.data(a.files, a.size, a.exact, a.dirs)
    if not a.plain:
        m.special(first, a.fifo)
    if a.git:
        m.repo()
    m.finish()


if __name__ == "__main__":
    main()
