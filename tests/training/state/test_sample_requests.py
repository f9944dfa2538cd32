"""The sample prompts of a config: what is drawn of their choices."""

from __future__ import annotations

import pytest

from modules.config import TrainConfig
from modules.config.choices import as_drawn
from modules.training.state.sample_requests import sample_requests


def drawn(prompt: str, seed: int = 0, negative: str = "") -> tuple[str, str, object]:
    sample = {"prompt": prompt, "negative_prompt": negative, "seed": seed}
    (request,) = sample_requests(TrainConfig.model_validate({"resolution": 64, "samples": [sample]}), 8)
    return request.prompt, request.negative_prompt, request.settings().get("written_prompt")


def test_one_of_each_choice_is_drawn_by_the_seed() -> None:
    """Recorded: the same on every rank and machine, and after a resume."""
    written = "a {red|green|blue} {hat} {{b}} on {sand|}"
    found = [drawn(written, seed, "{blurry|dark}") for seed in range(5)]
    assert found == [drawn(written, seed, "{blurry|dark}") for seed in range(5)]
    assert [(prompt, negative) for prompt, negative, _ in found[:3]] == [
        ("a green {hat} {b} on sand", "blurry"),
        ("a blue {hat} {b} on ", "blurry"),
        ("a green {hat} {b} on sand", "dark"),
    ]
    assert found[0][2] == written
    assert {prompt for prompt, *_ in (drawn("{a|b|c}", seed) for seed in range(50))} == {"a", "b", "c"}


def test_a_choice_in_the_prompt_leaves_that_of_the_negative_prompt() -> None:
    found = [drawn(prompt, seed, "{a|b|c|d}")[1] for prompt in ("cat", "{x|y} cat") for seed in range(10)]
    assert found[:10] == found[10:]
    assert len(set(found)) > 2


def test_what_was_drawn_is_drawn_again_as_it_is() -> None:
    for prompt in ("{{a|b}} {c|c}", "{{{a|b}}} {c|c}", "{a|a}}}", "{x} y|"):
        once = drawn(prompt)[0]
        assert drawn(as_drawn(once), 7)[0] == once
    assert as_drawn("a {hat}") == "a {hat}"


@pytest.mark.parametrize("prompt", ["", "{" + "|" * 100_000, "a {{cat}} {x} }{ |", '{"a": {"b": 1}}', "a|b"])
def test_other_braces_stay(prompt: str) -> None:
    assert drawn(prompt) == (prompt, "", None)
