#!/usr/bin/env python3
"""Starts N short processes at once (default 1,000), each reading a few files below ROOT, and prints
one digest of all they wrote. Start-up of many processes at once is the point: none is waited for
before all are started.
"""
import argparse, hashlib, os, subprocess, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mkdata


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("root")
    p.add_argument("-n", type=int, default=1000, metavar="N")
    p.add_argument("--files", type=int, default=3, metavar="F", help="files read by each")
    p.add_argument("--data-seed", type=int, default=1)
    a = p.parse_args()
    root = os.fsencode(os.path.abspath(a.root))
    rels = sorted(os.path.relpath(os.path.join(d, f), root) for d, _, fs in os.walk(os.path.join(root, b"data")) for f in fs)
    want = {}
    jobs = []
    for i in range(a.n):
        mine = [rels[(i * a.files + k) % len(rels)] for k in range(a.files)]
        out = os.memfd_create(f"out{i}")
        jobs.append((mine, out, subprocess.Popen([b"cat", *(os.path.join(root, r) for r in mine)], stdout=out)))
    total, bad = hashlib.sha256(), 0
    for i, (mine, out, proc) in enumerate(jobs):
        rc = proc.wait()
        os.lseek(out, 0, os.SEEK_SET)
        with os.fdopen(out, "rb") as f:
            data = f.read()
        for r in mine:
            if r not in want:
                want[r] = mkdata.expected(r, a.data_seed)
        if rc or data != b"".join(want[r] for r in mine):
            bad += 1
            print(f"FAIL process {i}: exit {rc}, {len(data)} bytes")
        total.update(hashlib.sha256(data).digest())
    print(f"processes {a.n} digest {total.hexdigest()[:24]}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
