"""CPython's own tests with their scratch below an output root: the failures of a plain directory."""
import argparse, os, re, subprocess, sys

from place import Place

SUITES = ["test_os", "test_shutil", "test_tempfile", "test_zipfile", "test_tarfile", "test_mmap", "test_posix", "test_io", "test_fileio", "test_mailbox", "test_dbm", "test_dbm_dumb", "test_sqlite3",
          "test_glob", "test_pathlib", "test_gzip", "test_bz2", "test_lzma", "test_logging", "test_fileinput", "test_filecmp", "test_subprocess", "test_shelve", "test_pickle", "test_largefile"]
# They copy between a staged and a published file, which are on two file systems (docs/OUTPUTS.md).
TWO_FILE_SYSTEMS = {"test_copy_file_range", "test_copy_file_range_offset"}
RESULT = re.compile(r"^(?:(?:ERROR|FAIL): (\S+ \(\S+\))|(test_\w+(?: \(\S+\))?) \.\.\. (?:FAIL|ERROR|unexpected success))")


def interpreter():
    """One that has its tests."""
    for python in (sys.executable, "python3"):
        if not subprocess.run([python, "-c", "import test.test_os, test.test_sqlite3"], capture_output=True).returncode:
            return subprocess.run([python, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True).stdout.strip()
    sys.exit("outputs: no interpreter with its own tests (the package `test`)")


def failures(place, python, suite, staged):
    """Names of the tests that fail, and how many ran."""
    scratch = f"{place.root}/scratch"
    subprocess.run(["rm", "-rf", scratch], check=True)
    os.makedirs(scratch)
    command = [python, "-m", "test", "-v", "--tempdir", scratch, suite]
    env = place.env | {"TMPDIR": scratch, "HOME": place.tmp}
    try:
        done = subprocess.run(place.staged(*command) if staged else command, cwd=scratch, env=env, capture_output=True, text=True, errors="replace", timeout=900, stdin=subprocess.DEVNULL)
        text = done.stdout + done.stderr
    except subprocess.TimeoutExpired as e:
        text = (e.stdout or b"").decode(errors="replace") + "\nFAIL: timeout (after-900-s)\n"
    found = {m.group(1) or m.group(2) for m in map(RESULT.match, text.splitlines()) if m}
    ran = sum(int(n) for n in re.findall(r"^Ran (\d+) test", text, re.M))
    left = [f for at, _, files in os.walk(place.published) for f in files if f.startswith(".monarch-")]
    return found, ran, text, left


def main(words):
    p = argparse.ArgumentParser(prog="tests/outputs.py suites")
    p.add_argument("--disk", action="store_true", help="a tier on disk")
    p.add_argument("names", nargs="*", help=" ".join(SUITES))
    a = p.parse_args(words)
    python, failed = interpreter(), 0
    names = a.names or SUITES
    for suite in names:
        with Place(memory=not a.disk) as place:
            direct, ran, text, _ = failures(place, python, suite, False)
            ours, also, log, left = failures(place, python, suite, True)
            more = sorted(name for name in ours - direct if name.split(" ")[0] not in TWO_FILE_SYSTEMS)
            wrong = bool(more) or ran != also or ran == 0 or bool(left)
            print(f"{'FAILED' if wrong else 'ok':7}{suite:16}{ran:5} tests direct, {len(direct)} fail; {also:5} staged, {len(ours)} fail", flush=True)
            for name in more[:12]:
                at = log.find(name, log.find("======"))
                print(f"    {name}: {' | '.join(log[at:at + 1600].splitlines()[1:14])[-260:]}", flush=True)
            if left:
                print(f"    left behind: {left[:5]}", flush=True)
            if ran != also:
                print(f"    {log[-400:]}", flush=True)
            failed += wrong
    print(f"{len(names) - failed} passed, {failed} failed")
    return failed > 0
