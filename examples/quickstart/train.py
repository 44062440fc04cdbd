#!/usr/bin/env python3
"""Trains a small network on images in class directories: an ordinary PyTorch script without Monarch
in it.

    train.py DATA [--epochs 3] [--workers 2] [--batch-size 32]

`DATA/train` has one directory of JPEG files for each class, and is read by torchvision's
ImageFolder, shuffled for each epoch. `DATA/val` has shards with records in the framing of TFRecord,
which are read in order after each epoch. Seeds are fixed and one thread computes, so that two runs
over the same bytes print the same losses and the same checksum of the trained weights.
"""
import argparse
import glob
import hashlib
import io
import os
import struct
import time

import torch
import torchvision
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchvision import transforms

NORMALIZE = [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)]
AUGMENT = transforms.Compose([transforms.Resize(72), transforms.RandomCrop(64), *NORMALIZE])
PLAIN = transforms.Compose([transforms.Resize(64), *NORMALIZE])


def records(path):
    """The records of a shard: length, checksum of the length, data, checksum of the data."""
    with open(path, "rb", buffering=1 << 20) as shard:
        while header := shard.read(12):
            length = struct.unpack("<Q", header[:8])[0]
            yield shard.read(length)
            shard.read(4)


class Shards(IterableDataset):
    """Images from shards. A record is one byte of label and a JPEG. Each worker reads its own
    shards."""

    def __init__(self, pattern, transform):
        self.paths, self.transform = sorted(glob.glob(pattern)), transform

    def __iter__(self):
        worker = get_worker_info()
        mine = self.paths[worker.id :: worker.num_workers] if worker else self.paths
        for path in mine:
            for record in records(path):
                yield self.transform(Image.open(io.BytesIO(record[1:])).convert("RGB")), record[0]


def network(classes):
    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 5, stride=2, padding=2), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(*block(3, 16), *block(16, 32), *block(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes))


def train(model, loader, optimizer, loss_of):
    model.train()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def accuracy(model, loader):
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
            seen += len(labels)
    return right / max(seen, 1)


def checksum(model):
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    started = time.perf_counter()
    images = torchvision.datasets.ImageFolder(os.path.join(args.data, "train"), AUGMENT)
    shards = Shards(os.path.join(args.data, "val", "*.tfrecord"), PLAIN)
    options = dict(batch_size=args.batch_size, num_workers=args.workers)
    training, validation = DataLoader(images, shuffle=True, **options), DataLoader(shards, **options)
    model, loss_of = network(len(images.classes)), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(1, args.epochs + 1):
        loss = train(model, training, optimizer, loss_of)
        right = accuracy(model, validation)
        now = time.perf_counter()
        print(f"epoch {epoch} loss {loss!r} accuracy {right:.4f} seconds {now - started:.3f}", flush=True)
        started = now
    print(f"model {checksum(model)}", flush=True)


if __name__ == "__main__":
    main()
