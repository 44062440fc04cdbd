"""slowfs as the file system of an evaluation: every call takes a fixed time. Each run has a new
mount, with empty caches."""
import os, subprocess

import net as nodes

TOOLS = ()
# Names of its counters, by the names that GlusterFS gives to the calls.
NAMES = dict(OPEN="open", READ="read", LOOKUP="lookup", STAT="getattr", READDIR="readdir", READDIRP="readdirplus", OPENDIR="opendir", ACCESS="access",
             READLINK="readlink", GETXATTR="getxattr", bytes="bytes_read")


class Slow:
    """A directory behind slowfs. `with Slow(net, node, base) as pfs:`"""

    def __init__(self, net, node, base):
        self.source, self.root, self.mounted, self.plan = f"{base}/data", None, None, {}
        os.makedirs(self.source)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.mounted:
            self.mounted.close()
            self.mounted = None

    def version(self):
        return subprocess.run([f"{nodes.BIN}/slowfs", "--version"], capture_output=True, text=True).stdout.strip()

    def mount(self, w, i):
        self.root = w.root
        self.count()

    def set(self, latency, cache):
        """Sets the milliseconds of each call, and whether the kernel keeps data; from the next
        count on."""
        self.plan = dict(latency=latency, cache=cache)

    def count(self):
        """Resets the counters, with empty caches in the kernel."""
        self.close()
        latency = f"{self.plan.get('latency', 0)}ms"
        self.mounted = nodes.Slowfs(self.source, self.root, "--meta-latency", latency, "--data-latency", latency, cache=self.plan.get("cache", "direct"))

    def counts(self):
        counters = self.mounted.counters()
        return {name: counters[counter] for name, counter in NAMES.items() if counters[counter] or name == "bytes"}
