"""Numbers that are not finite are found in every number format, and names of their layers said."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from modules.diffusion.finite import is_finite, names_not_finite

FORMATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("values", [[torch.nan], [torch.inf], [torch.inf, -torch.inf]])
def test_one_number_that_is_none_is_found(dtype: torch.dtype, values: list[float]) -> None:
    numbers = torch.ones(7, 300)
    assert is_finite(numbers.to(dtype))
    numbers[3, 5 : 5 + len(values)] = torch.tensor(values)
    assert not is_finite(numbers.to(dtype))


def test_a_sum_that_overflows_is_no_fault() -> None:
    largest = torch.full((4,), torch.finfo(torch.float32).max)
    assert not largest.sum().isfinite()
    assert is_finite(largest)
    assert is_finite(torch.full((4,), 60000.0, dtype=torch.float16))
    assert is_finite(torch.empty(0))
    assert is_finite(torch.tensor(1))


def test_statistics_of_a_batch_norm_that_are_not_finite_are_named() -> None:
    norm = torch.nn.BatchNorm2d(2)
    norm.register_buffer("mask", torch.tensor([-torch.inf]))
    assert not list(names_not_finite(norm))
    torch.nn.init.constant_(cast("torch.Tensor", norm.running_var), torch.nan)
    assert list(names_not_finite(norm)) == ["running_var"]
