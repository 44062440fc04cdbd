#!/usr/bin/env python3
"""An attacker on the path between one node and all others, in that node's network namespace.

    in_the_middle.py PORT SEED MIN_ATTACKS

Takes every TCP connection from and to PORT, passes it on, and changes it: bytes flipped, left out
or sent twice, connections cut, answers exchanged with those of other connections, requests of
former connections sent again. Of the datagrams that leave for PORT every third has a byte changed.
Words on standard input: `attack` begins that (it passes all on at first), `pass` ends it. It prints
`enough` when it has done MIN_ATTACKS to connections. At the end of standard input it prints, as JSON,
what it did, and how many of its repeated requests were served. Needs root and nft.
"""
import asyncio, collections, json, os, random, socket, struct, subprocess, sys

SO_ORIGINAL_DST, MARK = 80, 7
HOWS = ("flip an answer", "flip a request", "cut", "exchange", "repeat an answer", "repeat a request", "leave out")
PORT = int(sys.argv[1])
rng = random.Random(int(sys.argv[2]))
MIN_ATTACKS = int(sys.argv[3])
done = collections.Counter()
former_answers, former_requests = collections.deque(maxlen=64), collections.deque(maxlen=16)
is_attacking, served = False, 0
RULES = f"""
table ip middle {{
  chain out {{
    type nat hook output priority -100;
    meta mark {MARK} return
    tcp dport {PORT} redirect to :9999
  }}
  chain in {{
    type nat hook prerouting priority -100;
    tcp dport {PORT} redirect to :9999
  }}
}}
"""
DATAGRAMS = f"""
table ip middle {{
  chain datagrams {{
    type filter hook output priority 0;
    udp dport {PORT} numgen random mod 3 == 0 @th,320,8 set 0x5a
  }}
}}
"""


def nft(rules):
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)


def original(writer):
    sock = writer.get_extra_info("socket")
    _, port, address = struct.unpack_from("!HH4s", sock.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
    return socket.inet_ntoa(address), port


async def connected(to):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, to)
    return await asyncio.open_connection(sock=sock)


def count(how):
    done[how] += 1
    if sum(done.values()) == MIN_ATTACKS:
        print("enough", flush=True)


def flipped(data):
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:]


class Connection:
    """One direction is changed after `at` bytes of it, then in another way, as long as it lasts."""

    def __init__(self):
        self.requests = b""
        self.choose(0)

    def choose(self, seen):
        self.how = rng.choice(HOWS)
        self.at = seen + rng.choice((0, 200, 1_000, 5_000, 50_000))

    def changed(self, data, is_answer, seen):
        """What is sent instead; None: the connection is cut."""
        mine = self.how in ("flip a request", "repeat a request") and not is_answer or \
            self.how in ("flip an answer", "cut", "exchange", "repeat an answer", "leave out") and is_answer
        if not is_attacking or not mine or seen + len(data) < self.at:
            return [data]
        how = self.how
        self.choose(seen)
        if how == "exchange" and not former_answers:
            return [data]
        count(how)
        if how.startswith("flip"):
            return [flipped(data)]
        if how.startswith("repeat"):
            return [data, data]
        if how == "exchange":
            return [rng.choice(former_answers)]
        if how == "leave out":
            return []
        return None


async def pump(c, reader, writer, is_answer):
    seen = 0
    try:
        while data := await reader.read(1 << 16):
            if is_answer:
                if seen > 500:
                    former_answers.append(data)
            elif len(c.requests) < 1 << 16:
                c.requests += data
            parts = c.changed(data, is_answer, seen)
            if parts is None:
                break
            seen += len(data)
            for part in parts:
                writer.write(part)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def again(to, requests):
    """Sends a former connection's requests to the same server: whether it answers with success."""
    global served
    try:
        reader, writer = await connected(to)
        writer.write(requests)
        said = b""
        while data := await asyncio.wait_for(reader.read(1 << 16), 1):
            said += data
    except (OSError, asyncio.TimeoutError):
        pass
    else:
        writer.close()
    count("send again")
    served += said.count(b"HTTP/1.1 20")


async def taken(reader, writer):
    c = Connection()
    to = original(writer)
    try:
        there = await connected(to)
    except OSError:
        return writer.close()
    await asyncio.gather(pump(c, reader, there[1], False), pump(c, there[0], writer, True))
    if is_attacking and c.requests and rng.random() < 0.5:
        await again(to, c.requests)


async def main():
    global is_attacking
    server = await asyncio.start_server(taken, "0.0.0.0", 9999)
    nft(RULES)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while word := await loop.run_in_executor(None, sys.stdin.readline):
        is_attacking = word.strip() == "attack"
        nft("delete table ip middle\n")
        nft(RULES + DATAGRAMS * is_attacking)
        print("attacks" if is_attacking else "passes", flush=True)
    print(json.dumps({"done": done, "served": served}), flush=True)
    server.close()
    os._exit(0)


asyncio.run(main())
