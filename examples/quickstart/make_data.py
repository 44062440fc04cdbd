#!/usr/bin/env python3
"""Makes a small data set of images; the same arguments give the same bytes:

    make_data.py DIRECTORY [--images 1600] [--shards 4]

    DIRECTORY/train/CLASS/NNNNN.jpg                    images in class directories, as ImageFolder reads them
    DIRECTORY/val/shard-NNNNN-of-NNNNN.tfrecord        a quarter as many images, as records of shards

The class is the direction of stripes, under noise, in any colour and position: a small network
learns it within three epochs, and noise makes the files as large as photographs of this size.
Records have the framing of TFRecord, so that other readers can read the shards:

    u64 length | u32 masked CRC-32C of the length | data | u32 masked CRC-32C of the data      (little-endian)
"""
import argparse
import io
import os
import struct

import numpy as np
from PIL import Image

CLASSES = 8
SIZE = 128
NOISE = 36
QUALITY = 95


def crc_table():
    """The effect of each byte on a CRC-32C (Castagnoli, reflected)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


TABLE = crc_table()


def crc32c(blocks):
    """The CRC-32C of each of many byte strings. Each step takes one byte of all strings, because
    numpy is fast for wide steps.

    >>> [hex(crc) for crc in crc32c([b"123456789", b"", b"a"])]
    ['0xe3069283', '0x0', '0xc1d04330']
    """
    lengths = np.array([len(block) for block in blocks])
    order = np.argsort(-lengths)
    wide = np.zeros((lengths.max(), len(blocks)), dtype=np.uint8)
    for column, block in enumerate(order):
        wide[: lengths[block], column] = np.frombuffer(blocks[block], dtype=np.uint8)
    active = np.searchsorted(-lengths[order], -np.arange(1, len(wide) + 1), side="right")
    crc = np.full(len(blocks), 0xFFFFFFFF, dtype=np.uint32)
    for row, width in zip(wide, active):
        old = crc[:width]
        crc[:width] = TABLE[(old ^ row[:width]) & 0xFF] ^ (old >> 8)
    result = np.empty_like(crc)
    result[order] = ~crc
    return result.tolist()


def masked(crc):
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_shard(path, data):
    """Writes records; `data` is a list of byte strings."""
    lengths = [struct.pack("<Q", len(record)) for record in data]
    with open(path, "wb") as shard:
        for length, of_length, record, of_record in zip(lengths, crc32c(lengths), data, crc32c(data)):
            shard.write(length + struct.pack("<I", masked(of_length)) + record + struct.pack("<I", masked(of_record)))


def jpeg(rng, label):
    """An image of a class."""
    angle = np.pi * label / CLASSES
    y, x = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)
    wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * rng.uniform(0.20, 0.30) + rng.uniform(0, 6.3))
    pixels = 128 + wave[..., None] * rng.uniform(-70, 70, 3) + rng.normal(0, NOISE, (SIZE, SIZE, 1))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def make(directory, images, shards, progress=lambda done: None):
    """Makes the data set and returns its bytes; `progress` gets the number of images after each."""
    rng = np.random.default_rng(7)
    total = done = 0
    for label in range(CLASSES):
        os.makedirs(os.path.join(directory, "train", f"class-{label}"))
    for number in range(images):
        label = number % CLASSES
        data = jpeg(rng, label)
        total += len(data)
        with open(os.path.join(directory, "train", f"class-{label}", f"{number:05}.jpg"), "wb") as file:
            file.write(data)
        done += 1
        progress(done)
    os.makedirs(os.path.join(directory, "val"))
    for shard in range(shards):
        data = []
        for number in range(shard, images // 4, shards):
            data.append(bytes([number % CLASSES]) + jpeg(rng, number % CLASSES))
            done += 1
            progress(done)
        path = os.path.join(directory, "val", f"shard-{shard:05}-of-{shards:05}.tfrecord")
        write_shard(path, data)
        total += os.path.getsize(path)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--shards", type=int, default=4)
    args = parser.parse_args()
    print(f"{make(args.directory, args.images, args.shards)} bytes")


if __name__ == "__main__":
    main()
