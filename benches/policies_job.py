"""A training job for benches/policies.py: PyTorch's DataLoader over the files below a directory,
with sleeps in place of computing.

    policies_job.py ROOT OUT.json [--epochs N] [--workers N] [--batch N] [--compute MS] [--announce] [--shuffle 0|1] [--pause S]
                    [--ranks N] [--piece BYTES]

With `--piece` files are shards, read from front to back: an item of the loader is a piece, and the
order of the shards is shuffled. `--ranks` processes read a part of the order each, and wait for each
other after each batch.

OUT.json: for each epoch its seconds, the seconds that the training loop waited for the loader
(stall; the mean of the ranks), and a digest of the bytes read.
"""
import argparse, json, os, time, zlib
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

torch.set_num_threads(1)


class Files(Dataset):
    def __init__(self, root):
        self.files = sorted(os.path.join(d, f) for d, _, names in os.walk(root) for f in names)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with open(self.files[i], "rb") as f:
            return zlib.crc32(f.read(), i) & 0x7FFFFFFF


class Pieces(Dataset):
    """Shards in pieces: item `shard * pieces + n` is piece n of a shard."""

    def __init__(self, root, bytes_):
        self.files = Files(root).files
        self.bytes = bytes_
        self.pieces = -(-max(os.path.getsize(f) for f in self.files) // bytes_)
        self.open = None, None

    def __len__(self):
        return len(self.files) * self.pieces

    def __getitem__(self, i):
        shard, piece = divmod(i, self.pieces)
        if self.open[0] != shard:
            self.open = shard, open(self.files[shard], "rb", buffering=0)
        return zlib.crc32(self.open[1].read(self.bytes), i) & 0x7FFFFFFF


class InShards(Sampler):
    """All pieces of a shard, and then of the next one of the order of `shards`."""

    def __init__(self, shards, pieces):
        self.shards, self.pieces = shards, pieces

    def __iter__(self):
        return (shard * self.pieces + n for shard in self.shards for n in range(self.pieces))

    def __len__(self):
        return len(self.shards) * self.pieces

    def set_epoch(self, epoch):
        self.shards.set_epoch(epoch)


def loader_of(a, rank):
    """The loader of a rank, and what is to learn the number of the epoch."""
    dataset = Pieces(a.root, a.piece) if a.piece else Files(a.root)
    per_file = dataset.pieces if a.piece else 1
    files = DistributedSampler(range(len(dataset) // per_file), a.ranks, rank, shuffle=bool(a.shuffle), seed=1)
    sampler = InShards(files, per_file)
    # A shard is read by one worker: it would be opened by each otherwise.
    loader = DataLoader(dataset, a.batch, sampler=sampler, num_workers=a.workers, persistent_workers=a.workers > 0)
    if a.announce:
        import monarch_hints.torch

        loader = monarch_hints.torch.announcing(loader, lambda i: dataset.files[i // per_file])
    return loader, sampler


def train(a, rank, step, told):
    epochs, (loader, sampler) = [], loader_of(a, rank)
    for n in range(a.epochs):
        sampler.set_epoch(n)
        began, stall, digest, batches = time.perf_counter(), 0.0, 0, iter(loader)
        while True:
            t = time.perf_counter()
            batch = next(batches, None)
            stall += time.perf_counter() - t
            if batch is None:
                break
            digest ^= int(batch.sum())
            time.sleep(a.compute / 1000)
            step.wait()
        epochs.append({"seconds": time.perf_counter() - began, "stall": stall, "digest": digest})
    told.put(epochs)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("root")
    p.add_argument("out")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--compute", type=float, default=30)
    p.add_argument("--announce", action="store_true")
    p.add_argument("--shuffle", type=int, default=1)
    p.add_argument("--pause", type=float, default=0)
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--piece", type=int, default=0)
    a = p.parse_args()
    time.sleep(a.pause)
    context = torch.multiprocessing.get_context("fork")
    step, told = context.Barrier(a.ranks), context.Queue()
    others = [context.Process(target=train, args=(a, rank, step, told)) for rank in range(1, a.ranks)]
    for other in others:
        other.start()
    train(a, 0, step, told)
    ranks = [told.get() for _ in range(a.ranks)]
    for other in others:
        other.join()
    mean = lambda of, n: sum(rank[n][of] for rank in ranks) / a.ranks
    epochs = [{of: mean(of, n) for of in ("seconds", "stall", "digest")} for n in range(a.epochs)]
    with open(a.out, "w") as f:
        json.dump(epochs, f)


main()
