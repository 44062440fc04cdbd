"""Hints for Monarch: what a job will read, and when an epoch begins.

    import monarch_hints

    with monarch_hints.epoch(3):
        monarch_hints.announce(paths)      # in the order in which they will be opened
        ...

Hints never change what a program reads, and wrong hints cost only time. Without Monarch (the
process was not started by ``monarch run``) all functions do nothing, and give one warning per
process. No function raises.

``monarch_hints.torch`` and ``monarch_hints.tf`` do this for data loaders.
"""

import ctypes
import os
import threading
import warnings
from contextlib import contextmanager

__all__ = ["active", "announce", "prefetch", "epoch", "epoch_begin", "epoch_end", "priority", "residency",
           "ABSENT", "COMING", "PARTLY", "IN_TIER", "LEFT"]

# : Results of `residency`: no copy, being copied, a partial copy, in a tier, left to the parallel
# file : system.
ABSENT, COMING, PARTLY, IN_TIER, LEFT = range(5)

_lock = threading.Lock()
_library = None
_warned = set()


def _warn(why):
    """Gives one warning of a kind per process. Where warnings are errors none is raised: it would
    end the job."""
    with _lock:
        if why in _warned:
            return
        _warned.add(why)
    try:
        warnings.warn("monarch_hints: " + why, RuntimeWarning, stacklevel=4)
    except Warning:
        pass


class _Library:
    """The functions that the preloaded library exports (include/monarch.h)."""

    def __init__(self):
        self.there = False
        try:
            c = ctypes.CDLL(None, use_errno=True)
            text, size = ctypes.c_char_p, ctypes.c_size_t
            for name, result, arguments in (
                ("active", ctypes.c_int, ()),
                ("announce_list", ctypes.c_long, (text, size)),
                ("prefetch_list", ctypes.c_long, (text, size)),
                ("epoch_begin", ctypes.c_int, (ctypes.c_long,)),
                ("epoch_end", ctypes.c_int, ()),
                ("priority", ctypes.c_int, (text, ctypes.c_int)),
                ("residency", ctypes.c_int, (text,)),
            ):
                function = getattr(c, "monarch_" + name)
                function.restype, function.argtypes = result, list(arguments)
                setattr(self, name, function)
            self.there = True
        except (AttributeError, OSError, TypeError):
            pass

    def is_active(self):
        return self.there and self.active() == 1


def _get():
    """The library, if this process runs under Monarch; otherwise None, with a warning."""
    global _library
    if _library is None:
        _library = _Library()
    if _library.is_active():
        return _library
    _warn("this process does not run under Monarch, hints do nothing")
    return None


def _guarded(otherwise):
    """Wraps a function so that its exceptions become warnings and `otherwise`: hints never end a
    training."""
    def wrap(function):
        def guarded(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except Exception as e:
                _warn("%s: %s: %s" % (function.__name__, type(e).__name__, e))
                return otherwise
        guarded.__name__, guarded.__doc__ = function.__name__, function.__doc__
        return guarded
    return wrap


def _joined(paths):
    if isinstance(paths, (str, bytes, os.PathLike)):
        paths = (paths,)
    # A path with a NUL cannot be opened; in the list it would be two paths.
    return b"\0".join(p for p in map(os.fsencode, paths) if p and b"\0" not in p)


@_guarded(False)
def active():
    """Whether this process runs under Monarch. (Gives no warning.)"""
    global _library
    if _library is None:
        _library = _Library()
    return _library.is_active()


@_guarded(0)
def announce(paths):
    """Announces the order in which this process (its rank, with all its workers) will open files
    from now on.

    Replaces the previous announcement. Returns the number of files that Monarch knows.
    """
    library = _get()
    if library is None:
        return 0
    joined = _joined(paths)
    return max(library.announce_list(joined, len(joined)), 0)


@_guarded(0)
def prefetch(paths):
    """Requests copies of files soon, in this order. Returns the number of files that Monarch
    knows."""
    library = _get()
    if library is None:
        return 0
    joined = _joined(paths)
    return max(library.prefetch_list(joined, len(joined)), 0)


@_guarded(False)
def epoch_begin(number=None):
    """Begins an epoch: that with this number (0 to 2**32 - 1), or the next one. With several ranks
    give the number."""
    library = _get()
    number = -1 if number is None else int(number)
    # (ctypes would truncate larger numbers.)
    return library is not None and -1 <= number < 2**32 and library.epoch_begin(number) == 0


@_guarded(False)
def epoch_end():
    """Ends the epoch."""
    library = _get()
    return library is not None and library.epoch_end() == 0


@contextmanager
def epoch(number=None):
    """``with epoch(n):`` begins and ends an epoch, in each rank."""
    epoch_begin(number)
    try:
        yield
    finally:
        epoch_end()


@_guarded(False)
def priority(path, value):
    """Sets the priority of a file, or of all files below a directory: < 0 never copied, 0 normal, >
    0 kept before others."""
    library = _get()
    return library is not None and library.priority(os.fsencode(path), int(value)) == 0


@_guarded(None)
def residency(path):
    """Returns where a file is on this node: `ABSENT`, `COMING`, `PARTLY`, `IN_TIER`, `LEFT`; None
    when unknown."""
    library = _get()
    if library is None:
        return None
    found = library.residency(os.fsencode(path))
    return found if found >= 0 else None
