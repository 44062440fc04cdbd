"""Calls that the fake library recorded."""

import os

LOG = os.environ.get("FAKE_MONARCH")
REAL = not LOG


def recorded():
    """Calls since the last question, each a list of texts; None where the library is the real one."""
    if REAL:
        return None
    try:
        with open(LOG, "rb") as f:
            lines = [line.rstrip(b"\n").split(b"\t") for line in f]
        os.unlink(LOG)
    except FileNotFoundError:
        return []
    return [[os.fsdecode(word) for word in line] for line in lines]


def expect(*calls):
    found = recorded()
    assert found is None or found == [list(map(str, c)) for c in calls], "%r instead of %r" % (found, calls)


def announced():
    """Numbers and files of the epochs that were announced since the last question."""
    calls = recorded()
    if calls is None:
        return None
    assert [c[0] for c in calls] == ["begin", "announce"] * (len(calls) // 2), calls
    return [(int(b[1]), a[1:]) for b, a in zip(calls[::2], calls[1::2])]
