"""Shared by the framework programs: command line, epochs, digests.

    PROGRAM prepare DIR                     makes the data
    PROGRAM run DIR [--how WAYS] [--epochs N]    reads it in each way and prints one line per way and epoch

    way W epoch E items N bytes B data SHA [loss HEX]
    way W failed

A program gives `main` a function that makes its data and its ways of reading. A way is a generator
function of the data's directory: it sets up what lives as long as the job and then yields an
`Epoch` for each epoch, without end. The lines do not depend on the order of reading, so any two
runs over the same data may be compared.
"""
import argparse, hashlib, os, random, sys, traceback

SEED = 7


class Epoch:
    """What was read in one epoch: the sum of the digests of its items, and the loss of what was
    trained on them."""

    def __init__(self):
        self.items = self.bytes = self.sum = 0
        self.loss = None

    def add(self, name, value):
        """An item: bytes, an array, a tensor, or what numpy makes an array of."""
        kind, data = as_bytes(value)
        item = hashlib.blake2b(f"{name} {kind} ".encode(), digest_size=16)
        item.update(data)
        self.items += 1
        self.bytes += len(data)
        self.sum = (self.sum + int.from_bytes(item.digest(), "little")) % 2**128

    def __str__(self):
        loss = "" if self.loss is None else f" loss {float(self.loss).hex()}"
        return f"items {self.items} bytes {self.bytes} data {self.sum:032x}{loss}"


def as_bytes(value):
    """Type and shape, and the bytes."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "", bytes(value)
    import numpy
    array = numpy.ascontiguousarray(value.numpy() if hasattr(value, "numpy") else value)
    return f"{array.dtype} {array.shape}", array.tobytes()


def files(root, *suffixes):
    """The files below a directory with these endings, sorted."""
    found = (os.path.join(top, name) for top, _, names in os.walk(root) for name in names)
    return sorted(path for path in found if path.endswith(suffixes))


def shuffled(items, epoch):
    """A fresh order for each epoch, the same in every run."""
    order = list(items)
    random.Random(SEED + epoch).shuffle(order)
    return order


def each(read, *suffixes):
    """The way that reads the files one by one, in a new order each epoch: `read(path)` returns what
    was in it."""
    def way(root):
        for number in range(10**9):
            epoch = Epoch()
            for path in shuffled(files(root, *suffixes), number):
                epoch.add(os.path.relpath(path, root), read(path))
            yield epoch
    return way


def main(prepare, ways):
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("root")
    parser.add_argument("--how", default=",".join(ways), help="comma list of: " + " ".join(ways))
    parser.add_argument("--epochs", type=int, default=3)
    a = parser.parse_args()
    if a.what == "prepare":
        os.makedirs(a.root)
        return prepare(a.root)
    failed = [how for how in a.how.split(",") if not run(how, ways[how](a.root), a.epochs)]
    sys.exit(1 if failed else 0)


def run(how, epochs, number):
    """Prints a line per epoch; a way that fails says so and lets the others have their turn."""
    try:
        for i, epoch in zip(range(number), epochs):
            if epoch is not None:
                print(f"way {how} epoch {i} {epoch}", flush=True)
        epochs.close()
        return True
    except Exception:
        traceback.print_exc()
        print(f"way {how} failed", flush=True)
        return False
