"""Attention to sequences of unequal lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from modules.diffusion.padding_mask import PaddingMask
from tests.families.flow_checks import MaskedAttention

LENGTHS = (3, 5, 5, 1)
# where padding ends, of 9 keys: between text and image, or at the end of both
LAYOUTS = {"text first": (5, (3, 5, 5, 1)), "text last": (9, (7, 9, 9, 5)), "references": (9, (4, 9, 4, 4))}


def attended(mask: Tensor) -> list[Tensor]:
    """The result and the gradients of queries, keys and values, fp64 [4, 2, 9, 8]."""
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(4, 2, 9, 8, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]
    query, key, value = given
    result = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.4)
    return [result, *torch.autograd.grad((result * result.detach().cos()).sum(), given)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_is_that_with_a_mask_and_no_kernel_gets_one(layout: str) -> None:
    padded, lengths = LAYOUTS[layout]
    mask = PaddingMask.of(lengths, padded, torch.device("cpu"))
    whole = torch.cat([mask, mask.new_ones(4, 9 - padded)], dim=1)[:, None, None, :]
    with MaskedAttention() as calls:
        found = attended(whole)
    assert calls.masked == 0
    for one, other in zip(found, attended(whole.as_subclass(Tensor)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_neighbours_of_equal_length_are_attended_together() -> None:
    mask = PaddingMask.of(LENGTHS, 9, torch.device("cpu"))
    with MaskedAttention() as calls:
        attended(mask.bool().view(4, 1, 1, -1))
    assert calls.count == 3


def test_part_of_a_batch_is_masked() -> None:
    """As of dropout, which is computed for each sample."""
    mask = PaddingMask.of(LENGTHS, 9, torch.device("cpu"))[:, None, None]
    states = torch.randn(1, 2, 9, 8)
    found = scaled_dot_product_attention(states, states, states, attn_mask=mask[:1])
    seen = states[:, :, :3]
    torch.testing.assert_close(found, scaled_dot_product_attention(states, seen, seen))


def test_what_is_computed_of_a_mask_is_no_mask() -> None:
    mask = PaddingMask.of(LENGTHS, 9, torch.device("cpu"))
    assert type(mask.sum(1)) is Tensor
    assert mask.sum(1).tolist() == list(LENGTHS)
    assert type(torch.where(mask, 1, 0)) is Tensor
