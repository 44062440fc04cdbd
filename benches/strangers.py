#!/usr/bin/env python3
"""What senders without the job's secret cost an agent, and what a proven peer notices of them. Needs
root.

    cargo build --release -p monarch -p monarch-shim
    sudo benches/strangers.py [--seconds 8] [--encryption none|tls|both] [--json FILE] [FLOOD...]

For each flood an agent runs in one network namespace; the flood comes from another one, from 16
addresses, as fast as two processes can send it on the processors that all share. Meanwhile a peer
that knows the secret asks for 1,000 bytes, over a connection that it keeps and over new ones, in turns.

    idle       connections that send nothing; closed ones are opened again
    slow       heads that come a byte every 100 ms
    large      15,000 bytes of a head that does not end, or 4,000 bytes of a hello where it is TLS
    garbage    a connection, 300 random bytes, and what is answered
    head       a connection, a well-formed request without a proof, and what is answered
    hello      a connection, the beginning of TLS and 300 random bytes, and what is answered
    connect    a connection that is closed at once
    secret     a connection of Monarch's own client with another secret
    datagram   datagrams of 200 random bytes to the port of the gossip

A line of the result: what was sent each second; the most descriptors, threads and memory of the agent
beyond those before the flood; its processor time as a part of one processor; lines in its log; times
of the peer's requests in microseconds (median, 99th percentile) over the kept connection and over new
ones, and how many failed.
"""
import argparse, glob, hashlib, hmac, json, os, re, socket, struct, subprocess, sys, threading, time

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import net as nodes

FLOODS = ["idle", "slow", "large", "garbage", "head", "hello", "connect", "secret", "datagram"]
ADDRESSES = 16
# Connections that a process of `idle`, `slow` and `large` holds, or tries to.
HELD = 500


# What floods: processes in the namespace of the senders.


def dial(address, port, source, timeout=2.0):
    s = socket.socket()
    s.settimeout(timeout)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.bind((source, 0))
    s.connect((address, port))
    return s


def hold(address, port, sources, until, first=b"", drip=False):
    """Keeps HELD connections, with `first` sent, and sends a byte on each every 100 ms where they drip."""
    sent, held = 0, []
    text = b"GET /" + b"a" * 8000
    while time.time() < until:
        begun = time.time()
        for entry in list(held):
            s, at = entry
            try:
                if drip:
                    s.send(text[at : at + 1])
                    entry[1] += 1
                s.setblocking(False)
                if s.recv(1024) == b"":
                    raise OSError
            except BlockingIOError:
                pass
            except OSError:
                s.close()
                held.remove(entry)
        while len(held) < HELD and time.time() < begun + 0.1:
            try:
                held.append([dial(address, port, sources[sent % len(sources)]), 0])
                sent += 1
                if first:
                    held[-1][0].send(first)
            except OSError:
                break
        time.sleep(max(0.0, begun + 0.1 - time.time()))
    return sent


def shots(address, port, sources, until, bytes_of, wants_answer=True):
    sent = 0
    while time.time() < until:
        try:
            s = dial(address, port, sources[sent % len(sources)])
            if data := bytes_of():
                s.send(data)
                while wants_answer and s.recv(4096):
                    pass
            s.close()
        except OSError:
            pass
        sent += 1
    return sent


def datagrams(address, port, sources, until):
    sent, data = 0, os.urandom(200)
    ends = [socket.socket(type=socket.SOCK_DGRAM) for _ in sources]
    for s, source in zip(ends, sources):
        s.bind((source, 0))
    while time.time() < until:
        for s in ends:
            try:
                s.sendto(data, (address, port))
                sent += 1
            except OSError:
                pass
    return sent


def flood(kind, address, port, seconds, encryption, sources):
    until = time.time() + seconds
    at = (address, port, sources, until)
    request = b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    large = b"\x16\x03\x01\x3e\x80\x01\x00\x3e\x7c\x03\x03" + bytes(3980)
    hello = b"\x16\x03\x01\x01\x2c\x01\x00\x01\x28\x03\x03"
    print({
        "idle": lambda: hold(*at),
        "slow": lambda: hold(*at, drip=True),
        "large": lambda: hold(*at, first=b"GET /" + b"a" * 15_000 if encryption == "none" else large),
        "garbage": lambda: shots(*at, lambda: b"G" + os.urandom(297) + b"\r\n"),
        "head": lambda: shots(*at, lambda: request),
        "hello": lambda: shots(*at, lambda: hello + os.urandom(294)),
        "connect": lambda: shots(*at, lambda: b""),
        "datagram": lambda: datagrams(*at),
    }[kind]())


# What measures.


def derived(purpose):
    """`Secret::derive` of the secret that `net.World` writes."""
    parts = [b"monarch-cluster", purpose.encode()]
    data = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hmac.new(b"5c" * 32, data, hashlib.sha256).hexdigest()


