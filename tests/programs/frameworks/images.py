"""A folder of small images, JPEG and PNG, one directory per class: the data of every program that
reads pictures."""
import os
import numpy
from PIL import Image
from protocol import SEED

CLASSES, EACH, SIDE = 2, 16, 32


def make(root):
    rng = numpy.random.default_rng(SEED)
    for label in range(CLASSES):
        os.mkdir(os.path.join(root, f"class{label}"))
        for i in range(EACH):
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=numpy.uint8)
            Image.fromarray(pixels).save(os.path.join(root, f"class{label}", f"{i:03}.{('jpg', 'png')[i % 2]}"))
