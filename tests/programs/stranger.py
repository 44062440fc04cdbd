#!/usr/bin/env python3
"""Talks to an agent's port as other nodes do not: raw bytes, with and without a proof.

    stranger.py HOST PORT KEY_IN_HEX INDEX_IN_HEX NAME_OF_A_NODE

One JSON object: for each case the status and body of the answer (status 0: hung up without one),
and which bytes of files or names came that should not.
"""
import hashlib, hmac, json, os, socket, sys, time

from aegis import mac as tag_of

HOST, PORT, KEY, INDEX, ME = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3]), *sys.argv[4:]


def connect():
    return socket.create_connection((HOST, PORT), 5)


def answer(c):
    """Status, headers, body of the next answer that is final."""
    f = b""
    while True:
        try:
            while b"\r\n\r\n" not in f:
                part = c.recv(1 << 16)
                if not part:
                    return 0, {}, f
                f += part
        except OSError:
            return 0, {}, f
        head, f = f.split(b"\r\n\r\n", 1)
        lines = head.decode("latin1").split("\r\n")
        status = int(lines[0].split()[1])
        if status >= 200:
            break
    headers = {k.lower(): v for k, v in (l.split(": ", 1) for l in lines[1:])}
    want = int(headers.get("content-length", 0))
    while len(f) < want and (part := c.recv(1 << 16)):
        f += part
    return status, headers, f


def ask(c, text, body=b""):
    try:
        c.sendall(text.encode("latin1") + body)
    except OSError:
        pass
    return answer(c)


def challenge(c):
    return ask(c, "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")[1]["www-authenticate"].split('"')[1]


def proof(nonce, key=KEY, me=ME):
    cnonce = os.urandom(16).hex()

    def code(label):
        fields = [label, "4", nonce, cnonce, me, HOST]
        return hmac.new(key, "".join(f"{len(x)}:{x}," for x in fields).encode(), hashlib.sha256)
    line = f'Authorization: Monarch node="{me}", nonce="{nonce}", cnonce="{cnonce}", mac="{code("monarch-client").hexdigest()}"\r\n'
    return line, [code(f"monarch-client {what}").digest() for what in ("heads", "bodies")]


class Inside:
    """A connection that has proven itself: what it sends is authentic."""

    def __init__(self, me=ME):
        self.c, self.count = connect(), 0
        self.auth, (self.heads, self.bodies) = proof(challenge(self.c), me=me)
        self.first = self.seal(get("/v1/probe?1", self.auth))
        self.status, headers, _ = ask(self.c, self.first.decode("latin1"))
        assert me != ME or (self.status, "monarch-mac" in headers) == (200, True), self.status

    def seal(self, text, body=b""):
        lines = text[:-2].encode("latin1")
        if body:
            lines += b"Monarch-Tag: %s\r\n" % tag_of(self.bodies[:16], self.count.to_bytes(16, "little"), bytes(32) + body).hex().encode()
        code = hmac.new(self.heads, self.count.to_bytes(8, "little") + lines, hashlib.sha256).hexdigest()[:32]
        self.count += 1
        return lines + f"Monarch-Mac: {code}\r\n\r\n".encode()

    def ask(self, text, body=b""):
        return ask(self.c, self.seal(text, body).decode("latin1"), body)


def get(path, extra=""):
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{extra}\r\n"


def post(path, length):
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"


out = {}


def case(name, given):
    status, headers, body = given
    odd = sorted(k for k in headers if k.startswith("monarch") and k not in ("monarch-mac", "monarch-tag"))
    out[name] = dict(status=status, body=body[:300].decode("latin1"), odd=odd, tag="monarch-tag" in headers)


# Without a proof.
for path in ("/v1/status", f"/v1/files/{INDEX}/2", f"/v1/files/{INDEX}/2?keep", "/v1/check", "/v1/probe?1000", "/nothing"):
    case(f"stranger get {path.replace(INDEX, 'INDEX')}", ask(connect(), get(path)))
for path in ("/v1/changed", "/v1/held", "/v1/join", "/v1/bid/0123456789abcdef"):
    case(f"stranger post {path}", ask(connect(), post(path, 40), bytes(40)))
