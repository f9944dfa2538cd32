"""Random numbers as pure functions of integers: splitmix64, identical on every machine and numpy version."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

UInt64Array: TypeAlias = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def hash_uint64(*parts: int | NDArray[np.int64] | UInt64Array) -> UInt64Array:
    """One uint64 hash per element of integers and arrays [n] (integers broadcast); every part affects all bits."""
    # Arrays of at least one element: numpy warns when scalars overflow, and here they are meant to wrap around.
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        values = np.array([part & _MASK], dtype=np.uint64) if isinstance(part, int) else part.astype(np.uint64)
        state = _mix((state ^ values) + np.uint64(_GOLDEN))
    return state


def hash_bytes(data: bytes) -> int:
    """A 64-bit hash of a byte string (BLAKE2b)."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def to_unit_interval(hashes: UInt64Array) -> NDArray[np.float64]:
    """uint64 hashes as float64 in [0, 1) with 53 random bits."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


class SampleRng:
    """A tiny random stream for one sample: a pure function of its seed, and about 20 times cheaper than a numpy
    Generator per sample."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def uniform(self) -> float:
        """The next number in [0, 1)."""
        return (self._next() >> 11) * 2.0**-53

    def integer(self, count: int) -> int:
        """The next integer in [0, count)."""
        return self._next() * count >> 64

    def permutation(self, count: int) -> list[int]:
        """0 ... count-1 in random order (Fisher-Yates)."""
        places = list(range(count))
        for last in range(count - 1, 0, -1):
            other = self.integer(last + 1)
            places[last], places[other] = places[other], places[last]
        return places

    def _next(self) -> int:
        self._state = (self._state + _GOLDEN) & _MASK
        return _mix_int(self._state)


def _mix(values: UInt64Array) -> UInt64Array:
    """The finaliser of splitmix64 (Steele et al. 2014, doi:10.1145/2660193.2660195), element by element."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))


def _mix_int(value: int) -> int:
    """`_mix` of one plain integer."""
    value = (value ^ (value >> 30)) * _FIRST & _MASK
    value = (value ^ (value >> 27)) * _SECOND & _MASK
    return value ^ (value >> 31)
