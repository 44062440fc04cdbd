"""A training job for benches/policies.py: PyTorch's DataLoader over the files below a directory,
with sleeps in place of computing.

    policies_job.py ROOT OUT.json [--epochs N] [--workers N] [--batch N] [--compute MS] [--announce] [--shuffle 0|1] [--pause S]

OUT.json: for each epoch its seconds, the seconds that the training loop waited for the loader
(stall), and a digest of the bytes read.
"""
import argparse, json, os, time, zlib
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Files(Dataset):
    def __init__(self, root):
        self.files = sorted(os.path.join(d, f) for d, _, names in os.walk(root) for f in names)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with open(self.files[i], "rb") as f:
            return zlib.crc32(f.read(), i) & 0x7FFFFFFF


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
    a = p.parse_args()
    time.sleep(a.pause)
    torch.manual_seed(1)
    dataset = Files(a.root)
    loader = DataLoader(dataset, a.batch, shuffle=bool(a.shuffle), num_workers=a.workers, persistent_workers=a.workers > 0)
    if a.announce:
        import monarch_hints.torch
        loader = monarch_hints.torch.announcing(loader)
    epochs = []
    for _ in range(a.epochs):
        began, stall, digest, batches = time.perf_counter(), 0.0, 0, iter(loader)
        while True:
            t = time.perf_counter()
            batch = next(batches, None)
            stall += time.perf_counter() - t
            if batch is None:
                break
            digest ^= int(batch.sum())
            time.sleep(a.compute / 1000)
        epochs.append({"seconds": time.perf_counter() - began, "stall": stall, "digest": digest})
    with open(a.out, "w") as f:
        json.dump(epochs, f)


main()