c = connect()
case("wrong key", ask(c, get("/v1/status", proof(challenge(c), bytes(32))[0])))
c = connect()
nonce = challenge(c)
case("no sense", ask(c, get("/v1/status", "Authorization: Basic dXNlcjpwYXNz\r\n")))
member = Inside()
first = member.first.decode("latin1")
case("replayed, no challenge", ask(connect(), first))
other = connect()
challenge(other)
case("replayed, another challenge", ask(other, first))
case("replayed, the same connection", ask(member.c, first))
case("replayed, without a code", ask(Inside().c, get("/v1/status")))
c = connect()
for n in range(3):
    last = ask(c, get("/v1/status"))
case("asked three times", last)
case("and is shut", ask(c, get("/v1/status")))

# Bytes that are no request.
case("head too large", ask(connect(), get("/v1/status", "X: " + "a" * 20000 + "\r\n")))
case("many headers", ask(connect(), get("/v1/status", "X: y\r\n" * 1000)))
case("body too large", ask(connect(), post("/v1/held", 17 << 20)))
case("garbage", ask(connect(), "\x16\x03\x01\x02\x00\x01\xfc\x03\x03\r\n\r\n"))
case("no host", ask(connect(), "GET /v1/status HTTP/1.1\r\n\r\n"))
case("two lengths", ask(connect(), "POST /v1/held HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"))
case("chunked", ask(connect(), "POST /v1/held HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
case("old version", ask(connect(), "GET /v1/status HTTP/1.0\r\n\r\n"))
case("another method", ask(connect(), "DELETE /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"))
for path in ("/v1/files/../../etc/passwd", "/v1/files/%2e%2e/%2e%2e/etc/passwd", "/etc//passwd", "http://x/etc/passwd"):
    case(f"stranger path {path}", ask(connect(), get(path)))

# With a proof: a client that knows the secret gets indexed files and nothing else.
for path in ("/v1/files/../../etc/passwd", "/v1/files/%2e%2e/etc/passwd", f"/v1/files/{INDEX}/%2e%2e"):
    case(f"member path {path.replace(INDEX, 'INDEX')}", Inside().ask(get(path)))
case("member good file", Inside().ask(get(f"/v1/files/{INDEX}/2")))
for number in ("4000000000", "1000000", "0", "-1", "99999999999999999999", "3/../4", "passwd", ""):
    case(f"member file {number}", Inside().ask(get(f"/v1/files/{INDEX}/{number}")))
case("member index", Inside().ask(get(f"/v1/files/{'0' * 32}/2")))
case("member short index", Inside().ask(get("/v1/files/12/3")))
case("member range", Inside().ask(get(f"/v1/files/{INDEX}/2", "Range: bytes=99999999-\r\n")))
changed = Inside()
case("changed on its way", ask(changed.c, changed.seal(get("/v1/probe?1")).decode("latin1").replace("?1", "?2")))
changed = Inside()
case("changed body", ask(changed.c, changed.seal(post("/v1/held", 4), b"abcd").decode("latin1"), b"abce"))
changed = Inside()
later = [changed.seal(get(f"/v1/probe?{n}")).decode("latin1") for n in range(2)]
case("changed order", ask(changed.c, later[1]))
rogue = Inside(me="no-node-of-the-job")
out["rogue member"] = dict(status=rogue.status, body="", odd=[])
case("member large body", Inside().ask(post("/v1/held", 17 << 20)))
case("member nothing", Inside().ask(get("/v1/nothing")))
case("member probe", Inside().ask(get(f"/v1/probe?{1 << 40}")))
for path in ("/v1/held", "/v1/changed", "/v1/join"):
    for name, body in (("short", b"\x01"), ("long", b"\xff" * 4096)):
        case(f"member {name} {path}", Inside().ask(post(path, len(body)), body))

# A client that says nothing is not kept for long.
start = time.monotonic()
silent = [connect() for _ in range(50)]
for c in silent:
    c.settimeout(10)
    while c.recv(4096):
        pass
out["silent"] = dict(status=0, body=str(time.monotonic() - start), odd=[])
print(json.dumps(out))
