"""What is killed at a random moment: whatever a reader of the PFS sees is a state that the job had."""
import argparse, os, random, signal, subprocess, sys, threading, time

from place import BIN, PROGRAMS, Place
from sequence import States, digest, content, look

COUNT = 160
# The PFS is slow enough that much is pending at any moment.
PFS = ("--meta-latency", "1ms", "--bandwidth", "20MB/s")


class Watch(threading.Thread):
    """Looks at the PFS all the time; states may only go on."""

    def __init__(self, states, top):
        super().__init__(daemon=True)
        self.states, self.top, self.cache, self.over = states, top, {}, False
        self.at, self.looks, self.wrong = 0, 0, []
        # The ledger, once the job is killed: a file that it was writing may then hold a part.
        self.ledger = None

    def look(self):
        seen = look(self.top, self.cache)
        if seen is None:
            return None
        # (A listing is no snapshot: only what is seen twice in the same way counts.)
        return seen if look(self.top, self.cache) == seen else None

    def run(self):
        while not self.over and not self.wrong:
            seen = self.look()
            if seen is not None:
                self.looks += 1
                self.judge(seen)
            time.sleep(0.005)

    def judge(self, seen):
        found, nearest = self.states.find(seen, self.at)
        if found is not None:
            self.at = found
            return
        if self.ledger and survivors(self.states, done_of(self.ledger), seen)[0] is not None:
            return
        wrong, k, names = nearest
        self.wrong.append(f"no state from {self.at} on: nearest is {k}, which differs at {[(n, self.states.after[k].get(n), seen.get(n)) for n in names[:4]]}")

    def end(self):
        self.over = True
        self.join()


def done_of(ledger):
    return os.path.getsize(ledger) if os.path.exists(ledger) else 0


def survivors(states, done, seen):
    """Whether this is the last state: all that the job had done, and perhaps the operation that was
    under way; a file that was being written then may hold a part of its bytes."""
    for last in (done, done + 1):
        if last < len(states.after):
            wrong = [n for n in states.after[last].keys() | seen.keys() if states.plain(states.after[last].get(n)) != seen.get(n)]
            if not wrong:
                return last, []
    if done < len(states.ops):
        kind, words = states.ops[done]
        if kind == "write":
            # A prefix of what it should hold, or, where a file of that name was published, beside it.
            whole = content(states.seed, words[1], words[2])
            parts = {digest(whole[:n]) for n in {0, len(whole), *range(0, len(whole) + 1, 4096)}}
            left = {n: v for n, v in seen.items() if not (n.startswith(f"{words[0]}.partial-") and v in parts)}
            # (The version that was closed just before is cut in place, as by direct writing: the one before it stays.)
            is_again = done and states.ops[done - 1][0] == "write" and states.ops[done - 1][1][0] == words[0]
            kept = parts | {None} | set(states.earlier(words[0], done)[-1:] if is_again else [])
            wrong = [n for n in states.after[done].keys() | left.keys() if states.plain(states.after[done].get(n)) != left.get(n) and not (n == words[0] and left.get(n) in kept)]
            if not wrong:
                return done, []
    wrong = [n for n in states.after[done].keys() | seen.keys() if states.plain(states.after[done].get(n)) != seen.get(n)]
    return None, [(n, states.after[done].get(n), seen.get(n)) for n in wrong[:5]]


def round_of(place, how, seed):
    """One job; what went wrong."""
    rng = random.Random(seed)
    states = States(seed, COUNT)
    ledger = f"{place.work}/ledger"
    if os.path.exists(ledger):
        os.unlink(ledger)
    watch = Watch(states, place.published)
    job = subprocess.Popen(place.staged(sys.executable, f"{PROGRAMS}/sequence.py", str(seed), str(COUNT), ledger), cwd=place.root, env=place.env,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    if not job.stdout.readline():
        return [f"the job did not begin: {job.communicate()[1][-1000:]}"], watch
    watch.start()
    notes = []
    if how == "agent":
        while job.poll() is None:
            for pid in place.agent_pids():
                kill(pid)
                notes.append("agent")
            time.sleep(rng.random() * 0.6 + 0.3)
            if len(notes) >= 5:
                break
        out, errors = job.communicate(timeout=200)
        if job.returncode or "## end" not in out:
            watch.end()
            return [f"the job ended with {job.returncode}: {out[-300:]} {errors[-1000:]}"], watch
    else:
        time.sleep(rng.random() * rng.choice([0.15, 0.6, 1.5]))
        watch.ledger = ledger
        if how == "all":
            agents = place.agent_pids()
            os.killpg(job.pid, signal.SIGKILL)
            for pid in agents:
                kill(pid)
        else:
            children = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
            for pid in {int(p) for p in children} | (set(place.agent_pids()) if how == "both" else set()):
                kill(pid)
        out, errors = job.communicate(timeout=200)
    done = done_of(ledger)
    problems = []
    if how == "all":
        before = look(place.published, watch.cache) or {}
        pending = [n for n in states.after[done].keys() | before.keys() if states.plain(states.after[done].get(n)) != before.get(n)]
        listed = place.monarch("outputs").stdout
        if len(pending) > 2 and not any(name in listed for name in pending):
            problems.append(f"{len(pending)} names are pending, none is listed: {listed[-500:]!r}")
        recovered = place.monarch("recover")
        if recovered.returncode:
            problems.append(f"recover ended with {recovered.returncode}: {recovered.stdout[-500:]}{recovered.stderr[-500:]}")
    watch.end()
    seen = look(place.published, watch.cache)
    last, wrong = survivors(states, done if how != "agent" else len(states.ops), seen)
    if last is None:
        problems.append(f"after {done} of {len(states.ops)} operations another state is published: {wrong}")
    own = [f"{at}/{f}" for at, _, files in os.walk(place.published) for f in files if f.startswith(".monarch-")]
    if own:
        problems.append(f"left behind: {own[:5]}")
    return problems + watch.wrong, watch


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main(words):
    p = argparse.ArgumentParser(prog="tests/outputs.py kills")
    p.add_argument("--how", choices=["all", "job", "both", "agent"], default="all")
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--seed", type=int, default=None, help="of the first round; rounds count on from it")
    p.add_argument("--disk", action="store_true", help="a tier on disk")
    a = p.parse_args(words)
    first = a.seed if a.seed is not None else random.randrange(10**9)
    good, looks = 0, 0
    with Place(PFS, memory=not a.disk) as place:
        for seed in range(first, first + a.rounds):
            subprocess.run(["find", place.root, "-mindepth", "1", "-delete"], check=True)
            problems, watch = round_of(place, a.how, seed)
            looks += watch.looks
            good += not problems
            if problems:
                print(f"--how {a.how} --seed {seed} --rounds 1:", *problems, sep="\n    ", flush=True)
    print(f"kills: {looks} looks at the PFS")
    print(f"{good} passed, {a.rounds - good} failed")
    return good != a.rounds
