"""A job that changes names at random, and the states that a reader may see of it.

    sequence.py SEED COUNT LEDGER     in the output root: does COUNT operations, and appends a line to
                                      LEDGER, which lies elsewhere, after each

The same seed gives the same operations, so that a checker knows the state after each: `States`.
"""
import hashlib, os, random, sys, time


def content(seed, n, size):
    return hashlib.shake_128(f"{seed}/{n}".encode()).digest(size)


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def operations(seed, count):
    """Yields (kind, arguments) that are valid one after the other."""
    rng = random.Random(seed)
    # Names that are there: a file, or a link.
    files, links, dirs, fresh = {}, {}, [""], 0
    for n in range(count):
        kind = rng.choices(["create", "replace", "commit", "rename", "unlink", "link", "mkdir", "again"], [30, 12, 20, 8, 14, 6, 4, 6])[0]
        size = rng.choice([0, 10, 3000, 20_000, 60_000])
        if kind in ("replace", "rename", "unlink", "again") and not files:
            kind = "create"
        if kind == "mkdir":
            dirs.append(f"d{n}/")
            yield "mkdir", (f"d{n}",)
        elif kind == "create":
            name = f"{rng.choice(dirs)}f{n}"
            files[name] = n
            yield "write", (name, n, size)
        elif kind == "replace":
            name = rng.choice(sorted(files))
            yield "write", (name, n, size)
        elif kind == "again":
            # Removed and made again at once, with nothing between.
            name = rng.choice(sorted(files))
            yield "unlink", (name,)
            yield "write", (name, n, size)
        elif kind == "commit":
            # A temporary name, other work, then the rename over a name.
            tmp, name = f"{rng.choice(dirs)}t{n}.tmp", rng.choice(sorted(files)) if files and rng.random() < 0.5 else f"{rng.choice(dirs)}c{n}"
            yield "write", (tmp, n, size)
            if rng.random() < 0.5:
                between = f"{rng.choice(dirs)}b{n}"
                files[between] = n
                yield "write", (between, n + 1_000_000, size // 2)
            files[name] = n
            yield "rename", (tmp, name)
        elif kind == "rename":
            old, new = rng.choice(sorted(files)), f"{rng.choice(dirs)}r{n}" if rng.random() < 0.5 else rng.choice(sorted(files))
            if old != new:
                files.pop(old)
                files[new] = n
                yield "rename", (old, new)
        elif kind == "unlink":
            name = rng.choice(sorted(files))
            files.pop(name)
            yield "unlink", (name,)
        elif kind == "link":
            target = rng.choice(sorted(files)) if files else "nothing"
            yield "symlink", (target, f"l{n}.tmp")
            yield "rename", (f"l{n}.tmp", "latest")


def perform(seed, kind, words):
    if kind == "write":
        name, n, size = words
        with open(name, "wb") as f:
            f.write(content(seed, n, size))
    elif kind == "mkdir":
        os.mkdir(*words)
    elif kind == "rename":
        os.rename(*words)
    elif kind == "unlink":
        os.unlink(*words)
    else:
        os.symlink(*words)


class States:
    """What lies there after each operation: name to value; and which values pass."""

    def __init__(self, seed, count):
        self.seed, self.ops, self.after = seed, list(operations(seed, count)), [{}]
        # For each name: (first state, value); a value passes when its temporary name is left.
        self.history, passing, since = {}, set(), {}
        for k, (kind, words) in enumerate(self.ops, 1):
            state = dict(self.after[-1])
            if kind == "write":
                state[words[0]] = (digest(content(seed, words[1], words[2])), words[1])
            elif kind == "symlink":
                state[words[1]] = ("->" + words[0], k)
            elif kind == "rename":
                state[words[1]] = state.pop(words[0])
                if words[0].endswith(".tmp"):
                    passing.add((words[0], since[words[0]]))
            elif kind == "unlink":
                state.pop(words[0])
            for name in words[-1:] if kind in ("rename", "symlink") else words[:1]:
                since[name] = k
            # (What a link names does not change.)
            for name in {w for w in words[kind == "symlink":] if isinstance(w, str)}:
                self.history.setdefault(name, []).append((k, state.get(name)))
            self.after.append(state)
        # Renames of what is pending fold: the first name is left with the last one.
        for k, (kind, words) in enumerate(self.ops, 1):
            if kind == "rename" and (words[1], k) in passing:
                passing.add((words[0], k))
        self.passing = passing

    def earlier(self, name, k):
        """Values that a name had before state k."""
        return [None] + [self.plain(value) for at, value in self.history.get(name, []) if at < k]

    @staticmethod
    def plain(value):
        return value and value[0]

    def left_by(self, k):
        """Names that a file has left by the renames that led to state k, with nothing between."""
        names, last = [], None
        while k and self.ops[k - 1][0] == "rename" and last in (None, self.ops[k - 1][1][1]):
            last = self.ops[k - 1][1][0]
            names.append(last)
            k -= 1
        return names

    def differs(self, k, seen):
        """Names at which what was seen is not state k, or what a state k may look like while values
        that pass are left out."""
        state, wrong = self.after[k], []
        for name in state.keys() | seen.keys():
            want, got = self.plain(state.get(name)), seen.get(name)
            # (A link to what is not pending is made at once: it may be a mutex.)
            if want == got or name.endswith(".tmp") and (got or want).startswith("->"):
                continue
            began = max((at for at, _ in self.history.get(name, []) if at <= k), default=0)
            if (name, began) in self.passing and got in self.earlier(name, began):
                continue
            # A rename of what was never published is the publication of one name, then the removal of the others.
            if name in self.left_by(k) and got in self.earlier(name, k):
                continue
            wrong.append(name)
        return wrong

    def find(self, seen, least=0):
        """The first state from `least` on that this may be; else None, and the nearest one."""
        best = (None, 0, None)
        for k in range(least, len(self.after)):
            wrong = self.differs(k, seen)
            if not wrong:
                return k, None
            if best[0] is None or len(wrong) < best[0]:
                best = (len(wrong), k, wrong)
        return None, best


def look(top, cache):
    """Files and links below a directory, but Monarch's own; hidden part files are not names yet."""
    seen = {}
    for at, dirs, files in os.walk(top):
        for name in files + [d for d in dirs if os.path.islink(os.path.join(at, d))]:
            path = os.path.join(at, name)
            if name.startswith(".monarch-"):
                continue
            try:
                if os.path.islink(path):
                    seen[os.path.relpath(path, top)] = "->" + os.readlink(path)
                    continue
                st = os.stat(path)
                key = (st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
                if key not in cache:
                    with open(path, "rb") as f:
                        cache[key] = digest(f.read())
                seen[os.path.relpath(path, top)] = cache[key]
            except FileNotFoundError:
                return None
    return seen


def main():
    seed, count, ledger = int(sys.argv[1]), int(sys.argv[2]), os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pauses = random.Random(seed + 1)
    print("begins", flush=True)
    for kind, words in operations(seed, count):
        perform(seed, kind, words)
        os.write(ledger, b"\n")
        if pauses.random() < 0.3:
            time.sleep(pauses.random() * 0.006)
    print("## end", flush=True)


if __name__ == "__main__":
    main()
