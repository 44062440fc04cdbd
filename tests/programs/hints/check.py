"""Tests of python/monarch_hints: prints OK, or fails.

    /usr/bin/python3 tests/programs/hints/check.py            # all that this interpreter has the frameworks for
    /usr/bin/python3 tests/programs/hints/check.py hints torch     # only these: hints, torch, tf; fails when one is not there

The library is a fake one, built with the C compiler and preloaded, which records its calls. With
HINTS_REAL=1 none is built: the caller has preloaded the real one, and what is compared is the data
alone.
"""

import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
PARTS = ("hints", "torch", "tf")
MODULES = {"hints": "sys", "torch": "torch", "tf": "tensorflow"}


def has(part):
    return subprocess.run([sys.executable, "-c", "import " + MODULES[part]], stderr=subprocess.DEVNULL).returncode == 0


def main():
    asked = sys.argv[1:]
    parts = asked or [p for p in PARTS if has(p)]
    with tempfile.TemporaryDirectory() as scratch:
        env = dict(os.environ, PYTHONPATH=os.path.join(TOP, "python"), TF_CPP_MIN_LOG_LEVEL="3", PYTHONDONTWRITEBYTECODE="1")
        if not os.environ.get("HINTS_REAL"):
            fake = os.path.join(scratch, "libfake.so")
            flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
            subprocess.run([os.environ.get("CC", "cc"), *flags, os.path.join(HERE, "fake.c"), "-o", fake], check=True)
            # Without the library: nothing is done, one warning is given.
            subprocess.run([sys.executable, os.path.join(HERE, "hints_none.py")], env=env, check=True)
            env.update(LD_PRELOAD=fake, FAKE_MONARCH=os.path.join(scratch, "log"))
        for part in parts:
            subprocess.run([sys.executable, os.path.join(HERE, "hints_%s.py" % part)], env=env, check=True)
    print("OK", *parts)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as e:
        sys.exit("failed: %s" % " ".join(map(str, e.cmd)))
