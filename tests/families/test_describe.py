"""A family's options as JSON, for the window."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.families.describe import main


def test_prints_the_declarations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pixel_diffusion"]) == 0
    declaration = json.loads(capsys.readouterr().out)
    options = {option["path"]: option for option in declaration["options"]}
    assert declaration["methods"] == ["fine_tune", "lora"]
    assert declaration["parts"] == []
    assert declaration["size_step"] == 8
    assert "demo" in declaration["about"]
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
        "from modules.families._family import Family\n"
        "class MyOptions(Section):\n"
        "    depth: int = setting(3, title='Depth', help='Layers.')\n"
        "class Mine(Family):\n"
        "    Options = MyOptions\n"
    )
    assert main([str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["options"][0]["path"] == "depth"
    assert main([str(tmp_path / "absent.py")]) == 2


def test_a_file_with_former_names_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    code = "from modules.families._family import Family\nclass Mine(Family):\n    parts = ('unet',)\n    draw = None\n"
    file.write_text(code)
    assert main([str(file)]) == 2
    assert "rename parts to submodules, draw to sample_transform" in capsys.readouterr().err
