"""`--verify_parity`: the real command trains with one and two processes, and says that they train the same model.

tests/training/studies/test_parity.py has a comparison that fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import group_settings, run_command, tiny_config, train_command

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


def test_it_passes(images: Path, tmp_path: Path) -> None:
    dropout = {"family_options": {"dropout": 0.2}}
    config = tiny_config(images, tmp_path, **group_settings(2), precision="fp64", **dropout)
    done = run_command(train_command(config, tmp_path / "c.json", "--verify_parity"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Parity holds: all runs agree to a relative 1e-09" in done.stdout
    assert "2 processes" in done.stdout
