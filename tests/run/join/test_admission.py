"""Which machines are admitted to a run: their messages, code, packages, settings and images."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules import __version__
from modules.run.join import fingerprint
from modules.run.join.channel import ChannelClosed
from modules.run.join.fingerprint import code_listing, package_listing
from modules.run.join.local_settings import shared_settings
from tests.run.join.conftest import Harness


@pytest.mark.parametrize(
    "arrival",
    [{"code": 5}, {"packages": []}, {"number": "one"}, {"number": True}, {"code": None}, {"host": None, "number": 1.5}],
)
def test_invalid_messages_are_rejected(make_server: Callable[..., Harness], arrival: dict[str, Any]) -> None:
    harness = make_server()
    session = harness.hello("beta", **arrival)
    with pytest.raises(ChannelClosed):
        session.expect("welcome")
    harness.wait_for("violates the protocol")
    session = harness.hello("beta")
    session.expect("welcome")
    session.send("ready", processes=None, digests="x")
    with pytest.raises(ChannelClosed):
        session.expect("start")
    harness.join("gamma")
    harness.wait_for("gamma", "joined as machine 1")


@pytest.mark.parametrize("processes", [-5, 0, True, 1025, 1.0, "2"])
def test_invalid_process_counts_are_rejected(make_server: Callable[..., Harness], processes: Any) -> None:
    harness = make_server()
    with pytest.raises(ChannelClosed):
        harness.join("beta", processes=processes).expect("start")
    harness.wait_for("violates the protocol", "number of processes", "Still missing: machine 1.")


@pytest.mark.slow
def test_differing_code_names_the_file(make_server: Callable[..., Harness]) -> None:
    harness = make_server()
    code = {**code_listing(), "modules/run/join/client.py": "other"}
    sentence = harness.rejection(harness.hello("beta", code=code))
    assert sentence == "Tandem's code on beta differs from machine 0's in modules/run/join/client.py"
    assert f"beta (127.0.0.1) was rejected: {sentence}. Still missing: machine 1." in harness.wait_for("beta")
    older = harness.rejection(harness.hello("beta", code=code, tandem="0.0.1"))
    assert older == f"Tandem is 0.0.1 on beta and {__version__} on machine 0", "that explains all files"
    harness.join("beta", code=code, allow_differences=True)
    harness.wait_for("beta", "joined")
    harness.wait_for("Note: Tandem's code on beta differs")


def test_differing_packages_by_severity(make_server: Callable[..., Harness]) -> None:
    harness = make_server()
    assert "torch is 1.0 on beta" in harness.rejection(
        harness.hello("beta", packages={**package_listing(), "torch": "1.0"})
    )
    harness.join("beta", packages={**package_listing(), "numpy": "1.0"})
    harness.wait_for("Note: numpy is 1.0 on beta")


def test_what_a_machine_says_of_itself_is_one_printable_line(make_server: Callable[..., Harness]) -> None:
    harness = make_server()
    bad = "\x1b[2J\nRank 0: all fine"
    long = {f"{number}{bad}": bad * 1000 for number in range(5)}
    harness.hello("beta", code={**code_listing(), **long}).expect("rejected")
    harness.wait_for("was rejected: Tandem's code", "0\\x1b[2J\\nRank 0")
    settings = {**shared_settings(harness.config), "learning_rate": bad, **long}
    harness.hello("beta", config=settings).expect("rejected")
    harness.wait_for("was rejected: the settings differ", "is \\x1b[2J\\n")
    harness.hello("beta", packages={**package_listing(), "torch": bad * 1000}).expect("rejected")
    harness.wait_for("torch is \\x1b[2J\\n")
    harness.hello("beta", packages={**package_listing(), **long, "numpy": bad}).send("leave", reason=bad * 1000)
    harness.wait_for("has left: \\x1b[2J\\n")
    member = harness.join("beta", packages={**package_listing(), **long, "numpy": bad})
    harness.wait_for("Note: numpy is \\x1b[2J\\n")
    harness.wait_for("beta", "joined")
    member.send("leave", reason=f"again {bad * 1000}")
    harness.wait_for("has left: again \\x1b[2J\\n")
    assert all(line.isprintable() and len(line) < 2000 for line in harness.said), harness.said
    assert not [line for line in harness.said if "Note: 0" in line], "packages that no Tandem names"


def test_differing_images_are_named(make_server: Callable[..., Harness], images: Path, tmp_path: Path) -> None:
    harness = make_server()
    other = tmp_path / "other"
    shutil.copytree(images, other)
    (other / "a.txt").write_text("another caption")
    (other / "b.png").touch()
    config = harness.config.model_copy(
        update={"concepts": (harness.config.concepts[0].model_copy(update={"path": str(other)}),)}
    )
    session = harness.hello("beta")
    key = harness.ready(session, config=config)
    assert session.expect("request_listings")["which"] == [0]
    listing = fingerprint.data_listing(config.concepts[0])
    session.send("listings", listings=[fingerprint.keyed_listing(listing, key)])
    rejected = session.expect("rejected")
    assert rejected["message"].endswith("2 files differ: a.txt, 1 only on beta")
    assert rejected["only_there"] == [fingerprint.keyed_names(listing, key)["b.png"]]
    harness.wait_for("was rejected: the data set (concepts.0,", "1 only on beta")


def test_differing_settings_are_named(make_server: Callable[..., Harness]) -> None:
    harness = make_server(2, seed=5)
    own = harness.config.model_copy(update={"node_rank": 1, "cache_dir": "elsewhere", "learning_rate": 0.5})
    session = harness.hello("beta", number=1, config=shared_settings(own))
    assert harness.rejection(session) == (
        f"the settings differ: learning_rate is 0.5 on beta and {harness.config.learning_rate} on machine 0"
    )
    harness.join("beta", number=1)
    harness.wait_for("beta", "joined as machine 1")
