#!/usr/bin/env python3
"""Pictures by the decoders that are used without a framework: Pillow and OpenCV, from paths, open
files and bytes."""
import cv2, numpy
from PIL import Image
import images, protocol


def pillow(path):
    with Image.open(path) as image:
        return numpy.asarray(image.convert("RGB"))


def pillow_file(path):
    with open(path, "rb") as file:
        return numpy.asarray(Image.open(file).convert("RGB"))


def opencv(path):
    return cv2.imread(path, cv2.IMREAD_COLOR)


def opencv_bytes(path):
    return cv2.imdecode(numpy.fromfile(path, numpy.uint8), cv2.IMREAD_COLOR)


if __name__ == "__main__":
    protocol.main(images.make, {read.__name__: protocol.each(read, ".jpg", ".png")
                                for read in (pillow, pillow_file, opencv, opencv_bytes)})
