"""A CephFS on one machine, for scripts: a monitor, an OSD, a metadata server. Needs ceph-mon,
ceph-osd, ceph-mds, ceph-fuse, ceph-common (Debian's packages of these names)."""
import json, os, subprocess, uuid

import net as nodes

TOOLS = ("ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph")


class Ceph:
    """A CephFS in a node's namespace, its settings and processes in a directory of its own; the
    interface is that of Gluster."""

    SETTINGS = """[global]
fsid = {fsid}
mon host = [v2:{address}:3300,v1:{address}:6789]
public network = {subnet}.0/24
keyring = {base}/keyring
admin socket = {base}/run/$name.asok
pid file = {base}/run/$name.pid
log file = {base}/log/$name.log
run dir = {base}/run
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
mon osd down out interval = 3600
mon data avail crit = 1
mon data avail warn = 2
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
ms bind ipv6 = false
[mon.a]
host = pfs
mon data = {base}/mon.a
[mds.a]
mds data = {base}/mds.a
mds cache memory limit = 536870912
[osd]
osd objectstore = bluestore
bluestore block create = true
bluestore block size = 6442450944
bluestore fsck on mount = false
osd memory target = 939524096
[osd.0]
osd data = {base}/osd.0
"""
    # Calls to the metadata server, by what GlusterFS calls the same.
    NAMES = {"lookup": "LOOKUP", "getattr": "STAT", "open": "OPEN", "readdir": "READDIR", "lookupino": "LOOKUP", "lookupname": "LOOKUP"}

    def __init__(self, net, node, base):
        self.net, self.node, self.base = net, node, base
        self.clients = []
        for d in ("mon.a", "mds.a", "osd.0", "run", "log"):
            os.makedirs(f"{base}/{d}")
        self.fsid = str(uuid.uuid4())
        with open(f"{base}/ceph.conf", "w") as f:
            f.write(self.SETTINGS.format(fsid=self.fsid, base=base, address=net.address(node), subnet=net.subnet))

    def run(self, program, *words, inside=True, check=True):
        command = [*(self.net.inside(self.node) if inside else []), program, *(["-c", f"{self.base}/ceph.conf"] if inside else []), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if check and done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stdout[-500:]}{done.stderr[-1000:]}")
        return done.stdout

    def __enter__(self):
        base, address = self.base, self.net.address(self.node)
        self.run("ceph-authtool", "--create-keyring", f"{base}/keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *", inside=False)
        admin = [word for who in ("mon", "osd", "mds", "mgr") for word in ("--cap", who, "allow *")]
        self.run("ceph-authtool", f"{base}/keyring", "--gen-key", "-n", "client.admin", *admin, inside=False)
        self.run("monmaptool", "--create", "--addv", "a", f"[v2:{address}:3300,v1:{address}:6789]", "--fsid", self.fsid, "--clobber", f"{base}/monmap", inside=False)
        self.run("ceph-mon", "-i", "a", "--mkfs", "--monmap", f"{base}/monmap", "--keyring", f"{base}/keyring")
        self.run("ceph-mon", "-i", "a", "--public-addr", address)
        osd = str(uuid.uuid4())
        self.run("ceph", "osd", "new", osd)
        self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self.run("ceph-osd", "-i", "0")
        for pool in ("meta", "data"):
            self.run("ceph", "osd", "pool", "create", pool, "8")
        self.run("ceph", "fs", "new", "cfs", "meta", "data")
        self.run("ceph-mds", "-i", "a")
        nodes.when("the metadata server", lambda: "up:active" in self.run("ceph", "mds", "stat"), 60)
        return self

    def dump(self, daemon):
        return json.loads(self.run("ceph", "daemon", f"{self.base}/run/{daemon}.asok", "perf", "dump"))

    def totals(self):
        osd, mds = self.dump("osd.0")["osd"], self.dump("mds.a")["mds_server"]
        found = dict(bytes=osd["op_r_out_bytes"], READ=osd["op_r"])
        for key, value in mds.items():
            if key.startswith("req_") and isinstance(value, dict):
                name = key[len("req_"):-len("_latency")]
                name = self.NAMES.get(name, name.upper())
                found[name] = found.get(name, 0) + value["avgcount"]
        return found

    def count(self):
        """Resets the counters."""
        self.begun = self.totals()

    def counts(self):
        """What the OSD and the metadata server have counted since: calls, by the names that
        GlusterFS has for them, and `bytes` that were sent."""
        return {k: n - self.begun.get(k, 0) for k, n in self.totals().items()}

    def mount(self, w, i):
        """Mounts it on a node, in a mount namespace of that node's; no data is kept, names and
        attributes are, as the metadata server grants it."""
        os.makedirs(w.root, exist_ok=True)
        client = (f"ceph-fuse -c {self.base}/ceph.conf -n client.admin --client_oc=false --fuse_disable_pagecache=true --pid-file={self.base}/run/fuse{i}.pid "
                  f"--admin-socket={self.base}/run/fuse{i}.asok --log-file={self.base}/log/fuse{i}.log {w.root} >{self.base}/log/mount{i} 2>&1")
        script = f"{client} && until mountpoint -q {w.root}; do sleep 0.05; done; echo mounted; exec sleep 100000"
        holder = subprocess.Popen([*self.net.inside(i), "unshare", "--mount", "--propagation", "private", "sh", "-c", script],
                                  stdout=subprocess.PIPE, text=True, start_new_session=True)
        if holder.stdout.readline().strip() != "mounted":
            raise SystemExit(f"ceph-fuse: no mount on node {i}, see {self.base}/log/mount{i}")
        w.enter[i] = ["nsenter", f"--net=/run/netns/{self.net.name(i)}", f"--mount=/proc/{holder.pid}/ns/mnt"]

    def version(self):
        return self.run("ceph-mds", "--version").strip()

    def __exit__(self, *_):
        for i in range(self.net.n):
            nodes.end(self.net.name(i))
