"""Reads whole files into memory, several pieces at a time."""

import io
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Union

PathLike = Union[str, "os.PathLike[str]"]

#: Bytes of one read: a few chunks of a large file.
_PIECE_BYTES = 8 << 20


def _read_piece(fd: int, view: memoryview, start: int, path: str) -> None:
    end = min(start + _PIECE_BYTES, len(view))
    while start < end:
        count = os.preadv(fd, [view[start:end]], start)
        if count == 0:
            raise EOFError("%s was cut off while it was read: %d of %d bytes" % (path, start, len(view)))
        start += count


def load(path: PathLike, threads: int = 4) -> memoryview:
    """Reads a file into memory and returns the bytes, as a view that may be written to.

    ``threads`` pieces are read at a time. The memory belongs to the view and to what is made from
    it (``torch.frombuffer``, slices). Below ``monarch run`` each piece waits for its chunks alone, so
    a file whose copy is not complete leaves the PFS once and at the rate of the copy; without it
    this is a plain parallel read. Raises what ``open`` and ``read`` raise, and `EOFError` for a file
    that became shorter.
    """
    name = os.fspath(path)
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            # Also files that do not say how long they are, as in /proc.
            with open(fd, "rb", closefd=False) as file:
                return memoryview(bytearray(file.read()))
        view = memoryview(mmap.mmap(-1, size))
        starts = range(0, size, _PIECE_BYTES)
        with ThreadPoolExecutor(max(1, min(threads, len(starts))), "monarch-load") as pool:
            for done in [pool.submit(_read_piece, fd, view, start, name) for start in starts]:
                done.result()
        return view
    finally:
        os.close(fd)


class _ViewFile(io.RawIOBase):
    """A file that reads from memory, without a copy of all of it."""

    def __init__(self, view: memoryview, name: str) -> None:
        super().__init__()
        self._view, self._at, self.name = view, 0, name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._view)}[whence]
        if base + offset < 0:
            raise OSError(22, "Invalid argument")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        into = memoryview(buffer).cast("B")
        count = max(0, min(len(into), len(self._view) - self._at))
        into[:count] = self._view[self._at:self._at + count]
        self._at += count
        return count


def load_file(path: PathLike, threads: int = 4) -> io.BufferedReader:
    """Reads a file into memory as `load` does and returns it as an open binary file, for functions
    that take one: ``torch.load(monarch.load_file(path))``."""
    return io.BufferedReader(_ViewFile(load(path, threads), os.fspath(path)))
