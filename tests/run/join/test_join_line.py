"""The line that joins a machine to a run: its address, and the token that it needs."""

from __future__ import annotations

import pytest

from modules.config import ConfigError, TrainConfig
from modules.run.join.join_line import JoinLine, join_line_from_config


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("a.b", "a.b", 12356), ("10.0.0.1:80", "10.0.0.1", 80), ("[::1]:80", "::1", 80), ("fe80::1", "fe80::1", 12356)],
)
def test_join_addresses(address: str, host: str, port: int) -> None:
    made = JoinLine.parse(address, "0" * 32)
    assert (made.host, made.port) == (host, port)
    for wrong in ("", "a:", "a:b", "a:99999", ":80", "a b"):
        with pytest.raises(ConfigError, match="--join is"):
            JoinLine.parse(wrong, "0" * 32)


def test_numbered_machine_needs_the_token() -> None:
    config = TrainConfig(num_nodes=2, node_rank=1, master_addr="zeus", enable_multi_gpu=True)
    with pytest.raises(ConfigError, match="node_rank is 1, but the token is missing"):
        join_line_from_config(config, None)
    made = join_line_from_config(config, "0" * 32)
    assert (made.host, made.port, made.config) == ("zeus", 12356, config)
