"""Runs work that may be stopped at any moment, and leaves no process, no mount and no file.

There are three processes:

    front     in the terminal's foreground: receives its signals, and waits
    guard     in a session of its own, an ancestor that inherits orphans: everything that the work starts
              stays its descendant, agents that detach themselves included. It waits until the work has
              ended, or the front has died or wants to stop, and then cleans up
    work      runs in its own directory; need not clean up anything, and may be killed

So there is one cleanup, and it always runs: at the end, after an error, after Ctrl-C, SIGTERM or
SIGHUP, and when the front or the work is killed. When the guard is killed, the front inherits its
orphans and cleans up. When front and guard are killed at once, the work dies with the guard, and
the kernel closes the pipe that keeps the mount; files remain then. After SIGKILL to all processes
at once, the file system's server included, a dead mount remains (`fusermount3 -u`).
"""
import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback

STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# The file system is ended after the processes that use it.
LAST = "slowfs"
libc = ctypes.CDLL(None, use_errno=True)


def run(work, directory):
    """Makes `directory`, runs `work(directory)` in it under a guard, and cleans up. Returns the
    exit status. After a signal it does not return: this process dies of that signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.mkdir(directory, 0o700)
    theirs, ours = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.close(ours)
        try:
            os._exit(guarded(work, directory, theirs))
        finally:
            os._exit(1)
    os.close(theirs)
    caught = []

    def stop(number, _frame):
        if not caught:
            os.close(ours)
            say("\nquickstart: interrupted, clearing away")
        caught.append(number)

    for number in STOP:
        # Signals that the caller ignores (nohup) stay ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
    status = os.waitstatus_to_exitcode(os.waitpid(guard, 0)[1])
    if status < 0 or os.path.lexists(directory):
        clear(directory)
    if os.path.lexists(directory):
        say(f"quickstart: {directory} could not be removed; something is still mounted or running there")
        status = 1
    elif caught:
        say("quickstart: no process, mount or file is left")
    if caught:
        # No core file after Ctrl-\\.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(caught[0], signal.SIG_DFL)
        os.kill(os.getpid(), caught[0])
    return status if status >= 0 else 1


def say(text):
    with contextlib.suppress(OSError):
        os.write(2, (text + "\n").encode())


def guarded(work, directory, front):
    """The process `guard`: runs the work, waits, cleans up."""
    os.setsid()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, wakes = os.pipe()
    for end in (wake, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    stopped = []
    for number in STOP:
        signal.signal(number, lambda number, _frame: stopped.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    status = 1
    try:
        worker = os.fork()
        if worker == 0:
            os._exit(worked(work, directory))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
        while not stopped:
            ready, _, _ = select.select([front, wake], [], [])
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            ended = dict(reap())
            if worker in ended:
                status = ended[worker]
                break
            if front in ready:
                break
    except OSError as error:
        say(f"quickstart: {error}")
    if status < 0:
        say(f"quickstart: killed by signal {-status}")
    clear(directory)
    return status if status >= 0 else 1


def worked(work, directory):
    """The process `work`: dies with the guard, ends with a status."""
    signal.set_wakeup_fd(-1)
    for number in (*STOP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
    try:
        status = work(directory)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except BaseException:
        traceback.print_exc()
        return 1


def reap():
    """Reaps children that have ended, as (pid, status)."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def descendants():
    """Living descendants of this process: pid to name."""
    children, names = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
                state, parent = rest.split()[:2]
                children.setdefault(int(parent), []).append(int(entry))
                if state not in "ZX":
                    names[int(entry)] = name
    found, todo = {}, [os.getpid()]
    while todo:
        for pid in children.get(todo.pop(), ()):
            todo.append(pid)
            if pid in names:
                found[pid] = names[pid]
    return found


def end(wanted, patience):
    """Ends descendants: SIGTERM, then SIGKILL after `patience` seconds. Returns the pids that were
    signalled."""
    asked, quiet, start = set(), 0, time.monotonic()
    while quiet < 2 and time.monotonic() < start + patience + 10:
        for _ in reap():
            pass
        living = {pid for pid, name in descendants().items() if wanted(name)}
        # Reading /proc gives no snapshot: a process that forks and ends meanwhile may hide its
        # child once.
        quiet = 0 if living else quiet + 1
        insist = time.monotonic() > start + patience
        for pid in living if insist else living - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if insist else signal.SIGTERM)
        asked |= living
        time.sleep(0.02 if living else 0)
    return asked


def clear(directory):
    """Ends all descendants, unmounts and removes everything below `directory`, and removes shared
    memory of PyTorch's processes."""
    ended = end(lambda name: name != LAST, 1.5)
    end(lambda name: True, 3)
    for point in mounts(directory):
        for command in (["fusermount3", "-u", "-q", "-z", "--", point], ["umount", "-l", "--", point]):
            with contextlib.suppress(OSError):
                if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                    break
    for name in os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []:
        # torch_PID_...: removed at once by the process that made it, unless it is killed just then.
        words = name.split("_")
        if words[0] == "torch" and len(words) > 1 and words[1].isdigit() and int(words[1]) in ended:
            with contextlib.suppress(OSError):
                os.unlink(f"/dev/shm/{name}")
    if not mounts(directory):
        shutil.rmtree(directory, ignore_errors=True)


def mounts(directory):
    """Mount points below a directory."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        points = [line.split()[4].encode("utf-8", "surrogateescape").decode("unicode_escape") for line in table]
    below = os.path.realpath(directory) + "/"
    return [point for point in points if point.startswith(below)]
