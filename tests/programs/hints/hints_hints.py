"""The plain functions."""

import pathlib
import warnings

import monarch_hints as m
from recorded import REAL, expect

assert m.active()
m.announce(["/a", pathlib.Path("/b c"), b"/d\xff", "", "/e\0/f"])
expect(["announce", "/a", "/b c", "/d\udcff"])
m.announce("/one")
m.announce([])
m.prefetch(p for p in ("/x", "/y"))
expect(["announce", "/one"], ["announce"], ["prefetch", "/x", "/y"])
with m.epoch(7):
    pass
with m.epoch():
    pass
expect(["begin", 7], ["end"], ["begin", -1], ["end"])
m.priority("/a", -1)
expect(["priority", -1, "/a"])
if not REAL:
    assert m.residency("/a") == m.IN_TIER and m.announce(["/a", "/b"]) == 2
assert m.residency("/none") is None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert m.announce(None) == 0 and m.announce([3]) == 0 and m.epoch_begin("x") is False
    assert m.priority("/a", "high") is False and m.residency(None) is None
assert len(caught) == 5, [str(w.message) for w in caught]
