#!/usr/bin/env python3
"""numpy in all its ways of reading a file: load with every mapping mode, archives, fromfile,
memmap, text."""
import os
import numpy
import protocol

FILES, ROWS, COLUMNS = 4, 96, 64


def prepare(root):
    rng = numpy.random.default_rng(protocol.SEED)
    for i in range(FILES):
        a, b = rng.standard_normal((2, ROWS, COLUMNS))
        path = os.path.join(root, f"part{i}")
        numpy.save(path + ".npy", a)
        numpy.savez(path + ".npz", a=a, b=b)
        numpy.savez_compressed(path + ".small.npz", a=a, b=b)
        a.tofile(path + ".raw")
        numpy.savetxt(path + ".csv", a[:8], delimiter=",")


def load(path):
    return numpy.load(path)


def load_file(path):
    with open(path, "rb") as file:
        return numpy.load(file)


def mapped(path):
    return numpy.load(path, mmap_mode="r")


def mapped_private(path):
    """Changes its own pages, which no other process may see."""
    array = numpy.load(path, mmap_mode="c")
    before = array.copy()
    array[:] = 0
    array.flush()
    assert not array.any()
    return before


def mapped_shared(path):
    """A mapping that may be written: the file is opened for writing, so it is the PFS's file."""
    array = numpy.load(path, mmap_mode="r+")
    array += 1
    array.flush()
    return array


def archive(path):
    with numpy.load(path) as parts:
        return numpy.concatenate([parts[name] for name in parts.files])


def fromfile(path):
    return numpy.fromfile(path, count=ROWS * COLUMNS // 2, offset=COLUMNS * 8)


def memmap(path):
    return numpy.memmap(path, numpy.float64, "r", shape=(ROWS, COLUMNS))


def text(path):
    return numpy.loadtxt(path, delimiter=",")


if __name__ == "__main__":
    ways = {load: ".npy", load_file: ".npy", mapped: ".npy", mapped_private: ".npy", mapped_shared: ".npy",
            archive: ".npz", fromfile: ".raw", memmap: ".raw", text: ".csv"}
    protocol.main(prepare, {read.__name__: protocol.each(read, suffix) for read, suffix in ways.items()})
