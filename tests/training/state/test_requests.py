"""What a rank is asked for by signals."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from modules.config import TrainConfig
from modules.run import RunFolder, SilentCommands
from modules.run.folder.commands import REGROUP, request_command
from modules.run.launch.restarts import SECONDS_BEFORE
from modules.training.state import requests as module
from modules.training.state.requests import ControlRequests
from modules.training.worker import control_requests


def test_a_second_ctrl_c_interrupts_unless_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = ControlRequests(SilentCommands(), None)
    with requests.handle_signals():
        monkeypatch.setattr(module, "SAME_REQUEST_S", 3600.0)
        try:
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
                assert requests.poll() == {"interrupt": 1.0}
        except KeyboardInterrupt:
            pytest.fail("torchrun passes on what the rank got as well")
        monkeypatch.setattr(module, "SAME_REQUEST_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("seconds_before", "requested"), [(None, set()), ("50", {REGROUP}), ("70", {REGROUP, "pause"})]
)
def test_what_machine_0_of_several_says_of_its_earlier_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_before: str | None, requested: set[str]
) -> None:
    """Without it, a request to go on with others is left over; with it, the time limit is that of all starts."""
    if seconds_before is not None:
        monkeypatch.setenv(SECONDS_BEFORE, seconds_before)
    request_command(RunFolder(tmp_path), REGROUP)
    assert control_requests(TrainConfig(max_minutes=1), RunFolder(tmp_path), 0).poll().keys() == requested


def test_what_comes_too_late_is_named_and_removed_but_a_stop_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for name in ("sample", "custom_sample", "stop", REGROUP):
        request_command(folder, name)
    requests = control_requests(TrainConfig(), folder, 0)
    assert sorted(requests.take_late()) == ["custom_sample", "sample"]
    assert sorted(file.name for file in folder.commands_dir.iterdir()) == sorted(["stop", REGROUP])
    assert requests.take_late() == []
