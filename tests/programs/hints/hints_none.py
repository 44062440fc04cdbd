"""Without Monarch: all calls do nothing, and one warning says so."""

import warnings

import monarch_hints as m

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert not m.active()
    assert m.announce(["/a"]) == 0 and m.prefetch("/a") == 0 and m.residency("/a") is None
    assert not m.priority("/a", 1)
    for _ in range(3):
        with m.epoch(1):
            pass
    assert m.announce(None) == 0
assert len(caught) == 1, [str(w.message) for w in caught]

m._warned.clear()
with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert m.announce(["/a"]) == 0
try:
    with m.epoch():
        raise KeyError("the training's own")
except KeyError:
    pass
