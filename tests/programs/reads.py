#!/usr/bin/env python3
"""Reads files again and again and checks their bytes against the rule of mkdata.py; for tests in
which things fail meanwhile.

    reads.py [--rounds N | --seconds S] [--procs P] [--only TEXT] [--versions] [--errors] [--until FILE] ROOT
    round K                        after each round (of the first process)
    reads R wrong W errors E slowest MS

--versions  also takes what the slow file system's mutations make of a file, whole: other, half, or other and longer
--errors    prints each error as `PATH ERRNO` instead of failing
--until     reads until this file exists
"""
import argparse, errno, os, random, sys, time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mkdata


def versions(data, all_of_them):
    yield data
    if all_of_them:
        other = bytes(b ^ 0x5A for b in data)
        yield from (other, data[: len(data) // 2], other + b"slowfs", other[: len(data) // 2])


def files(root, only):
    for base, dirs, names in os.walk(os.fsencode(root)):
        dirs.sort()
        for name in sorted(names):
            path = os.path.join(base, name)
            if name.endswith(b".bin") and only.encode() in path:
                yield path, os.path.relpath(path, os.fsencode(root))


def read_all(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def work(args, number):
    todo = [(p, mkdata.expected(rel)) for p, rel in files(args.root, args.only)]
    shuffle = random.Random(number)
    reads = wrong = errors = k = 0
    slowest = 0.0
    end = time.monotonic() + args.seconds

    def more():
        if args.until:
            return not os.path.exists(args.until)
        return time.monotonic() < end if args.seconds else k < args.rounds

    while more():
        shuffle.shuffle(todo)
        for path, want in todo:
            start = time.monotonic()
            try:
                got = read_all(path)
                if not any(got == v for v in versions(want, args.versions)):
                    wrong += 1
                    print("WRONG", os.fsdecode(path), len(got), flush=True)
            except OSError as e:
                errors += 1
                if args.errors:
                    print(os.path.basename(os.fsdecode(path)), errno.errorcode[e.errno], flush=True)
            reads += 1
            slowest = max(slowest, time.monotonic() - start)
        k += 1
        if number == 0:
            print("round", k, flush=True)
    # One write, so that lines of several processes stay whole.
    os.write(1, b"reads %d wrong %d errors %d slowest %d\n" % (reads, wrong, errors, slowest * 1000))
    return wrong > 0 or (errors > 0 and not args.errors)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("root")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--seconds", type=float, default=0)
    p.add_argument("--procs", type=int, default=1)
    p.add_argument("--only", default="")
    p.add_argument("--until", default="")
    p.add_argument("--versions", action="store_true")
    p.add_argument("--errors", action="store_true")
    args = p.parse_args()
    children = []
    for number in range(1, args.procs):
        pid = os.fork()
        if pid == 0:
            os._exit(work(args, number))
        children.append(pid)
    bad = work(args, 0)
    for pid in children:
        bad |= os.waitpid(pid, 0)[1] != 0
    sys.exit(bad)


if __name__ == "__main__":
    main()