def helper():
    """The program with Monarch's own client."""
    words = ["cargo", "bench", "-p", "monarch-cluster", "--bench", "strangers", "--no-run"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    found = re.search(r"Executable .*\((.*)\)", done.stderr)
    if not found:
        raise SystemExit(done.stderr[-2000:])
    return os.path.join(ROOT, found[1])


def usage(pid):
    with open(f"/proc/{pid}/status") as f:
        fields = dict(line.split(":", 1) for line in f)
    ran = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(path) as f:
                ran += int(f.read().split()[0])
        except OSError:
            # A thread that has just ended.
            pass
    return dict(descriptors=len(os.listdir(f"/proc/{pid}/fd")), threads=int(fields["Threads"]), memory=int(fields["VmRSS"].split()[0]) / 1024,
                cpu=ran / 1e9)


def log_lines(w):
    paths = glob.glob(f"{w.runtime(0)}/**/agent.log", recursive=True)
    return sum(len(open(path, errors="replace").readlines()) for path in paths)


class Peak(threading.Thread):
    """The most of each figure while it runs."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.over, self.most = pid, threading.Event(), usage(pid)

    def run(self):
        while not self.over.wait(0.05):
            now = usage(self.pid)
            self.most = {name: max(value, now[name]) for name, value in self.most.items()}


def measure(net, w, door, kind, seconds, encryption, wrong):
    pid, (address, port, keys) = w.agent(0), door
    enter, sources = net.inside(1), [f"{net.subnet}.{100 + n}" for n in range(ADDRESSES)]
    before, lines, start = usage(pid), log_lines(w), time.time()
    peak = Peak(pid)
    peak.start()
    running = []
    if kind == "secret":
        running = [subprocess.Popen([*enter, TOOL, "knock", *wrong, str(seconds)], stdout=subprocess.PIPE, text=True)]
    elif kind:
        for half in (sources[::2], sources[1::2]):
            words = [sys.executable, __file__, "--flood", kind, address, str(port), str(seconds), encryption, *half]
            running.append(subprocess.Popen([*enter, *words], stdout=subprocess.PIPE, text=True))
    # The peer begins when the flood is there, and ends before it.
    time.sleep(min(1.0, seconds / 4))
    asked = subprocess.run([*enter, TOOL, "ask", *keys, str(seconds - 2 * min(1.0, seconds / 4))], capture_output=True, text=True, timeout=120)
    peer = json.loads(asked.stdout)
    sent = sum(int(process.communicate()[0] or 0) for process in running)
    took = time.time() - start
    peak.over.set()
    peak.join()
    after = usage(pid)
    return dict(flood=kind or "none", sent=sent / took, descriptors=peak.most["descriptors"] - before["descriptors"],
                threads=peak.most["threads"] - before["threads"], memory=peak.most["memory"] - before["memory"],
                cpu=(after["cpu"] - before["cpu"]) / took, log=log_lines(w) - lines, peer=peer, errors=asked.stderr[-300:])


def flooded(net, encryption, kind, seconds):
    """A flood of an agent of its own, so that none has memory or lines in its log of the one before."""
    port = 20_000 + os.getpid() % 10_000
    with nodes.World(net, 2, cluster=[f"encryption: {encryption}", f"port: {port}"]) as w:
        os.makedirs(w.root)
        nodes.make(w.root, 20, 10_000)
        w.start(0, ["sleep", "100000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        nodes.when("the agent", lambda: w.is_ready(0), 120)
        address, me = net.address(0), net.address(1)
        at = [f"{address}:{port}", me, address]
        key = lambda of: of if encryption == "tls" else "none"
        door = address, port, [*at, derived("wire"), key(derived("tls"))]
        # The threads of an agent that has just started come and go.
        time.sleep(2)
        return measure(net, w, door, kind, seconds, encryption, [*at, "17" * 32, key("17" * 32)])


def show(encryption, row):
    kept, new = row["peer"]["kept"], row["peer"]["new"]
    print(f"{encryption:5} {row['flood']:9} {row['sent']:8.0f}/s  +{row['descriptors']:4} fds  +{row['threads']:2} threads  +{row['memory']:5.1f} MiB"
          f"  cpu {row['cpu']:.2f}  log {row['log']:3}  kept {kept[0]} {kept[1]} us  new {new[0]} {new[1]} us  failed {row['peer']['failed']}"
          f" of {row['peer']['requests'] + row['peer']['failed']}", flush=True)


def main():
    global TOOL
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--encryption", default="both", choices=["none", "tls", "both"])
    parser.add_argument("--json")
    parser.add_argument("floods", nargs="*", default=FLOODS, metavar="FLOOD")
    a = parser.parse_args()
    TOOL, rows = helper(), []
    for encryption in ["none", "tls"] if a.encryption == "both" else [a.encryption]:
        with nodes.Net(2) as net:
            for n in range(ADDRESSES):
                nodes.ip(f"-n {net.name(1)} addr add {net.subnet}.{100 + n}/24 dev eth0")
            for kind in [None, *a.floods]:
                row = dict(flooded(net, encryption, kind, a.seconds), encryption=encryption)
                rows.append(row)
                show(encryption, row)
                if row["errors"]:
                    print("   ", row["errors"].strip().splitlines()[-1])
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)


if len(sys.argv) > 2 and sys.argv[1] == "--flood":
    flood(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]), sys.argv[6], sys.argv[7:])
else:
    main()
