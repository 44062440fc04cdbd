#!/usr/bin/env python3
"""PyTorch: a folder of JPEG files, one directory for each class, a DataLoader with workers, a small
network.

    pictures.py make ROOT --files N          the data
    pictures.py ROOT [--workers W ...]       the job (see job.py)
"""
import os, random, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job

CLASSES, SIDE = 20, 224


def make(root, files):
    import numpy
    from PIL import Image
    for label in range(CLASSES):
        os.makedirs(f"{root}/train/class{label:02}", exist_ok=True)
    for i in range(files):
        rng = numpy.random.default_rng(i)
        # Coarse shapes under noise: as large as photographs of this size, and not compressible any
        # further.
        pixels = rng.integers(0, 256, (SIDE // 4, SIDE // 4, 3), dtype=numpy.uint8).repeat(4, 0).repeat(4, 1)
        pixels = pixels // 2 + rng.integers(0, 128, (SIDE, SIDE, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).save(f"{root}/train/class{i % CLASSES:02}/{i:06}.jpg", quality=95)


def epochs(root, a):
    import torch
    from torchvision import datasets, transforms
    torch.set_num_threads(1)
    torch.manual_seed(7)
    shrink = transforms.Compose([transforms.PILToTensor(), transforms.CenterCrop(64)])
    data = datasets.ImageFolder(f"{root}/train", shrink)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 31 * 31, CLASSES))
    step = torch.optim.SGD(net.parameters(), 0.01)
    order = torch.Generator().manual_seed(7)
    batches = torch.utils.data.DataLoader(data, a.batch, shuffle=True, generator=order, num_workers=a.workers, persistent_workers=a.workers > 0)

    def train(batch):
        inputs, labels = batch
        return job.descend(step, torch.nn.functional.cross_entropy(net(inputs / 255), labels)), len(labels)

    while True:
        yield job.read_epoch(batches, train, a)


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make(sys.argv[2], int(sys.argv[sys.argv.index("--files") + 1]))
    else:
        job.main(epochs, workers=2, batch=32)
