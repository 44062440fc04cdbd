#!/usr/bin/env python3
"""Output roots beside the everyday suite: what is killed, frameworks, and suites of others.

    tests/outputs.py kills [--how all|job|both|agent] [--rounds N] [--seed N]     a second or two a round
    tests/outputs.py random [--rounds N] [--seed N] [--calls N] [--processes N] [--latency TIME] [--steady SECONDS]    a second a round
    tests/outputs.py pairs [--rounds N] [--seconds N] [--seed N] [--latency TIME] [--first CALL,...] [--second CALL,...] [--before WHAT,...]
    tests/outputs.py frameworks [NAME...]         needs environments of tests/venvs.sh; 20 minutes
    tests/outputs.py suites [NAME...]             CPython's own tests; 20 minutes
    tests/outputs.py tools [NAME...]              fio, stress-ng, dbench, fs_mark, bonnie++; 10 minutes

`kills`: a job that changes names at random is killed at a random moment, with its agent and `run`
(`all`), alone (`job`), with its agent (`both`), or the agent alone, again and again (`agent`); then
`monarch recover`. What a reader of the
PFS sees all the time must be a state that the job had, and at the end the last one.
`random`: calls at random on few names, direct and staged, by one process or several that take turns:
the same answers, the same files at the end. Names are said in odd ways, by directories that are kept
open, and by links, which may lead out of the output root. With `--steady`: what is there stays as it is
while it is published.
`pairs`: two processes make a call each about one name at once, all pairs of 26 calls on nine kinds of
names: what both get and see, and what is published, must be what one of the two orders gives.
`frameworks`: programs of tests/programs/outputs/frameworks save and load, direct and staged: the same
losses and the same files; then they are killed at a random moment and resumed, to the same losses.
`suites`: the tests of an interpreter with their scratch below an output root, direct and staged: the
same failures. `tools`: programs that write and verify, likewise: they say and leave the same. All need FUSE and a release build (MONARCH_E2E_BIN names another directory).
MONARCH_TRIAL_KEEP=1 keeps the directories. Ends with 1 when something differs.
"""
import argparse, os, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = f"{ROOT}/tests/programs/outputs"
sys.path[:0] = [f"{ROOT}/tests/programs/outputs", f"{ROOT}/tests/programs/outputs/trials"]


def main():
    if sys.argv[1:2] in ([], ["-h"], ["--help"]):
        print(__doc__.strip())
        return 0
    import kills, frameworks, pairs_trial, random_trial, suites, tools
    what = {"kills": kills.main, "frameworks": frameworks.main, "pairs": pairs_trial.main, "random": random_trial.main, "suites": suites.main, "tools": tools.main}
    if sys.argv[1] not in what:
        sys.exit(f"outputs: there is no {sys.argv[1]} ({' '.join(what)})")
    return what[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
