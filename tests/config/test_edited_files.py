"""A file that a person wrote stays theirs: comments, order and spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config import TrainConfig, load_config
from modules.config.io.edited_files import differing, save_edited

MINE = """\
# cats, third attempt
epochs: 20   # enough
learning_rate: 3e-4

concepts:
  # the good ones
  - path: cats  # from Anna
    repeats: 2
  - path: "dogs"

seed: 7
"""


def edit(file: Path, text: str, **changes: object) -> str:
    """`text` after a save with these changes."""
    file.write_text(text)
    wanted = TrainConfig.model_validate(load_config(file).model_dump() | changes)
    save_edited(wanted, file)
    assert load_config(file) == wanted
    return file.read_text()


def test_only_the_changed_lines_change(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    assert edit(file, MINE) == MINE
    assert edit(file, MINE, epochs=21, seed=8) == MINE.replace("20", "21").replace("7\n", "8\n")
    assert edit(file, MINE, batch_size=3) == f"{MINE}batch_size: 3\n"
    concepts = [{"path": "cats", "repeats": 3}, {"path": "dogs", "name": "d"}, {"path": "birds"}]
    assert edit(file, MINE, concepts=concepts) == MINE.replace("repeats: 2", "repeats: 3.0").replace(
        '  - path: "dogs"\n', '  - path: "dogs"\n    name: d\n  - path: birds\n'
    )
    assert edit(file, MINE, optimizer={"name": "lion"}).startswith(MINE)
    fewer = edit(file, MINE, concepts=[{"path": "dogs"}])
    assert fewer.startswith(MINE[: MINE.index("concepts")])
    assert fewer.endswith("seed: 7\n")


def test_an_older_file_is_saved_as_one_of_this_version(tmp_path: Path) -> None:
    text = "# mine\nversion: 1  # theirs\nmasked_training: true\n"
    saved = "# mine\nversion: 4  # theirs\nmasked_training: true\nfewer_buckets: true\n"
    assert edit(tmp_path / "a.yaml", text) == f"{saved}normalize_masked_area_loss: true\n"
    assert edit(tmp_path / "a.yaml", text, normalize_masked_area_loss=False) == saved


@pytest.mark.parametrize(
    "text",
    [
        "{epochs: 3, seed: 4}\n",
        "epochs: 3\nbase_model:\nseed: 4",
        "---\nepochs: 3\nseed: 4\n...\n",
        "lr: 0.1\nseed: 4\n",
        "seed: 4\nconcepts:\n- path: >-\n    a\n\n# end\n",
    ],
)
def test_whatever_its_form_the_file_gives_the_config(tmp_path: Path, text: str) -> None:
    for changes in ({"seed": 5}, {"max_steps": 9, "epochs": 4}, {"concepts": [{"path": "b"}, {"path": "c"}]}):
        edit(tmp_path / "a.yaml", text, **changes)


def test_a_new_file_has_what_differs_from_the_defaults(tmp_path: Path) -> None:
    config = TrainConfig.model_validate({"epochs": 3, "optimizer": {"name": "adamw", "weight_decay": 0.5}})
    assert differing(config) == {"epochs": 3, "optimizer": {"name": "adamw", "weight_decay": 0.5}}
    for name in ("a.yaml", "a.json"):
        save_edited(config, tmp_path / name)
        assert load_config(tmp_path / name) == config
        assert len((tmp_path / name).read_text().splitlines()) < 10
