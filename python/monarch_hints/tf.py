"""Announces the files of a `tf.data` pipeline at the beginning of each epoch.

    files = monarch_hints.tf.announcing(sorted(glob("/data/train-*")))            # a dataset of these names
    files = monarch_hints.tf.announcing(files, names)                             # a dataset of names, which will give these
    dataset = files.interleave(tf.data.TFRecordDataset, cycle_length=8)

The elements stay as they are: an empty dataset with a side effect is put before them. It runs whenever an iteration begins, also in a
`repeat()` behind it, and announces the names in the order given.

What comes later in the pipeline is not looked at: behind `shuffle` or `interleave` the files are announced, not quite their order. To have
the order, too, shuffle the names in Python and make the dataset anew for each epoch. (A shuffled dataset of names is not asked for its order:
it would come in another one after that.) The side effect is Python code in this process: pipelines that are sent elsewhere (the tf.data
service, saved graphs) announce nothing.
"""

from . import _warn, active, announce, epoch_begin

__all__ = ["announcing"]


def announcing(files, names=None):
    """A dataset of file names that are announced whenever an iteration begins.

    `files`: a list of names, or a dataset of names; for that give the list, too. What cannot be announced comes back as it is (a list as a
    dataset).
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
