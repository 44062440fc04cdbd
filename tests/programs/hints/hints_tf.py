"""TensorFlow: names are announced whenever an iteration begins, and the elements stay as they are."""

import os
import tempfile
import warnings

import tensorflow as tf

from monarch_hints.tf import announcing
from recorded import announced, recorded

names = ["/data/train-%d" % i for i in range(5)]


def texts(dataset):
    return [x.decode() for x in dataset.as_numpy_iterator()]


recorded()


def expect(*epochs):
    said = announced()
    assert said is None or said == list(epochs), said


ours = announcing(names)
assert ours.element_spec == tf.TensorSpec((), tf.string) and int(ours.cardinality()) == 5
assert texts(ours) == names
expect((0, names))
assert texts(ours.repeat(2)) == names * 2
expect((1, names), (2, names))

# Shuffled behind it, the order stays that of the seed.
orders = []
for around in (lambda d: d, lambda d: announcing(d, names)):
    tf.random.set_seed(4)
    files = around(tf.data.Dataset.from_tensor_slices(names)).shuffle(5)
    orders.append([texts(files), texts(files)])
assert orders[0] == orders[1], orders
expect((0, names), (1, names))

with tempfile.TemporaryDirectory() as scratch:
    records = []
    for n in range(3):
        records.append(os.path.join(scratch, "r%d" % n))
        with tf.io.TFRecordWriter(records[-1]) as to:
            for k in range(4):
                to.write(b"%d-%d" % (n, k))
    plain = tf.data.Dataset.from_tensor_slices(records).interleave(tf.data.TFRecordDataset, cycle_length=2)
    ours = announcing(records).interleave(tf.data.TFRecordDataset, cycle_length=2)
    assert texts(ours) == texts(plain)
    expect((0, records))

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    unknown = tf.data.Dataset.from_tensor_slices(names)
    assert announcing(unknown) is unknown
    numbers = tf.data.Dataset.range(3)
    assert announcing(numbers, names) is numbers
found = [str(w.message) for w in caught if "monarch_hints" in str(w.message)]
assert len(found) == 2, found
