#!/usr/bin/env python3
"""Weights of a size that is copied in chunks: safetensors whole, by slice and by tensor, and
PyTorch's own format, read and mapped; the package's reader into memory."""
import os, sys
import numpy, torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save_file
import protocol

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "python"))
TENSORS = 12


def prepare(root):
    torch.manual_seed(protocol.SEED)
    for i in range(2):
        tensors = {f"layer.{n:02}": torch.randn(1024, 512) for n in range(TENSORS)}
        torch.save(tensors, os.path.join(root, f"weights{i}.pt"))
        save_file(tensors, os.path.join(root, f"model-{i + 1:05}-of-00002.safetensors"))


def joined(tensors):
    return numpy.concatenate([tensors[name].numpy().ravel() for name in sorted(tensors)])


def whole(path):
    return joined(load_file(path))


def part(path):
    with safe_open(path, framework="pt") as file:
        return joined({name: file.get_tensor(name) for name in ("layer.03", "layer.07")})


def slices(path):
    with safe_open(path, framework="pt") as file:
        return file.get_slice("layer.05")[100:200, :7].numpy()


def in_memory(path):
    import monarch
    return joined(load(bytes(monarch.load(path))))


def saved(path):
    return joined(torch.load(path, weights_only=True))


def saved_mapped(path):
    return joined(torch.load(path, mmap=True, weights_only=True))


def saved_in_memory(path):
    import monarch
    return joined(torch.load(monarch.load_file(path), weights_only=True))


if __name__ == "__main__":
    ways = {whole: (".safetensors",), part: (".safetensors",), slices: (".safetensors",), in_memory: (".safetensors",),
            saved: (".pt",), saved_mapped: (".pt",), saved_in_memory: (".pt",)}
    protocol.main(prepare, {read.__name__: protocol.each(read, *suffixes) for read, suffixes in ways.items()})
