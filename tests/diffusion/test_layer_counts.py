"""A config that describes a network without end is refused; words that happen to be called like one are not."""

from __future__ import annotations

from typing import Any

import pytest

from modules.diffusion.base_model_files import check_layer_counts
from modules.files import FileFault


@pytest.mark.parametrize(
    "config",
    [{"num_hidden_layers": 10**9}, {"text_config": {"depths": [2, 10**9]}}, {"vision": {"config": {"n_layer": 2000}}}],
)
def test_counts_have_a_limit(config: dict[str, Any]) -> None:
    with pytest.raises(FileFault, match="the most is 1000"):
        check_layer_counts(config)


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 96, "layers_per_block": [2, 2]},
        {"vocabulary_map": {"layers": 14511, "offset": 9265}},  # as Chameleon and Emu3 have it
        {"text_config": {"label2id": {"record players": 1201, "layers": 4000}}},
    ],
)
def test_words_are_no_counts(config: dict[str, Any]) -> None:
    check_layer_counts(config)
