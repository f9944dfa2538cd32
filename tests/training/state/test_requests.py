"""What a rank is asked for by signals."""

from __future__ import annotations

import signal

import pytest

from modules.run import SilentCommands
from modules.training.state import requests as module
from modules.training.state.requests import ControlRequests


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
