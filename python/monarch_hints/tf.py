"""Announces the files of a `tf.data` pipeline at the beginning of each epoch.

    files = monarch_hints.tf.announcing(sorted(glob("/data/train-*")))            # a dataset of these names
    files = monarch_hints.tf.announcing(files, names)                             # a dataset that yields these names
    dataset = files.interleave(tf.data.TFRecordDataset, cycle_length=8)

The elements do not change: an empty dataset with a side effect is put before them. It runs whenever
an iteration begins, also in a `repeat()` after it, and announces the names in the given order.

Later stages of the pipeline are not examined: before a `shuffle` or `interleave` the files are
announced, but not exactly their order. For the order, shuffle the names in Python and build the
dataset again for each epoch. (A shuffled dataset of names is not read for its order, because that
would change the order.) The side effect is Python code in this process: pipelines that run
elsewhere (the tf.data service, saved graphs) announce nothing.
"""

from . import _warn, active, announce, epoch_begin

__all__ = ["announcing"]


def announcing(files, names=None):
    """A dataset of file names that are announced whenever an iteration begins.

    `files`: a list of names, or a dataset of names; a dataset needs the list in `names`. When the
    names cannot be announced the dataset is returned unchanged (a list as a dataset).
    """
    import tensorflow as tf

    dataset = files
    if not isinstance(files, tf.data.Dataset):
        names = list(files) if names is None else names
        dataset = tf.data.Dataset.from_tensor_slices(list(files))
    try:
        return _with_announcement(tf, dataset, names)
    except Exception as e:
        _warn("tf.announcing: %s: %s" % (type(e).__name__, e))
        return dataset


def _with_announcement(tf, dataset, names):
    if not active():
        _warn("this process does not run under Monarch, hints do nothing")
        return dataset
    if names is None:
        _warn("the order of a dataset is not known: give names")
        return dataset
    if dataset.element_spec != tf.TensorSpec((), tf.string):
        _warn("only datasets of file names can be announced")
        return dataset
    names, count = list(names), [0]

    def begin():
        epoch_begin(count[0])
        count[0] += 1
        announce(names)
        return b""

    def effect(_):
        nothing = tf.py_function(begin, [], tf.string)
        nothing.set_shape(())
        return nothing

    first = tf.data.Dataset.range(1).map(effect).filter(lambda _: False)
    cardinality = dataset.cardinality()
    both = first.concatenate(dataset)
    if int(cardinality) >= 0:
        both = both.apply(tf.data.experimental.assert_cardinality(cardinality))
    return both
