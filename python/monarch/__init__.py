"""Monarch from Python: whether this process is served from local copies, what is on this node, and
hints about what it will read.

    import monarch

    monarch.active()                             # True below `monarch run`
    monarch.facts()                              # Facts(active=True, version='0.2.0', ...)
    monarch.residency("/scratch/set/a.tar")      # monarch.IN_TIER
    monarch.status()                             # the agents of this node, as `monarch status --json`
    monarch.report("run.json")                   # a report of `monarch run --report`, as a dict
    monarch.load("/scratch/m/a.safetensors")     # the bytes of a file, read by several threads
    monarch.load_file("/scratch/m/a.pt")         # the same as an open file, for torch.load

The functions that ask an agent run the command ``monarch`` and raise `MonarchError` with its
message when it fails. Hints (``announce``, ``prefetch``, ``epoch``, ...) are those of
``monarch_hints``: they raise nothing and do nothing outside of ``monarch run``.
"""

import json
import os
import subprocess
import sys
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Union

from monarch_hints import (ABSENT, COMING, IN_TIER, LEFT, PARTLY, active, announce, epoch, epoch_begin, epoch_end,
                           prefetch, priority, residency)

from ._load import load, load_file

__all__ = ["ABSENT", "COMING", "IN_TIER", "LEFT", "PARTLY", "Facts", "MonarchError", "active", "announce", "command", "epoch",
           "epoch_begin", "epoch_end", "explain", "facts", "load", "load_file", "prefetch", "priority", "report", "residency", "status"]

__version__ = "0.2.0"

PathLike = Union[str, "os.PathLike[str]"]


class MonarchError(RuntimeError):
    """The command ``monarch`` failed. ``code`` is its exit code; 4 says that no agent is running."""

    def __init__(self, message: str, code: Optional[int] = None) -> None:
        super().__init__(message)
        self.code = code


class Facts(NamedTuple):
    """What a process can know of Monarch without asking the agent."""

    #: Whether files of this process are served from copies.
    active: bool
    #: The version of this package.
    version: str
    #: The command ``monarch`` that belongs to this package, if it is found.
    command: Optional[str]
    #: The control block of the agent that serves this process.
    control: Optional[str]
    #: The preload library of this process.
    library: Optional[str]


def command() -> Optional[str]:
    """Returns the path of the command ``monarch``: that of this environment, else that of
    ``PATH``."""
    beside = [os.path.join(os.path.dirname(sys.executable), "monarch")]
    # `pip install --target` and `--user` put it beside the package.
    package = os.path.dirname(os.path.abspath(__file__))
    beside += [os.path.normpath(os.path.join(package, *up, "bin", "monarch")) for up in ([".."], ["..", "..", "..", ".."])]
    path = (os.path.join(d, "monarch") for d in os.environ.get("PATH", "").split(os.pathsep) if d)
    for candidate in [*beside, *path]:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def facts() -> Facts:
    """Returns what this process knows of Monarch."""
    preloaded = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    library = next((p for p in preloaded if os.path.basename(p) == "libmonarch_shim.so"), None)
    return Facts(active(), __version__, command(), os.environ.get("MONARCH_CTL"), library)


def _ask(*words: PathLike, codes: Iterable[int] = (0,)) -> Any:
    program = command()
    if program is None:
        raise MonarchError("there is no command `monarch` beside this Python or in PATH: pip install monarch-tiering")
    done = subprocess.run([program, *map(os.fspath, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode not in codes:
        said = done.stderr.decode(errors="replace").strip()
        raise MonarchError(said or "monarch ended with %d" % done.returncode, done.returncode)
    return json.loads(done.stdout)


def status() -> List[Dict[str, Any]]:
    """Returns the agents of this user on this node; an empty list without any.

    The fields are those of ``monarch status --json``.
    """
    try:
        found = _ask("status", "--json")
    except MonarchError as e:
        if e.code == 4:
            return []
        raise
    return found


def explain(*paths: PathLike) -> List[Dict[str, Any]]:
    """Returns for each path whether an open gets a copy, and why not; see ``monarch explain``."""
    # Exit code 3 says that not all of them are served.
    found = _ask("explain", "--json", "--", *paths, codes=(0, 3))
    return found


def report(file: Optional[PathLike] = None) -> Any:
    """Returns a report of ``monarch run --report FILE`` as a dict; without a file a list of the
    reports of the running agents."""
    return _ask("report", "--json") if file is None else _ask("report", "--json", file)
