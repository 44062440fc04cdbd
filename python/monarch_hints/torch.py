"""Announces the order of a PyTorch sampler or data loader, epoch by epoch.

    loader = monarch_hints.torch.announcing(loader)                 # torchvision's ImageFolder and its like
    loader = monarch_hints.torch.announcing(loader, paths)          # paths[i] is the file of sample i
    loader = monarch_hints.torch.announcing(loader, lambda i: [image(i), label(i)])

How it works. When an epoch begins, the sampler is run once for its indices alone, and their files
are announced. Then all random states are restored, so that the epoch continues as without this
module: the same samples, drawn at the same moments from the same random numbers. Saved and restored
are the states of torch's CPU generator, of generators that the samplers hold, of Python's `random`
and of numpy's (if it was imported), and the attributes of the samplers. A sampler that draws from
other states, or changes lists that it holds, is not for this module. The extra run costs the
sampler's own time once more, and memory for the indices of an epoch (8 bytes each and more, as in
the sampler).

Epochs are announced with the number that `set_epoch` gave to the sampler, otherwise counted from 0.
"""

import copy
import itertools
import random
import sys

from . import _guarded, _warn, active, announce, epoch_begin

__all__ = ["announcing"]

#: Most indices, or batches, that are announced of a sampler without a length.
_ENDLESS = 1 << 20


def announcing(of, paths=None):
    """Wraps a DataLoader (and returns a loader), or a Sampler, DistributedSampler, BatchSampler or
    similar object for a new DataLoader.

    `paths`: a list, a function from an index to a path or to a list of paths, or None: then the
    dataset's `samples`, `imgs` or `files` are used. Without Monarch, and when the order cannot be
    known, the argument is returned unchanged.
    """
    try:
        return _wrapped(of, paths)
    except Exception as e:
        _warn("torch.announcing: %s: %s" % (type(e).__name__, e))
        return of


def _wrapped(of, paths):
    if not active():
        _warn("this process does not run under Monarch, hints do nothing")
        return of
    if not (hasattr(of, "dataset") and hasattr(of, "num_workers")):
        look = _paths(paths, of)
        return of if look is None else _Sampler(of, look)
    # A data loader.
    import torch.utils.data as data
    if isinstance(of.dataset, data.IterableDataset):
        _warn("the dataset is iterable, its order is not known beforehand")
        return of
    look = _paths(paths, of)
    if look is None:
        return of
    # A loader refuses another sampler, so a copy of it gets the wrapped one. The copy is an
    # ordinary DataLoader.
    loader = copy.copy(of)
    drawn = "sampler" if of.batch_sampler is None else "batch_sampler"
    loader.__dict__[drawn] = _Sampler(getattr(of, drawn), look)
    return loader


def _paths(paths, of):
    """A function from an index to the path or paths of its sample."""
    if callable(paths):
        return paths
    if paths is None:
        paths = _of_dataset(_dataset(of))
    if paths is None:
        _warn("the files of the dataset are not known: give paths")
        return None
    return paths.__getitem__


def _dataset(of):
    """The dataset of a loader or sampler, searched through wrapped samplers."""
    for _ in range(8):
        for name in ("dataset", "data_source"):
            if hasattr(of, name):
                return getattr(of, name)
        of = getattr(of, "sampler", None)
    return None


def _of_dataset(dataset):
    if dataset is None:
        return None
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # Subset
        inner = _of_dataset(dataset.dataset)
        return None if inner is None else _Through(inner, dataset.indices)
    for name in ("samples", "imgs", "files"):
        found = getattr(dataset, name, None)
        if found is not None and hasattr(found, "__getitem__"):
            return _First(found)
    return None


class _First:
    """Items of the form (path, class), as paths."""

    def __init__(self, items):
        self.items = items

    def __getitem__(self, index):
        item = self.items[index]
        return item[0] if isinstance(item, (tuple, list)) else item


