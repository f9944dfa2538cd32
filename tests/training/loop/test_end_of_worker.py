"""The end of a rank's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.training import worker
from tests.runs import opened, tiny_config


def test_the_end_is_told_before_a_group_that_is_left_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NCCL a failure leaves its group, which needs GPUs."""
    ends: list[str] = []
    monkeypatch.setattr(worker, "exit_if_group_is_left", lambda code: ends.append(f"exit {code}"))
    folder = opened(config := tiny_config(tmp_path, tmp_path), None)  # without images
    assert worker.run_worker(config, folder, supervised=False, on_end=lambda code: ends.append(f"told {code}")) == 4
    assert ends == ["told 4", "exit 4"]
    assert folder.failure_file(0).exists()
