"""Two runs on several machines that are started in the same second, and a request to stop while they wait."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from modules.config import ConfigError
from modules.run.folder.commands import request_command
from modules.run.folder.event_reader import read_events
from modules.run.folder.run_folder import RunFolder
from modules.run.join.join_line import write_join_line
from modules.run.start import start_run
from tests.ports import free_port
from tests.runs import tiny_config


class Start(threading.Thread):
    """A run on two machines; the second one never comes."""

    def __init__(self, place: Path, images: Path, port: int) -> None:
        super().__init__(daemon=True)
        machines = {"num_nodes": 2, "enable_multi_gpu": True, "processes_per_node": [1], "master_addr": "10.0.0.1"}
        self._config = tiny_config(images, place, initial_port=port, startup_timeout_s=60, **machines)
        self.folder = RunFolder.create(self._config)
        self.said: list[str] = []
        self.code: int | None = None

    def run(self) -> None:
        self.code = start_run(self._config, self.folder, self.said.append)

    def wait_until_it_waits(self) -> None:
        while not any(said.startswith("Waiting up to") for said in self.said):
            assert self.is_alive(), self.said
            time.sleep(0.01)

    @property
    def port(self) -> int | None:
        """The port of its training, if it is not that of the config."""
        found = re.search(r"Note: port (\d+) instead of", " ".join(self.said))
        return None if found is None else int(found[1])


def test_two_runs_in_one_second_take_different_ports(tmp_path: Path, images: Path) -> None:
    """Neither listens at its port before all machines have joined; both stop while they wait, by a file."""
    port = free_port()
    starts = [Start(tmp_path / name, images, port) for name in ("a", "b")]
    for start in starts:
        start.start()
    for start in starts:
        start.wait_until_it_waits()
    ports = [start.port or port for start in starts]
    joins = [int(start.folder.join_line_file.read_text().rsplit(":", 1)[1]) for start in starts]
    assert len({*ports, *joins}) == 4, (ports, joins)
    for start in starts:
        request_command(start.folder, "stop")
        start.join(30)
        assert start.code == 130
        assert list(read_events(start.folder.events_file))[-1]["reason"] == "stopped"


def test_a_start_removes_the_token_of_one_that_was_killed(tmp_path: Path, images: Path) -> None:
    """Also one on a single machine, which writes none itself."""
    config = tiny_config(images, tmp_path, training_mode="single")
    folder = RunFolder.create(config)
    write_join_line(folder, "TANDEM_JOIN_TOKEN=old python scripts/train.py --join 10.0.0.1")
    assert folder.join_line_file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError):
        start_run(config, folder, lambda line: None, require_multi_gpu=True)
    assert not folder.join_line_file.exists()
