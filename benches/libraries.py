#!/usr/bin/env python3
"""What the audit library costs: the start of a process, and a call between libraries.

Runs programs under `monarch run` with and without LD_AUDIT, in turns; medians.

    cargo build --release --workspace
    benches/libraries.py [--turns 200]
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HOUSE = pathlib.Path(__file__).resolve().parent.parent
BUILT = HOUSE / "target/release"
PROGRAMS = HOUSE / "target/programs"


def seconds(command, env):
    begin = time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def starts(command, turns):
    """Milliseconds of a start with and without the audit library."""
    env = dict(os.environ)
    without = {k: v for k, v in env.items() if k != "LD_AUDIT"}
    took = {True: [], False: []}
    for turn in range(turns):
        for audited in (True, False) if turn % 2 else (False, True):
            took[audited].append(seconds(command, env if audited else without))
    return [1000 * statistics.median(took[audited]) for audited in (True, False)]


def calls(root, turns):
    """Nanoseconds of a call through a PLT with and without the audit library."""
    env = dict(os.environ)
    without = {k: v for k, v in env.items() if k != "LD_AUDIT"}
    command = [str(PROGRAMS / "libraries"), "calls", f"{root}/app/ext/libplug.so", "20000000"]
    took = {True: [], False: []}
    for _ in range(turns):
        for audited in (True, False):
            said = subprocess.run(command, env=env if audited else without, check=True, capture_output=True, text=True)
            took[audited].append(float(said.stdout))
    return [statistics.median(took[audited]) for audited in (True, False)]


def measure(root, turns):
    """In the job."""
    if "libmonarch_audit" not in os.environ.get("LD_AUDIT", ""):
        sys.exit("the job has no LD_AUDIT: is the C library older than glibc 2.35?")
    for name, command in (("/bin/true", ["/bin/true"]), ("python3 -S -c pass", [sys.executable, "-S", "-c", "pass"])):
        audited, plain = starts(command, turns)
        print(f"start of {name}: {audited:.2f} ms, without {plain:.2f} ms, added {audited - plain:.2f} ms")
    audited, plain = calls(root, 5)
    print(f"call through a PLT: {audited:.2f} ns, without {plain:.2f} ns, {audited / plain:.3f} x")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return measure(args.inside, args.turns)
    subprocess.run(["make", "-s", "-C", HOUSE / "tests/programs", f"OUT={PROGRAMS}"], check=True)
    work = tempfile.mkdtemp(prefix="monarch-libraries-")
    try:
        subprocess.run(["sh", HOUSE / "tests/programs/libraries.sh", f"{work}/pfs"], check=True)
        words = ["--root", f"{work}/pfs", "--tier", f"{work}/tier:64MiB", "--set", "run.libraries=on"]
        words += ["--set", f"runtime_dir={work}/run", "--set", "dataset.min_file_age=0s"]
        os.mkdir(f"{work}/run")
        job = [sys.executable, __file__, "--turns", str(args.turns), "--inside", f"{work}/pfs"]
        subprocess.run([BUILT / "monarch", "run", "--quiet", *words, "--", *job], check=True)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
