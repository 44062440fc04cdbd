"""PyTorch: the same batches with and without announcements, and the order announced is the one that
comes."""

import random
import warnings

import torch
from torch.utils.data import (BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, SequentialSampler, Subset,
                              SubsetRandomSampler, WeightedRandomSampler)
from torch.utils.data.distributed import DistributedSampler

import monarch_hints.torch
from monarch_hints.torch import announcing
from recorded import announced, recorded

try:
    import numpy
except ImportError:
    numpy = None

N = 203
PATHS = ["/data/%d.jpg" % i for i in range(N)]


class Files(Dataset):
    samples = [(p, 0) for p in PATHS]

    def __getitem__(self, index):
        # What a sample is depends on the random state of its worker, too.
        return index, float(torch.rand(())), random.random()

    def __len__(self):
        return N


class Python(Sampler):
    """Draws from Python's and numpy's generators, and from one of its own; counts its iterations."""

    def __init__(self):
        self.own, self.count = random.Random(3), 0

    def __iter__(self):
        self.count += 1
        order = list(range(N))
        random.shuffle(order)
        self.own.shuffle(order)
        if numpy is not None:
            order = [order[i] for i in numpy.random.permutation(N)]
        # Lazily, as long as the loader continues.
        for i in order:
            yield (i + self.count) % N

    def __len__(self):
        return N


def generator():
    return torch.Generator().manual_seed(5)


DATA = Files()
SAMPLERS = {
    "random": lambda: RandomSampler(DATA),
    "generator": lambda: RandomSampler(DATA, generator=generator()),
    "replacement": lambda: RandomSampler(DATA, replacement=True, num_samples=150),
    "weighted": lambda: WeightedRandomSampler([1 + i % 7 for i in range(N)], 180),
    "subset": lambda: SubsetRandomSampler(range(0, N, 2), generator=generator()),
    "distributed": lambda: DistributedSampler(DATA, num_replicas=4, rank=1, shuffle=True, seed=2),
    "sequential": lambda: SequentialSampler(DATA),
    "python": Python,
}


def seed():
    torch.manual_seed(11)
    random.seed(12)
    if numpy is not None:
        numpy.random.seed(13)


def epochs(loader, sampler, set_epoch):
    """All that three epochs give, with a model that draws between batches."""
    seen = []
    for n in range(3):
        if set_epoch and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(10 + 2 * n)
        epoch, it = [], iter(loader)
        drawn = [float(torch.rand(()))]
        for batch in it:
            epoch.append([x.tolist() for x in batch])
            drawn += [float(torch.rand(())), random.random()]
            if numpy is not None:
                drawn.append(float(numpy.random.rand()))
        seen.append((epoch, drawn))
    return seen


def files(epoch):
    return [PATHS[int(i)] for batch in epoch[0] for i in (batch[0] if isinstance(batch[0], list) else batch[:1])]


def compare(name, make, wrap, set_epoch=True):
    seed()
    loader, sampler = make(lambda s: s)
    plain = epochs(loader, sampler, set_epoch)
    recorded()
    seed()
    loader, sampler = wrap()
    wrapped = epochs(loader, sampler, set_epoch)
    assert wrapped == plain, name
    said = announced()
    if said is not None:
        assert [f for _, f in said] == [files(e) for e in wrapped], name
        numbers = [10, 12, 14] if set_epoch and hasattr(sampler, "set_epoch") else [0, 1, 2]
        assert [n for n, _ in said] == numbers, (name, said)


def loaders(name, sampler, **options):
    def make(around):
        s = sampler()
        return DataLoader(DATA, batch_size=8, sampler=around(s), **options), s

    def in_batches(around):
        s = sampler()
        return DataLoader(DATA, batch_sampler=around(BatchSampler(s, 8, drop_last=False)), **options), s

    def around_loader(make):
        loader, s = make(lambda s: s)
        wrapped = announcing(loader)
        assert isinstance(wrapped, DataLoader) and len(wrapped) == len(loader)
        return wrapped, s

    def around_sampler(make, paths):
        return make(lambda s: announcing(s, paths))

    compare(name + " loader", make, lambda: around_loader(make))
    compare(name + " sampler", make, lambda: around_sampler(make, PATHS))
    compare(name + " batch sampler", in_batches, lambda: around_sampler(in_batches, lambda i: PATHS[i]))
    compare(name + " loader of batches", in_batches, lambda: around_loader(in_batches))


for name, sampler in SAMPLERS.items():
    loaders(name, sampler)
for name in ("random", "replacement", "distributed"):
    loaders(name + " workers", SAMPLERS[name], num_workers=2)
loaders("persistent", SAMPLERS["random"], num_workers=2, persistent_workers=True)


def shuffled(**options):
    def make(_):
        loader = DataLoader(DATA, batch_size=16, shuffle=True, **options)
        return loader, loader.sampler

    def wrap():
        loader, s = make(None)
        return announcing(loader), s
    return make, wrap


compare("shuffle", *shuffled())


def with_generator(_):
    loader = DataLoader(DATA, batch_size=16, shuffle=True, generator=generator())
    return loader, loader.sampler


def with_generator_wrapped():
    loader, s = with_generator(None)
    return announcing(loader), s


compare("loader with a generator", with_generator, with_generator_wrapped)


def unset(_):
    s = SAMPLERS["distributed"]()
    return DataLoader(DATA, batch_size=8, sampler=s), s


def unset_wrapped():
    loader, s = unset(None)
    return announcing(loader), s


# set_epoch is never called: epochs are counted.
seed()
loader, s = unset_wrapped()
for _ in range(3):
    list(loader)
said = announced()
assert said is None or [n for n, _ in said] == [0, 1, 2], said

# Single samples, without batches.
single = DataLoader(DATA, batch_size=None, sampler=SequentialSampler(DATA))
assert [int(x[0]) for x in announcing(single)] == list(range(N))
said = announced()
assert said is None or said == [(0, PATHS)]

# Two files a sample; a part of a dataset.
list(announcing(SequentialSampler(range(3)), lambda i: ["/i%d" % i, "/l%d" % i]))
said = announced()
assert said is None or said == [(0, ["/i0", "/l0", "/i1", "/l1", "/i2", "/l2"])]
list(announcing(DataLoader(Subset(DATA, [5, 3, 9]), batch_size=2)))
said = announced()
assert said is None or said == [(0, [PATHS[5], PATHS[3], PATHS[9]])], said


# A sampler without an end is followed for a while.
class Endless(Sampler):
    def __init__(self):
        pass

    def __iter__(self):
        while True:
            yield int(torch.randint(N, ()))


monarch_hints.torch._ENDLESS = 100
seed()
it = iter(Endless())
plain = [next(it) for _ in range(200)]
seed()
it = iter(announcing(Endless(), PATHS))
assert [next(it) for _ in range(200)] == plain
said = announced()
assert said is None or said == [(0, [PATHS[i] for i in plain[:100]])]


# What has no order, no files, or fails: the training continues, one warning each.
class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(20))


def fails(_):
    raise KeyError("no such sample")


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        stream = DataLoader(Stream(), batch_size=4)
        assert announcing(stream) is stream and len(list(stream)) == 5
        tensors = DataLoader(list(range(6)))
        assert announcing(tensors) is tensors
        seed()
        plain = list(RandomSampler(DATA))
        seed()
        assert list(announcing(RandomSampler(DATA), fails)) == plain
        assert announcing(None) is None
texts = [str(w.message) for w in caught if "monarch_hints" in str(w.message)]
assert len(texts) == 3, texts
recorded()
