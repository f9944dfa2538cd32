"""The global random states of torch, numpy and Python, for code that knows no other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def keep_random_state() -> Iterator[None]:
    """After the block the global generators (torch's of the CPU) are where they were before."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def seed_everything(seed: int) -> None:
    """Seed the global generators of torch (of the CPU), numpy and Python; `seed` is not negative."""
    torch.default_generator.manual_seed(seed)
    seed_numpy_and_python(seed)


def seed_numpy_and_python(seed: int) -> None:
    """Seed the global generators of numpy and Python, some 25 us; `seed` is not negative."""
    np.random.seed(seed % (1 << 32))
    random.seed(seed)
