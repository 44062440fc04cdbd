#!/usr/bin/env python3
"""Whole files by TensorFlow: list_files with read_file and a decoder, and the file functions of
tf.io.gfile."""
import os, tempfile
from tensorflow_job import Network, tf
import protocol

CLASSES, EACH, SIDE = 2, 12, 16


def prepare(root):
    for label in range(CLASSES):
        os.mkdir(os.path.join(root, f"class{label}"))
        pixels = tf.random.stateless_uniform((EACH, SIDE, SIDE, 3), (protocol.SEED, label), 0, 256, tf.int32)
        for n, picture in enumerate(tf.cast(pixels, tf.uint8)):
            tf.io.write_file(os.path.join(root, f"class{label}", f"{n:03}.png"), tf.io.encode_png(picture))


def read(path):
    picture = tf.io.decode_png(tf.io.read_file(path), 3)
    return tf.ensure_shape(picture, (SIDE, SIDE, 3)), tf.strings.to_number(tf.strings.substr(path, -9, 1), tf.int64)


def whole(root):
    network = Network(SIDE, CLASSES)
    names = tf.data.Dataset.list_files(os.path.join(root, "*", "*.png"), seed=protocol.SEED)
    while True:
        epoch = protocol.Epoch()
        epoch.loss = 0.0
        for inputs, labels in names.map(read, 2).batch(8).prefetch(1):
            for one, label in zip(inputs, labels):
                epoch.add(int(label), one)
            epoch.loss += float(network.train(inputs, labels))
        yield epoch


def gfile(root):
    """Walk, glob, stat, read at once and in pieces, copy out."""
    while True:
        epoch = protocol.Epoch()
        for top, _, names in tf.io.gfile.walk(root):
            for name in names:
                path = os.path.join(top, name)
                with tf.io.gfile.GFile(path, "rb") as file:
                    head, size = file.read(8), file.size()
                    file.seek(4)
                    epoch.add(f"{name} {size} {head}", file.read())
                epoch.add(f"{name} length", str(tf.io.gfile.stat(path).length))
        with tempfile.TemporaryDirectory() as copies:
            for path in tf.io.gfile.glob(os.path.join(root, "class1", "*")):
                to = os.path.join(copies, os.path.basename(path))
                tf.io.gfile.copy(path, to)
                epoch.add(f"{os.path.basename(path)} copied", tf.io.gfile.GFile(to, "rb").read())
        yield epoch


if __name__ == "__main__":
    protocol.main(prepare, {"whole": whole, "gfile": gfile})
