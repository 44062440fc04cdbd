#!/usr/bin/env python3
"""TFRecordDataset: several files read in parallel, interleaved as file patterns are, and with
checkpoints below the root.

The records lie in DIR/records; `checkpoints` writes into DIR/checkpoints-$CHECKPOINTS after each
epoch and continues from what it reads back.
"""
import os
from tensorflow_job import Network, tf
import protocol

FILES, RECORDS, SIDE, CLASSES, BATCH = 6, 12, 16, 3, 12


def prepare(root):
    os.mkdir(os.path.join(root, "records"))
    for i in range(FILES):
        pixels = tf.random.stateless_uniform((RECORDS, SIDE, SIDE, 3), (protocol.SEED, i), 0, 256, tf.int32)
        with tf.io.TFRecordWriter(os.path.join(root, "records", f"part{i}.tfrecord")) as file:
            for n, picture in enumerate(tf.cast(pixels, tf.uint8)):
                feature = {"x": tf.train.Feature(bytes_list=tf.train.BytesList(value=[picture.numpy().tobytes()])),
                           "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[n % CLASSES]))}
                file.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def parse(record):
    shape = {"x": tf.io.FixedLenFeature((), tf.string), "y": tf.io.FixedLenFeature((), tf.int64)}
    one = tf.io.parse_single_example(record, shape)
    return tf.reshape(tf.io.decode_raw(one["x"], tf.uint8), (SIDE, SIDE, 3)), one["y"]


def train(network, records):
    """One epoch."""
    epoch = protocol.Epoch()
    epoch.loss = 0.0
    batches = records.map(parse, 2).shuffle(32, seed=protocol.SEED).batch(BATCH).prefetch(1)
    for inputs, labels in batches:
        for one, label in zip(inputs, labels):
            epoch.add(int(label), one)
        epoch.loss += float(network.train(inputs, labels))
    return epoch


def parallel(root):
    network = Network(SIDE, CLASSES)
    for number in range(10**9):
        names = protocol.shuffled(protocol.files(os.path.join(root, "records"), ".tfrecord"), number)
        yield train(network, tf.data.TFRecordDataset(names, num_parallel_reads=2))


def interleaved(root):
    network = Network(SIDE, CLASSES)
    pattern = os.path.join(root, "records", "*.tfrecord")
    while True:
        names = tf.data.Dataset.list_files(pattern, seed=protocol.SEED)
        yield train(network, names.interleave(tf.data.TFRecordDataset, cycle_length=3, num_parallel_calls=2))


def checkpoints(root):
    where = os.path.join(root, "checkpoints-" + os.environ["CHECKPOINTS"])
    for epoch in parallel(root):
        network = Network(SIDE, CLASSES)
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(network=network), where, max_to_keep=2)
        manager.restore_or_initialize()
        for batch in range(3):
            network.kernel.assign_add(tf.ones_like(network.kernel) / (batch + 2))
        saved = manager.save()
        for name in tf.train.load_checkpoint(saved).get_variable_to_shape_map():
            if "VARIABLE_VALUE" in name:
                epoch.add(name, tf.train.load_variable(where, name))
        for name in sorted(tf.io.gfile.listdir(where)):
            epoch.add("name", name)
        yield epoch


if __name__ == "__main__":
    protocol.main(prepare, {"parallel": parallel, "interleaved": interleaved, "checkpoints": checkpoints})
