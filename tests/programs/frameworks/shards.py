#!/usr/bin/env python3
"""webdataset: tar shards read in sequence, by one process or by the workers of PyTorch's
DataLoader."""
import io, os, tarfile
import numpy
import protocol

SHARDS, SAMPLES, SIDE = 4, 12, 16


def prepare(root):
    rng = numpy.random.default_rng(protocol.SEED)
    for i in range(SHARDS):
        with tarfile.open(os.path.join(root, f"shard{i}.tar"), "w") as tar:
            for n in range(SAMPLES):
                array = io.BytesIO()
                numpy.save(array, rng.integers(0, 256, (SIDE, SIDE, 3), dtype=numpy.uint8))
                for name, data in ((f"{i}-{n}.npy", array.getvalue()), (f"{i}-{n}.cls", b"%d" % (n % 3))):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def samples(root, number):
    import webdataset
    shards = protocol.shuffled(protocol.files(root, ".tar"), number)
    return webdataset.WebDataset(shards, shardshuffle=False, workersplitter=webdataset.split_by_worker,
                                 empty_check=False).shuffle(8, seed=protocol.SEED).decode()


def epochs(root, batches):
    """`batches` makes an iterable of samples."""
    for number in range(10**9):
        epoch = protocol.Epoch()
        for sample in batches(samples(root, number)):
            epoch.add(f"{sample['__key__']} {sample['cls']}", sample["npy"])
        yield epoch


def plain(root):
    return epochs(root, iter)


def workers(root):
    from torch.utils.data import DataLoader
    return epochs(root, lambda data: DataLoader(data, batch_size=None, num_workers=2))


if __name__ == "__main__":
    protocol.main(prepare, {"plain": plain, "workers": workers})
