#!/usr/bin/env python3
"""HDF5 by h5py: files opened again each epoch, files held open for the whole job, a virtual data
set over all of them."""
import os
import h5py, numpy
import protocol

FILES, ROWS, COLUMNS = 4, 64, 32


def prepare(root):
    rng = numpy.random.default_rng(protocol.SEED)
    layout = h5py.VirtualLayout((FILES, ROWS, COLUMNS), "f8")
    for i in range(FILES):
        name = f"part{i}.h5"
        with h5py.File(os.path.join(root, name), "w") as file:
            file["plain"] = rng.standard_normal((ROWS, COLUMNS))
            file.create_dataset("packed", data=rng.integers(0, 9, (ROWS, COLUMNS)), chunks=(8, COLUMNS), compression="gzip")
        layout[i] = h5py.VirtualSource(name, "plain", (ROWS, COLUMNS))
    with h5py.File(os.path.join(root, "all.hdf"), "w") as file:
        file.create_virtual_dataset("plain", layout)


def rows(file, order):
    """As a data loader does: one row at a time."""
    return numpy.stack([numpy.concatenate([file[name][row] for name in ("plain", "packed")]) for row in order])


def reopened(path):
    with h5py.File(path, "r") as file:
        return rows(file, range(ROWS))


def held(root):
    """Each file is opened once, when it is first needed."""
    opened = {}

    def read(path):
        if path not in opened:
            opened[path] = h5py.File(path, "r")
        return rows(opened[path], range(0, ROWS, 2))
    yield from protocol.each(read, ".h5")(root)


def virtual(path):
    with h5py.File(path, "r") as file:
        return file["plain"][:]


if __name__ == "__main__":
    protocol.main(prepare, {"reopened": protocol.each(reopened, ".h5"), "held": held,
                            "virtual": protocol.each(virtual, ".hdf")})
