#!/usr/bin/env python3
"""TensorFlow: shards of TFRecords, several read at a time, shuffled, a small network.

    records.py make ROOT --files N --size BYTES     the data
    records.py ROOT [--parallel N ...]              the job (see job.py)
"""
import os, sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job

RECORD, CLASSES = 100_000, 20


def make(root, files, size):
    import numpy, tensorflow as tf
    os.makedirs(f"{root}/records", exist_ok=True)
    for i in range(files):
        rng = numpy.random.default_rng(i)
        with tf.io.TFRecordWriter(f"{root}/records/part-{i:05}-of-{files:05}.tfrecord") as out:
            for n in range(max(1, size // RECORD)):
                feature = {"x": tf.train.Feature(bytes_list=tf.train.BytesList(value=[rng.bytes(RECORD)])),
                           "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[(i + n) % CLASSES]))}
                out.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def epochs(root, a):
    import tensorflow as tf
    tf.keras.utils.set_random_seed(7)
    tf.config.experimental.enable_op_determinism()
    weights = tf.Variable(tf.random.normal((768, CLASSES), seed=7, stddev=0.01))

    def parse(record):
        one = tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature((), tf.string), "y": tf.io.FixedLenFeature((), tf.int64)})
        return tf.cast(tf.io.decode_raw(tf.strings.substr(one["x"], 0, 768), tf.uint8), tf.float32) / 255, one["y"]

    @tf.function
    def train(inputs, labels):
        with tf.GradientTape() as tape:
            logits = tf.matmul(inputs, weights)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    names = sorted(tf.io.gfile.glob(f"{root}/records/*.tfrecord"))
    # (There is nothing to tune, and TensorFlow's tuning thread, Model::OptimizeLoop, sometimes
    # misses the end of an epoch, which then takes up to a minute longer.)
    fixed = tf.data.Options()
    fixed.autotune.enabled = False
    epoch = 0
    while True:
        order = tf.data.Dataset.from_tensor_slices(names).shuffle(len(names), seed=epoch)
        records = order.interleave(tf.data.TFRecordDataset, cycle_length=a.parallel, num_parallel_calls=a.parallel, deterministic=True)
        batches = records.map(parse, 2, deterministic=True).shuffle(256, seed=epoch).batch(a.batch).prefetch(2).with_options(fixed)
        epoch += 1
        yield job.read_epoch(batches, lambda batch: (float(train(*batch)), len(batch[1])), a)


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        word = lambda name: int(sys.argv[sys.argv.index(name) + 1])
        make(sys.argv[2], word("--files"), word("--size"))
    else:
        job.main(epochs, parallel=4, batch=32)
