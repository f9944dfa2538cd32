"""What two machines must have in common, and how differences are reported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from modules.config import Concept, DataError, TrainConfig
from modules.run.join.fingerprint import (
    code_listing,
    compare_code,
    compare_data,
    compare_packages,
    data_listing,
    digest,
    family_listing,
    keyed_listing,
    keyed_names,
    lacks_base_model,
    package_listing,
)

KEY = "k" * 64


def test_code_listing_and_comparison(tmp_path: Path) -> None:
    own = code_listing()
    assert "modules/run/join/fingerprint.py" in own
    assert "scripts/train.py" in own
    for part in ("modules/run", "scripts"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "modules/run/a.py").write_bytes(b"one\r\ntwo\r\n")
    (tmp_path / "scripts/b.py").write_bytes(b"three\n")
    here = code_listing(tmp_path)
    (tmp_path / "modules/run/a.py").write_bytes(b"one\ntwo\n")
    code_listing.cache_clear()
    assert code_listing(tmp_path) == here, "line endings make no difference"
    assert compare_code(here, here, "beta").errors == ()
    for name in "cdef":
        (tmp_path / f"modules/run/{name}.py").touch()
    code_listing.cache_clear()
    sentence = compare_code(here, code_listing(tmp_path), "beta").errors[0]
    assert sentence.endswith(
        "on beta differs from machine 0's in modules/run/c.py, modules/run/d.py, modules/run/e.py and 1 more"
    )


def test_numerical_packages_must_match() -> None:
    here = {**package_listing(), "torch": "2.13.0+cpu", "Python": "3.11.7", "numpy": "2.2.0"}
    assert compare_packages(here, here, "beta") == compare_packages(here, dict(here), "beta")
    found = compare_packages(here, {**here, "torch": "2.13.0+cu130", "Python": "3.11.9", "numpy": "2.3.0"}, "beta")
    assert found.errors == ()
    assert len(found.warnings) == 3
    assert "torch is 2.13.0+cu130 on beta and 2.13.0+cpu on machine 0" in found.warnings
    for change in ({"torch": "2.14.0+cpu"}, {"Python": "3.12.7"}, {"diffusers": "0.1"}):
        assert len(compare_packages(here, {**here, **change}, "beta").errors) == 1


def concept(path: Path, **settings: object) -> Concept:
    return Concept.model_validate({"path": str(path), **settings})


def test_images_and_captions(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "more").mkdir(parents=True)
    for number in range(6):
        (here / f"{number}.png").write_bytes(b"x" * number)
        (here / f"{number}.txt").write_text(f"caption {number}")
    (here / "more" / "deep.jpg").write_bytes(b"x")
    (here / "Thumbs.db").write_bytes(b"whatever")
    (here / ".hidden.png").write_bytes(b"x")
    (here / "5.cls").write_text("7")
    os.symlink("..", here / "more" / "circle")
    shutil.copytree(here, there, symlinks=True)
    (there / "Thumbs.db").unlink()
    own = data_listing(concept(here))
    assert set(own) == {*(f"{n}.{kind}" for n in range(6) for kind in ("png", "txt")), "5.cls", "more/deep.jpg"}
    assert digest(own, KEY) == digest(data_listing(concept(there)), KEY)
    assert digest(own, KEY) != digest(own, "another key")
    assert "more/deep.jpg" not in data_listing(concept(here, include_subfolders=False))
    (there / "0.txt").write_text("Caption 0")
    (there / "1.png").write_bytes(b"yy")
    (there / "2.png").unlink()
    (there / "new.webp").touch()
    others = data_listing(concept(there))
    assert digest(own, KEY) != digest(others, KEY)
    hidden = keyed_listing(others, KEY)
    found = compare_data("the data set", own, hidden, KEY, "beta")
    assert found is not None
    assert found.message == (
        "the data set is not the same on beta as on machine 0: 4 files differ: 0.txt, 1.png, 2.png (missing on beta), "
        "1 only on beta"
    )
    assert found.only_there == (keyed_names(others, KEY)["new.webp"],)
    for name, value in others.items():
        assert name not in str(hidden)
        assert len(value) < 4 or value not in str(hidden), "neither names nor contents can be read"
    assert compare_data("the data set", own, keyed_listing(own, KEY), KEY, "beta") is None
    with pytest.raises(DataError, match="no folder"):
        data_listing(concept(tmp_path / "nowhere"))
    cats, dogs = (data_listing(Concept(path=f"s3://b/{name}")) for name in ("cats", "dogs"))
    assert compare_data("the data set", cats, keyed_listing(cats, KEY), KEY, "beta") is None, "not there, nor copied"
    assert compare_data("the data set", cats, keyed_listing(dogs, KEY), KEY, "beta") is not None


def test_family_and_base_model(tmp_path: Path) -> None:
    def listing(**settings: object) -> dict[str, str]:
        return family_listing(TrainConfig.model_validate(settings))

    assert listing() == {"family": "pixel_diffusion"}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "family.py").write_text("# mine")
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "big.safetensors").write_bytes(b"x" * (1 << 21))
    both = [listing(family=str(tmp_path / n / "family.py"), base_model=str(tmp_path / n)) for n in ("a", "b")]
    assert both[0] == both[1], "the location does not matter"
    (tmp_path / "b" / "config.json").write_text("[]")
    assert listing(base_model=str(tmp_path / "a")) != listing(base_model=str(tmp_path / "b"))
    assert listing(base_model="some/name")["base_model"] == "some/name"
    here, missing, other = (listing(base_model=name) for name in (str(tmp_path / "a"), "models/a", str(tmp_path / "b")))
    assert lacks_base_model("models/a", here, keyed_listing(missing, KEY), KEY)
    assert not lacks_base_model("models/a", here, keyed_listing(other, KEY), KEY), "another model is there"
    assert not lacks_base_model("models/a", missing, keyed_listing(missing, KEY), KEY), "a name on the hub"
    file, layouts = str(tmp_path / "a" / "big.safetensors"), [{"layout": str(tmp_path / name)} for name in ("a", "b")]
    assert listing(base_model=file, family_options=layouts[0]) != listing(base_model=file, family_options=layouts[1])
    (tmp_path / "b" / "config.json").write_text("{}")
    (tmp_path / "b" / "transformer").mkdir()
    (tmp_path / "b" / "transformer" / "x.safetensors").write_bytes(b"the file has these")
    assert listing(base_model=file, family_options=layouts[0]) == listing(base_model=file, family_options=layouts[1])
