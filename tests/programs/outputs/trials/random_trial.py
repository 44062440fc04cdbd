"""Calls at random, direct and staged: the same answers, and the same files on the PFS at the end."""
import argparse, os, shutil, stat, subprocess, time

from place import PROGRAMS, Place
from see import digest, told

# Longest time that the program of a round takes, in seconds.
MOST_S = 60


def tree(top):
    """What lies below a directory, whoever sees it: kinds, modes, contents, and names of one file."""
    found, files = {}, {}
    for at, dirs, names in os.walk(top):
        for name in dirs + names:
            path = os.path.join(at, name)
            rel, st = os.path.relpath(path, top), os.lstat(path)
            line = told(st)
            if stat.S_ISLNK(st.st_mode):
                line += f" -> {os.readlink(path).replace('/pfs/dir/', '/pfs/out/')}"
            elif stat.S_ISREG(st.st_mode):
                with open(path, "rb") as f:
                    line += f" {digest(f.read())}"
                files.setdefault(st.st_ino, []).append(rel)
            found[rel] = line
    return found, sorted(sorted(names) for names in files.values() if len(names) > 1)


def run(command, cwd, env, tier=None):
    """Status and output of a command; where it takes too long, what is pending in the tier, too."""
    with subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        try:
            out, err = p.communicate(timeout=MOST_S)
            return p.returncode, out, err
        except subprocess.TimeoutExpired:
            pending = tier and subprocess.run([command[0], "outputs", "--tier", tier], env=env, capture_output=True, text=True, timeout=MOST_S).stdout
            p.terminate()
            try:
                out, err = p.communicate(timeout=MOST_S)
            except subprocess.TimeoutExpired:
                p.kill()
                out, err = p.communicate()
            return "too long", f"{out}\n{pending}", err


def beyond(place, to, steady):
    """The environment, with a link to the directory, and a directory beside it as it is at first."""
    link, sibling = f"{place.tmp}/beyond", f"{place.mount}/sibling"
    if os.path.lexists(link):
        os.unlink(link)
    os.symlink(to, link)
    empty(sibling)
    os.mkdir(f"{sibling}/d")
    os.symlink("../sibling/d", f"{sibling}/back")
    for name in ("one", "d/two"):
        with open(f"{sibling}/{name}", "w") as f:
            f.write(name)
    return place.env | {"BEYOND": link, "SIBLING": sibling, "STEADY": str(steady)}


def empty(top):
    """Makes a directory, or makes it again."""
    if os.path.isdir(top):
        shutil.rmtree(top)
    os.makedirs(top)


def differs(a, b):
    """The first line at which two outputs part, with the two before it."""
    a, b = a.splitlines() + ["(end)"], b.splitlines() + ["(end)"]
    for n, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return "\n".join(["    " + line for line in a[max(0, n - 2):n]] + [f"  - {x}", f"  + {y}"])
    return None


def one(place, seed, count, processes, steady, only=()):
    """What differs in a round, if anything does; in these calls alone, where they are given."""
    program = ["python3", f"{PROGRAMS}/random_calls.py", str(seed), str(count), str(processes), *(",".join(map(str, part)) for part in [only] if part)]
    # (As long as the name of the output root: links say it.)
    direct, sibling = f"{place.mount}/dir", f"{place.work}/backing/sibling"
    for top in (direct, place.root):
        empty(top)
        os.mkdir(f"{top}/work")
    bare = run(program, f"{direct}/work", beyond(place, f"{direct}/work", 0))
    beside = tree(sibling)
    staged = run(place.staged(*program), f"{place.root}/work", beyond(place, f"{place.root}/work", steady), place.tier)
    if part := differs(bare[1], staged[1]):
        return f"another answer:\n{part}\n{staged[2]}"
    if bare[0] != staged[0] or bare[2] != staged[2]:
        return f"status {bare[0]} {staged[0]}\n{bare[2]}{staged[2]}"
    if beside != tree(sibling):
        return f"another sibling: {beside} {tree(sibling)}"
    want, got = tree(f"{place.work}/backing/dir"), tree(place.published)
    wrong = [(n, want[0].get(n), got[0].get(n)) for n in sorted(want[0].keys() | got[0].keys()) if want[0].get(n) != got[0].get(n)]
    if wrong or want[1] != got[1]:
        return f"another tree: {wrong[:4]} {want[1]} {got[1]}"
    return None


def fewest(place, seed, count, processes, steady):
    """Calls of a round that differ by themselves, of which none can be left out."""
    calls = list(range(count))
    step = count // 2
    while step:
        at = 0
        while at < len(calls):
            fewer = calls[:at] + calls[at + step:]
            if fewer and one(place(), seed, count, processes, steady, fewer):
                calls = fewer
            else:
                at += step
        step //= 2
    return calls


def main(words):
    options = argparse.ArgumentParser(prog="outputs.py random")
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--calls", type=int, default=200, help="calls of a round")
    options.add_argument("--processes", type=int, default=1, help="that take turns")
    options.add_argument("--latency", default="0", help="of a call of the PFS, such as 1ms")
    options.add_argument("--steady", type=float, default=0, metavar="SECONDS", help="look at everything for so long after every twelfth call: nothing changes")
    options.add_argument("--fewest", action="store_true", help="of each round that differs, find the fewest calls that do")
    options = options.parse_args(words)
    failed, places = 0, []

    def place(is_new=False):
        # What went wrong may have left something.
        if is_new and places:
            places.pop().__exit__()
        if not places:
            places.append(Place(pfs=("--meta-latency", options.latency)))
        return places[0]

    for seed in range(options.seed, options.seed + options.rounds):
        wrong = one(place(), seed, options.calls, options.processes, options.steady)
        if not wrong:
            continue
        failed += 1
        print(f"seed {seed}: {wrong}", flush=True)
        if options.fewest:
            calls = fewest(lambda: place(True), seed, options.calls, options.processes, options.steady)
            print(f"  calls {','.join(map(str, calls))}: {one(place(True), seed, options.calls, options.processes, options.steady, calls)}", flush=True)
        place(True)
    place().__exit__()
    print(f"random: {options.rounds} rounds of {options.calls} calls by {options.processes} processes from seed {options.seed} at {options.latency} a call, {failed} differ")
    return failed > 0
