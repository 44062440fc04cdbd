#!/usr/bin/env python3
"""Tensors by PyTorch's own format, read and mapped, by safetensors, and pictures by torchvision's
decoder."""
import os
import numpy, torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
import images, protocol

FILES = 4


def prepare(root):
    images.make(root)
    torch.manual_seed(protocol.SEED)
    for i in range(FILES):
        tensors = {"weight": torch.randn(64, 128), "bias": torch.randn(128), "steps": torch.arange(7)}
        torch.save(tensors, os.path.join(root, f"part{i}.pt"))
        save_file(tensors, os.path.join(root, f"part{i}.safetensors"))


def joined(tensors):
    """All tensors of a file."""
    return numpy.concatenate([tensors[name].numpy().ravel().astype(float) for name in sorted(tensors)])


def load(path):
    return joined(torch.load(path))


def load_mapped(path):
    return joined(torch.load(path, mmap=True))


def safetensors(path):
    return joined(load_file(path))


def safetensors_slices(path):
    with safe_open(path, framework="pt") as file:
        return file.get_slice("weight")[5:20]


def decoder(path):
    from torchvision.io import ImageReadMode, read_image
    return read_image(path, ImageReadMode.RGB)


if __name__ == "__main__":
    ways = {load: (".pt",), load_mapped: (".pt",), safetensors: (".safetensors",), safetensors_slices: (".safetensors",),
            decoder: (".jpg", ".png")}
    protocol.main(prepare, {read.__name__: protocol.each(read, *suffixes) for read, suffixes in ways.items()})
