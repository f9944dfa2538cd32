"""`..` after a link leads to where the system goes, wherever a path is shown, compared or handed on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.annotation.proposals import ProposalSet
from modules.importers.paths import PathResolver
from modules.run.launch.preview import absolute_config_path
from scripts.annotate import parser
from scripts.annotate_options import header_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows takes `..` away before it follows a link")


def of_annotation(path: Path) -> str:
    return header_of(parser().parse_args(["caption", str(path), "--out", "elsewhere"])).folder


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        (lambda path: absolute_config_path(str(path)), "config.json"),
        (lambda path: PathResolver(path).file, "config.json"),
        (lambda path: PathResolver(path.parents[2] / "x.json").path("link/../config.json"), "config.json"),
        (lambda path: ProposalSet(path).path, "set"),
        (of_annotation, "images"),
    ],
)
def test_dots_after_a_link_go_where_the_system_goes(shown: Callable[[Path], object], name: str, tmp_path: Path) -> None:
    (tmp_path / "disk" / "cats").mkdir(parents=True)
    for folder in ("images", "set"):
        (tmp_path / "disk" / folder).mkdir()
    (tmp_path / "disk" / "config.json").write_text("{}")
    os.symlink(tmp_path / "disk" / "cats", tmp_path / "link")
    assert str(shown(tmp_path / "link" / ".." / name)) == str(tmp_path / "disk" / name)
