"""A family's options as JSON, for the window."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.families.describe import main


def test_prints_the_declarations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pixel_diffusion"]) == 0
    described = json.loads(capsys.readouterr().out)
    options = {option["path"]: option for option in described["options"]}
    assert described["methods"] == ["fine_tune", "lora"]
    assert described["parts"] == []
    assert described["size_step"] == 8
    assert options["width"]["type"] == "integer"
    assert options["width"]["bounds"]["ge"] == 8
    assert options["timesteps"]["choices"] == ["uniform", "logit_normal"]
    assert all(option["help"] and option["title"] for option in options.values())


def test_unknown_family_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pixle_diffusion"]) == 2
    assert "pixel_diffusion" in capsys.readouterr().err


def test_describes_a_users_own_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from modules.config import Section, setting\n"
        "from modules.families.family import Family\n"
        "class MyOptions(Section):\n"
        "    depth: int = setting(3, title='Depth', help='Layers.')\n"
        "class Mine(Family):\n"
        "    Options = MyOptions\n"
    )
    assert main([str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["options"][0]["path"] == "depth"
    assert main([str(tmp_path / "absent.py")]) == 2
