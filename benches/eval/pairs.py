#!/usr/bin/env python3
"""PyTorch: pairs of a small and a large image; a network learns to make the large one
(super-resolution).

    pairs.py make ROOT --files N          the data: half of them large
    pairs.py ROOT [--workers W ...]       the job (see job.py)
"""
import os, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job

HIGH, WIDE, SCALE, CROP = 1024, 1536, 4, 64


def make(root, files):
    import numpy
    from PIL import Image
    for kind in ("large", "small"):
        os.makedirs(f"{root}/{kind}", exist_ok=True)
    for i in range(files // 2):
        rng = numpy.random.default_rng(i)
        # Coarse shapes under noise, as in pictures.py.
        pixels = rng.integers(0, 256, (HIGH // 8, WIDE // 8, 3), dtype=numpy.uint8).repeat(8, 0).repeat(8, 1)
        pixels = pixels // 2 + rng.integers(0, 128, (HIGH, WIDE, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).save(f"{root}/large/{i:05}.jpg", quality=95)
        Image.fromarray(pixels[::SCALE, ::SCALE]).save(f"{root}/small/{i:05}.jpg", quality=95)


def epochs(root, a):
    import numpy, torch
    from PIL import Image
    torch.set_num_threads(1)
    torch.manual_seed(7)
    names = sorted(os.listdir(f"{root}/large"))

    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return len(names)

        def __getitem__(self, i):
            # Always the same part of a picture, so that losses can be compared.
            x, y = (i * 37) % (WIDE // SCALE - CROP), (i * 53) % (HIGH // SCALE - CROP)
            with Image.open(f"{root}/small/{names[i]}") as small, Image.open(f"{root}/large/{names[i]}") as large:
                small, large = small.crop((x, y, x + CROP, y + CROP)), large.crop((x * SCALE, y * SCALE, (x + CROP) * SCALE, (y + CROP) * SCALE))
                return [torch.from_numpy(numpy.asarray(p).copy()).permute(2, 0, 1).float() / 255 for p in (small, large)]

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 3 * SCALE * SCALE, 3, padding=1), torch.nn.PixelShuffle(SCALE))
    step = torch.optim.SGD(net.parameters(), 0.01)
    order = torch.Generator().manual_seed(7)
    batches = torch.utils.data.DataLoader(Pairs(), a.batch, shuffle=True, generator=order, num_workers=a.workers, persistent_workers=a.workers > 0)

    def train(batch):
        small, large = batch
        return job.descend(step, torch.nn.functional.mse_loss(net(small), large)), 2 * len(small)

    while True:
        yield job.read_epoch(batches, train, a)


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make(sys.argv[2], int(sys.argv[sys.argv.index("--files") + 1]))
    else:
        job.main(epochs, workers=2, batch=8)
