"""AEGISMAC-128L (draft-irtf-cfrg-aegis-aead), as the nodes' protocol uses it for bodies: slow and short."""


def _sbox():
    p = q = 1
    box = [0x63] * 256
    while True:
        p ^= (p << 1) ^ (0x11b if p & 0x80 else 0)
        p &= 0xff
        for n in (1, 2, 4):
            q ^= q << n
        q &= 0xff
        q ^= 0x09 if q & 0x80 else 0
        turned = (q | q << 8)
        box[p] = (q ^ turned >> 7 ^ turned >> 6 ^ turned >> 5 ^ turned >> 4) & 0xff ^ 0x63
        if p == 1:
            return box


SBOX = _sbox()


def _twice(x):
    return (x << 1 ^ (0x1b if x & 0x80 else 0)) & 0xff


def aes_round(state, key):
    """One round of AES: SubBytes, ShiftRows, MixColumns, AddRoundKey."""
    s = [SBOX[state[(n + 4 * (n % 4)) % 16]] for n in range(16)]
    out = bytearray(16)
    for c in range(0, 16, 4):
        a = s[c:c + 4]
        every = a[0] ^ a[1] ^ a[2] ^ a[3]
        for r in range(4):
            out[c + r] = a[r] ^ every ^ _twice(a[r] ^ a[(r + 1) % 4]) ^ key[c + r]
    return bytes(out)


def xor(*words):
    out = bytearray(16)
    for word in words:
        for n, byte in enumerate(word):
            out[n] ^= byte
    return bytes(out)


C0 = bytes.fromhex("000101020305080d1522375990e97962")
C1 = bytes.fromhex("db3d18556dc22ff12011314273b528dd")


def update(s, m0, m1):
    keys = [xor(s[0], m0), s[1], s[2], s[3], xor(s[4], m1), s[5], s[6], s[7]]
    return [aes_round(s[(n - 1) % 8], keys[n]) for n in range(8)]


def mac(key, nonce, data):
    """The tag of 16 bytes."""
    s = [xor(key, nonce), C1, C0, C1, xor(key, nonce), xor(key, C0), xor(key, C1), xor(key, C0)]
    for _ in range(10):
        s = update(s, nonce, key)
    padded = data + bytes(-len(data) % 32)
    for at in range(0, len(padded), 32):
        s = update(s, padded[at:at + 16], padded[at + 16:at + 32])
    t = xor(s[2], (8 * len(data)).to_bytes(8, "little") + (128).to_bytes(8, "little"))
    for _ in range(7):
        s = update(s, t, t)
    return xor(*s[:7])


assert mac(bytes.fromhex("1001" + "00" * 14), bytes.fromhex("100002" + "00" * 13), bytes(range(35))).hex() == "d3f09b2842ad301687d6902c921d7818"