class _Through:
    def __init__(self, inner, indices):
        self.inner, self.indices = inner, indices

    def __getitem__(self, index):
        return self.inner[int(self.indices[index])]


def _parts(sampler):
    """A sampler and the samplers that it draws from."""
    found, todo = [], [sampler]
    while todo and len(found) < 32:
        one = todo.pop()
        if one is None or any(one is f for f in found):
            continue
        found.append(one)
        todo += [getattr(one, name, None) for name in ("sampler", "batch_sampler", "base_sampler")]
    return found


class _States:
    """All random states that a sampler may draw from."""

    def __init__(self, sampler):
        import torch
        self.torch = torch
        # Samplers that count their iterations.
        self.samplers = [(s, dict(s.__dict__)) for s in _parts(sampler) if hasattr(s, "__dict__")]
        held = [v for s in _parts(sampler) for v in getattr(s, "__dict__", {}).values()]
        self.generators = [(g, g.get_state()) for g in held if isinstance(g, torch.Generator)]
        self.own = [(r, r.getstate()) for r in held if isinstance(r, random.Random)]
        self.cpu, self.python = torch.get_rng_state(), random.getstate()
        self.numpy = sys.modules.get("numpy")
        legacy = getattr(self.numpy, "random", None)
        self.numpy_state = legacy.get_state() if hasattr(legacy, "get_state") else None
        kinds = tuple(k for k in (getattr(legacy, n, None) for n in ("Generator", "RandomState")) if isinstance(k, type))
        self.arrays = []
        for value in held:
            if kinds and isinstance(value, kinds):
                bits = getattr(value, "bit_generator", getattr(value, "_bit_generator", None))
                self.arrays.append((bits, bits.state))

    def restore(self):
        for sampler, fields in self.samplers:
            sampler.__dict__.clear()
            sampler.__dict__.update(fields)
        self.torch.set_rng_state(self.cpu)
        random.setstate(self.python)
        for generator, state in self.generators:
            generator.set_state(state)
        for own, state in self.own:
            own.setstate(state)
        if self.numpy_state is not None:
            self.numpy.random.set_state(self.numpy_state)
        for bits, state in self.arrays:
            bits.state = state


def _indices(drawn):
    """Indices, of a sampler or of batches."""
    for one in drawn:
        if isinstance(one, (list, tuple)):
            yield from _indices(one)
        else:
            yield int(one)


@_guarded(None)
def _announce(sampler, look, numbers):
    """Announces what the sampler will draw, and restores all states."""
    files, states = [], _States(sampler)
    try:
        # Samplers without an end are run for a limited number of batches.
        batches = len(sampler) if hasattr(sampler, "__len__") else _ENDLESS
        for index in _indices(itertools.islice(iter(sampler), batches)):
            found = look(index)
            if isinstance(found, (list, tuple)):
                files += found
            else:
                files.append(found)
    finally:
        states.restore()
    epoch_begin(numbers.next(sampler))
    announce(files)


class _Numbers:
    """Numbers of epochs: those of `set_epoch` while it is called, otherwise counted."""

    def __init__(self):
        self.set, self.last = None, -1

    def next(self, sampler):
        given = [p.epoch for p in _parts(sampler) if hasattr(p, "set_epoch") and isinstance(getattr(p, "epoch", None), int)]
        if given and given[0] != self.set and given[0] >= 0:
            self.set = self.last = given[0]
        else:
            self.last += 1
        return self.last


class _Sampler:
    """A sampler that announces what it will draw when an iteration begins."""

    def __init__(self, sampler, look):
        self._monarch = (sampler, look, _Numbers())

    def __iter__(self):
        # (A generator: nothing is drawn before the first index is requested, as in the samplers of
        # torch.)
        sampler, look, numbers = self._monarch
        _announce(sampler, look, numbers)
        yield from sampler

    def __len__(self):
        return len(self._monarch[0])

    def __getattr__(self, name):
        # Other attributes that a loader or its user needs: set_epoch, batch_size, ...
        if name.startswith("_monarch") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._monarch[0], name)
