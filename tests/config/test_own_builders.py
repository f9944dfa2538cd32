"""A family's file that builds an optimizer or scheduler beside a config that names one: refused before a run folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import ConfigError, validate
from modules.config.own_builders import own_optimizer_note
from modules.run.start import check_start

FUNCTIONS = (
    "raise SystemExit('it was run')\ndef build_model(): ...\ndef build_data(): ...\ndef loss(model, batch): ...\n"
)
OPTIMIZER = "def build_optimizer(parameters, learning_rate): ...\n"
SCHEDULER = "def build_scheduler(optimizer): ...\n"


def test_a_class_is_named_with_its_arguments() -> None:
    named = validate({"optimizer": {"target": "torch.optim.Adagrad", "arguments": {"lr_decay": 0.1}}}, "a test")
    assert own_optimizer_note(named) == "The optimizer is torch.optim.Adagrad(lr_decay = 0.1)."
    own = validate({"optimizer": "custom"}, "a test")
    assert own_optimizer_note(own) == "The optimizer is one of the family's or program's own."
    assert not own_optimizer_note(validate({}, "a test"))


@pytest.mark.parametrize(
    ("code", "settings", "fault"),
    [
        (OPTIMIZER, {}, "an optimizer of its own, but optimizer is adamw. Set optimizer to custom"),
        (OPTIMIZER, {"optimizer": "torch.optim.Adagrad"}, "but optimizer is custom"),
        (OPTIMIZER, {"optimizer": "custom"}, ""),
        (SCHEDULER, {}, "a scheduler of its own, but scheduler is constant. Set scheduler to custom"),
        (SCHEDULER, {"scheduler": "custom"}, ""),
        ("", {}, ""),
        ("def broken(", {}, ""),
    ],
)
def test_what_a_file_builds_beside_the_config_is_refused(
    tmp_path: Path, code: str, settings: dict[str, object], fault: str
) -> None:
    (tmp_path / "own.py").write_text(FUNCTIONS + code, encoding="utf-8")
    config = validate({"family": str(tmp_path / "own.py"), **settings}, "a test")
    if not fault:
        check_start(config, require_multi_gpu=False, token=None)
        return
    with pytest.raises(ConfigError) as caught:
        check_start(config, require_multi_gpu=False, token=None)
    assert fault in str(caught.value)
