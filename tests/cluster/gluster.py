"""A GlusterFS on one machine, for scripts. Needs glusterd and glusterfs (Debian: glusterfs-server
glusterfs-client)."""
import os, subprocess, xml.etree.ElementTree

import net as nodes


TOOLS = ("glusterd", "glusterfs", "gluster")


class Gluster:
    """A GlusterFS of one brick in a node's namespace, its settings and processes in a directory of
    its own."""

    OFF = ("io-cache", "quick-read", "read-ahead", "readdir-ahead", "stat-prefetch", "open-behind", "write-behind")
    SETTINGS = """volume management
    type mgmt/glusterd
    option working-directory {base}/work
    option run-directory {base}/run
    option glusterd-sockfile {base}/run/glusterd.socket
    option transport-type socket
    option transport.socket.listen-port 24007
    option transport.socket.read-fail-log off
    option ping-timeout 0
    option event-threads 1
end-volume
"""

    def __init__(self, net, node, base):
        self.net, self.node, self.base = net, node, base
        self.brick = f"{base}/brick"
        for d in ("work", "log", "run", "brick"):
            os.makedirs(f"{base}/{d}")
        with open(f"{base}/glusterd.vol", "w") as f:
            f.write(self.SETTINGS.format(base=base))

    def ask(self, *words, check=True):
        done = self.asked(*words)
        if check and done.returncode:
            raise SystemExit(f"gluster {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.returncode == 0

    def asked(self, *words):
        command = [*self.net.inside(self.node), "gluster", "--mode=script", f"--glusterd-sock={self.base}/run/glusterd.socket",
                   f"--log-file={self.base}/log/cli.log", *words]
        return subprocess.run(command, capture_output=True, text=True)

    def __enter__(self):
        daemon = ["glusterd", "-f", f"{self.base}/glusterd.vol", "-p", f"{self.base}/run/glusterd.pid", "-l", f"{self.base}/log/glusterd.log", "-L", "WARNING"]
        subprocess.run([*self.net.inside(self.node), *daemon], check=True)
        nodes.when("glusterd", lambda: self.ask("pool", "list", check=False), 30)
        # It refuses a loopback address for bricks.
        self.ask("volume", "create", "v0", f"{self.net.address(self.node)}:{self.brick}", "force")
        for name in self.OFF:
            self.ask("volume", "set", "v0", f"performance.{name}", "off")
        self.ask("volume", "start", "v0")
        return self

    def version(self):
        return subprocess.run(["glusterfs", "--version"], capture_output=True, text=True).stdout.split("\n")[0]

    def count(self):
        """Resets the counters."""
        self.ask("volume", "profile", "v0", "start", check=False)
        self.ask("volume", "profile", "v0", "info", "clear")

    def counts(self):
        """What the brick has counted since: calls by their names in GlusterFS, and `bytes` that it
        sent."""
        tree = xml.etree.ElementTree.fromstring(self.asked("volume", "profile", "v0", "info", "cumulative", "--xml").stdout)
        found = dict(bytes=0)
        for brick in tree.iter("cumulativeStats"):
            found["bytes"] += int(brick.find("totalRead").text)
            for call in brick.iter("fop"):
                found[call.find("name").text] = found.get(call.find("name").text, 0) + int(call.find("hits").text)
        return found

    def mount(self, w, i):
        """Mounts it on a node, in a mount namespace of that node's: the same path on all nodes.
        Processes enter by way of the holder."""
        os.makedirs(w.root, exist_ok=True)
        client = (f"glusterfs --volfile-server={self.net.address(self.node)} --volfile-id=v0 --direct-io-mode=enable --attribute-timeout=600 "
                  f"--entry-timeout=600 --log-file={self.base}/log/mnt{i}.log --log-level=WARNING {w.root}")
        script = f"{client} && until mountpoint -q {w.root}; do sleep 0.05; done; echo mounted; exec sleep 100000"
        holder = subprocess.Popen([*self.net.inside(i), "unshare", "--mount", "--propagation", "private", "sh", "-c", script],
                                  stdout=subprocess.PIPE, text=True, start_new_session=True)
        if holder.stdout.readline().strip() != "mounted":
            raise SystemExit(f"glusterfs: no mount on node {i}, see {self.base}/log/mnt{i}.log")
        w.enter[i] = ["nsenter", f"--net=/run/netns/{self.net.name(i)}", f"--mount=/proc/{holder.pid}/ns/mnt"]

    def __exit__(self, *_):
        self.ask("volume", "stop", "v0", "force", check=False)
        nodes.end(self.net.name(self.node))
