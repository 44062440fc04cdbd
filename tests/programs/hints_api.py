#!/usr/bin/env python3
"""What monarch.h offers, tried one by one below ROOT. Prints OK, or what is wrong."""
import ctypes
import errno
import os
import resource
import signal
import sys
import time

root = sys.argv[1]
lib = ctypes.CDLL(None, use_errno=True)
files = sorted(os.path.join(d, f) for d, _, names in os.walk(root) for f in names)


def residency(path):
    ctypes.set_errno(0)
    return lib.monarch_residency(os.fsencode(path))


def until(what, done):
    for _ in range(500):
        if done():
            return
        time.sleep(0.02)
    sys.exit(f"not so after 10 s: {what}: {[residency(f) for f in files[:10]]}")


def array(paths):
    return (ctypes.c_char_p * len(paths))(*[os.fsencode(p) for p in paths])


def check(what, got, expected):
    if got != expected:
        sys.exit(f"{what}: {got}, expected {expected}")


lib.monarch_announce.restype = lib.monarch_prefetch.restype = lib.monarch_announce_list.restype = ctypes.c_long
lib.monarch_prefetch_list.restype = ctypes.c_long
check("active", lib.monarch_active(), 1)
check("all absent", {residency(f) for f in files}, {0})
# Files one by one, and a directory with all below it.
check("prefetch", lib.monarch_prefetch(array(files[:3]), ctypes.c_size_t(3)), 3)
until("three are there", lambda: [residency(f) for f in files[:3]] == [3, 3, 3])
check("others are not", {residency(f) for f in files[3:]}, {0})
check("barred", lib.monarch_priority(os.fsencode(files[3]), -1), 0)
check("a directory", lib.monarch_prefetch_list(os.fsencode(root), ctypes.c_size_t(len(root))), 1)
until("all but one are there", lambda: [residency(f) for f in files].count(3) == len(files) - 1)
check("what is barred is left to the PFS", residency(files[3]), 4)
with open(files[3], "rb") as f:
    check("and can be read", len(f.read()) > 0, True)
check("wanted again", lib.monarch_priority(os.fsencode(files[3]), 1), 0)
until("now it is there", lambda: residency(files[3]) == 3)
# What is not known.
check("announced", lib.monarch_announce(array(files + ["/nowhere", "", root]), ctypes.c_size_t(len(files) + 3)), len(files))
check("nothing announced", lib.monarch_announce(None, ctypes.c_size_t(0)), 0)
check("an empty list", lib.monarch_announce_list(None, ctypes.c_size_t(0)), 0)
check("unknown", (residency(root + "/nowhere"), ctypes.get_errno()), (-1, errno.ENOENT))
check("outside", (residency("/etc/passwd"), ctypes.get_errno()), (-1, errno.ENOENT))
check("a directory has none", (residency(root), ctypes.get_errno()), (-1, errno.EISDIR))
check("priority of nothing", (lib.monarch_priority(b"/nowhere", 1), ctypes.get_errno()), (-1, errno.ENOENT))
check("begin", lib.monarch_epoch_begin(ctypes.c_long(7)), 0)
check("end", lib.monarch_epoch_end(), 0)


def fails(what, call, why):
    ctypes.set_errno(0)
    got = (call(), errno.errorcode.get(ctypes.get_errno()))
    check(what, got, (-1, errno.errorcode[why]))


size, long, bad = ctypes.c_size_t, ctypes.c_long, ctypes.c_void_p(8)
# Pointers that are none.
fails("residency of null", lambda: lib.monarch_residency(None), errno.EINVAL)
fails("residency of a bad pointer", lambda: lib.monarch_residency(bad), errno.EFAULT)
fails("priority of null", lambda: lib.monarch_priority(None, 1), errno.EINVAL)
fails("priority of a bad pointer", lambda: lib.monarch_priority(bad, 1), errno.EFAULT)
for name in "announce", "announce_list", "prefetch", "prefetch_list":
    function = getattr(lib, "monarch_" + name)
    fails(name + " of null", lambda: function(None, size(1)), errno.EINVAL)
    fails(name + " of a bad pointer", lambda: function(bad, size(1)), errno.EFAULT)
    fails(name + " of too many", lambda: function(array(files), size(-1)), errno.EINVAL)
    check(name + " of nothing", function(None, size(0)), 0)
fails("announce of more than there can be", lambda: lib.monarch_announce(array(files), size(1 << 60)), errno.EINVAL)
holes = (ctypes.c_void_p * 3)(None, 8, ctypes.cast(ctypes.c_char_p(os.fsencode(files[0])), ctypes.c_void_p))
check("elements that are no paths", lib.monarch_announce(holes, size(3)), 1)
# Numbers of epochs.
check("the next epoch", lib.monarch_epoch_begin(long(-1)), 0)
check("the last epoch", lib.monarch_epoch_begin(long(0xffffffff)), 0)
fails("an epoch below", lambda: lib.monarch_epoch_begin(long(-2)), errno.EINVAL)
fails("an epoch above", lambda: lib.monarch_epoch_begin(long(1 << 32)), errno.EINVAL)
# Files may be so long only: no signal ends the process. (Python ignores that signal, others do
# not.)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
child = os.fork()
if child == 0:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
    fails("a long hint", lambda: lib.monarch_announce(array(files * 10), size(len(files) * 10)), errno.EFBIG)
    check("a short hint", lib.monarch_announce(array(files[:9]), size(9)), 9)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    fails("any hint", lib.monarch_epoch_end, errno.EFBIG)
    os._exit(0)
check("the limit", os.waitpid(child, 0)[1], 0)
print("OK")
