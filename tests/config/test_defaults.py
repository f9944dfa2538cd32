"""A default that changes would change what files mean that do not give the setting: it raises the version."""

from __future__ import annotations

import json

from modules import ROOT
from modules.config import TrainConfig, options
from modules.config.train_config import VERSION

FILE = ROOT / "tests" / "fixtures" / "defaults" / f"version_{VERSION}.json"


def test_the_defaults_of_a_version_stay() -> None:
    """For a new version write a new file: `json.dumps(found, indent=1)`. New settings need not be in it."""
    found = {f"{option.path} {option.variant or ''}".strip(): option.default for option in options(TrainConfig)}
    kept = json.loads(FILE.read_text())
    found = json.loads(json.dumps(found))
    changed = {
        name: (default, found.get(name, "gone")) for name, default in kept.items() if found.get(name, "gone") != default
    }
    assert not changed, (
        "raise VERSION in modules/config/train_config.py and add a step to modules/config/io/migrations.py"
    )
