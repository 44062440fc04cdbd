#!/usr/bin/env python3
"""PyTorch: many text files, each a series of measurements, and a recurrent network, like an
application of FanStore.

    text.py make ROOT --files N --size BYTES     the data
    text.py ROOT [--workers W ...]               the job (see job.py)
"""
import os, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job

STEPS = 64


def make(root, files, size):
    """A time and a value in each line, as converters write them: 12 bits in many digits, which
    compress well."""
    import numpy
    os.makedirs(f"{root}/series", exist_ok=True)
    for i in range(files):
        rng = numpy.random.default_rng(i)
        values = numpy.cumsum(rng.normal(0, 3, size // 30)).astype(int) % 4096
        with open(f"{root}/series/{i:06}.txt", "w") as out:
            out.writelines(f"{n * 1e-4:.7E} {v / 4096 * 2.5:.9E}\n" for n, v in enumerate(values))


def epochs(root, a):
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(7)
    folder = f"{root}/series"
    names = sorted(os.listdir(folder))

    class Series(torch.utils.data.Dataset):
        def __len__(self):
            return len(names)

        def __getitem__(self, i):
            with open(f"{folder}/{names[i]}") as f:
                lines = f.readlines()
            every = max(1, len(lines) // STEPS)
            return torch.tensor([float(line.split()[1]) for line in lines[::every][:STEPS]])

    net, head = torch.nn.GRU(1, 16, batch_first=True), torch.nn.Linear(16, 1)
    step = torch.optim.SGD([*net.parameters(), *head.parameters()], 0.01)
    order = torch.Generator().manual_seed(7)
    batches = torch.utils.data.DataLoader(Series(), a.batch, shuffle=True, generator=order, num_workers=a.workers, persistent_workers=a.workers > 0)

    def train(series):
        guess = head(net(series[:, :-1, None])[0])[:, :, 0]
        return job.descend(step, torch.nn.functional.mse_loss(guess, series[:, 1:])), len(series)

    while True:
        yield job.read_epoch(batches, train, a)


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        word = lambda name: int(sys.argv[sys.argv.index(name) + 1])
        make(sys.argv[2], word("--files"), word("--size"))
    else:
        job.main(epochs, workers=2, batch=32)
