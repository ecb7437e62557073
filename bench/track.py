"""A file of 24 bytes in which a worker counts its handlers' calls, so that counting costs every contender the same."""

import mmap
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_LAYOUT = struct.Struct("<qdd")  # count, first call, last call (seconds since the epoch, by the machine's one clock)


@dataclass(frozen=True)
class Count:
    """Handlers that have begun so far; first_at is 0.0 until there is one."""

    calls: int
    first_at: float
    last_at: float


class Tracker:
    """The worker's side: `hit` in each handler."""

    def __init__(self, path: str):
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._calls, self._first = 0, 0.0
        self._one = threading.Lock()

    def hit(self) -> None:
        now = time.time()
        with self._one:
            self._calls += 1
            self._first = self._first or now
            _LAYOUT.pack_into(self._map, 0, self._calls, self._first, now)


def prepare(path: Path) -> Path:
    path.write_bytes(bytes(_LAYOUT.size))
    return path


def read(path) -> Count:
    with open(path, "rb") as file:
        return Count(*_LAYOUT.unpack(file.read(_LAYOUT.size)))
