"""Random numbers as pure functions of integers: splitmix64, the same on every machine and numpy version."""

from __future__ import annotations

import hashlib
import os
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(words: Words) -> Words:
    """The finaliser of splitmix64 (Steele et al. 2014), element by element."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))


def hash_words(*parts: int | NDArray[np.int64] | Words) -> Words:
    """One uint64 per element from integers and equally long arrays; a change of any part changes
    everything."""
    # Arrays with one element at least: numpy warns when scalars overflow, and wrapping is the point here.
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        words = np.array([part & _MASK], dtype=np.uint64) if isinstance(part, int) else part.astype(np.uint64)
        state = mix((state ^ words) + np.uint64(_GOLDEN))
    return state


def hash_int(*parts: int) -> int:
    """`hash_words` of plain integers, as a plain integer."""
    state = 0
    for part in parts:
        state = _mix_int(((state ^ (part & _MASK)) + _GOLDEN) & _MASK)
    return state


def hash_path(relative_path: bytes) -> int:
    """64 bits of a file's path below its concept folder (bytes as on disk, `/` between folders)."""
    return int.from_bytes(hashlib.blake2b(relative_path, digest_size=8).digest(), "little")


def path_bytes(relative_path: str) -> bytes:
    """The bytes of a file name, also where they are not UTF-8."""
    return os.fsencode(relative_path)


def fractions(words: Words) -> NDArray[np.float64]:
    """Hashes as numbers in [0, 1) with 53 random bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Draws:
    """A tiny stream of random numbers for one sample: a pure function of its seed, and about 20 times cheaper
    than making a numpy Generator per sample."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def fraction(self) -> float:
        """The next number in [0, 1)."""
        return (self._next() >> 11) * 2.0**-53

    def below(self, count: int) -> int:
        """The next integer in [0, count)."""
        return self._next() * count >> 64

    def order(self, count: int) -> list[int]:
        """0 ... count-1 in random order (Fisher-Yates)."""
        places = list(range(count))
        for last in range(count - 1, 0, -1):
            other = self.below(last + 1)
            places[last], places[other] = places[other], places[last]
        return places

    def _next(self) -> int:
        self._state = (self._state + _GOLDEN) & _MASK
        return _mix_int(self._state)


def _mix_int(word: int) -> int:
    word = (word ^ (word >> 30)) * _FIRST & _MASK
    word = (word ^ (word >> 27)) * _SECOND & _MASK
    return word ^ (word >> 31)
