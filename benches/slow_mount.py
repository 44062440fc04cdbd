"""A directory behind slowfs, for benchmarks."""
import json, os, subprocess, sys, time

from bench import BIN


class Mount:
    """`source` at `at`, behind a server with these options, until the `with` block ends."""

    def __init__(self, source, at, options):
        self.at, self.socket = at, f"{at}.sock"
        os.makedirs(at, exist_ok=True)
        words = [f"{BIN}/slowfs", "--until-stdin-closes", "--control", self.socket, *options, source, at]
        self.server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        while not os.path.ismount(at):
            if self.server.poll() is not None:
                sys.exit("slowfs did not start")
            time.sleep(0.02)

    def counters(self):
        """What the server has counted so far."""
        said = subprocess.run([f"{BIN}/slowfs", "ctl", self.socket, "counters"], capture_output=True, text=True, check=True)
        return json.loads(said.stdout)["counters"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stdin.close()
        self.server.wait()
