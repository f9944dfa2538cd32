"""The draft without a window: edits, undo, errors, files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from app.draft import Draft
from app.family_declaration import FamilyDeclaration, _with_group_path
from app.repair import new_item
from modules.config import ConfigError, Section, TrainConfig, find_option, load_config, save_config, setting


class Log:
    """Counts the notifications of a draft."""

    def __init__(self) -> None:
        self.changes = 0
        self.faults = 0

    def __call__(self, faults_too: bool) -> None:
        self.changes += 1
        self.faults += faults_too


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def draft(log: Log) -> Draft:
    return Draft(log)


def test_edit_is_checked_at_once(draft: Draft, log: Log) -> None:
    draft.set("learning_rate", "1e-", typing=True)
    assert draft.config is None
    assert [fault.path for fault in draft.faults] == ["learning_rate"]
    draft.set("learning_rate", "1e-5", typing=True)
    assert draft.faults == ()
    assert draft.config is not None
    assert draft.config.learning_rate == 1e-5
    assert (log.changes, log.faults) == (2, 2)


def test_same_value_again_is_no_edit(draft: Draft, log: Log) -> None:
    draft.set("epochs", 10)
    assert (log.changes, draft.can_undo) == (0, False)


def test_keystrokes_in_one_field_are_undone_together(draft: Draft) -> None:
    for text in ("2", "20", "200"):
        draft.set("epochs", text, typing=True)
    draft.set("seed", "7", typing=True)
    assert draft.undo() == "seed"
    assert draft.undo() == "epochs"
    assert draft.get("epochs") == 10
    assert draft.undo() is None
    assert draft.redo() == "epochs"
    assert draft.redo() == "seed"
    assert (draft.get("epochs"), draft.get("seed")) == ("200", "7")
    assert draft.redo() is None


def test_edit_after_undo_forgets_what_was_undone(draft: Draft) -> None:
    draft.set("epochs", 3)
    draft.undo()
    draft.set("seed", 7)
    assert not draft.can_redo
    assert draft.get("epochs") == 10


def test_history_is_bounded(draft: Draft) -> None:
    for number in range(700):
        draft.set("epochs", number + 100)
    steps = 0
    while draft.undo():
        steps += 1
    assert steps == 500


def test_dirty_is_a_matter_of_meaning(draft: Draft) -> None:
    assert not draft.is_dirty
    draft.set("learning_rate", "0.00010")
    assert not draft.is_dirty
    draft.set("learning_rate", "3e-4")
    assert draft.is_dirty
    draft.undo()
    draft.undo()
    assert not draft.is_dirty


def test_items_are_added_moved_and_removed(draft: Draft) -> None:
    for number, path in enumerate(("a", "b", "c")):
        draft.insert("concepts", number, {**new_item("concepts"), "path": path})
    draft.move("concepts", 2, 0)
    draft.remove("concepts", 1)
    assert draft.config is not None
    assert [concept.path for concept in draft.config.concepts] == ["c", "b"]
    for _ in range(5):
        draft.undo()
    assert draft.get("concepts") == []


def test_new_item_says_what_is_missing(draft: Draft) -> None:
    draft.insert("concepts", 0, new_item("concepts"))
    assert [fault.path for fault in draft.faults] == ["concepts.0.path"]
    assert draft.fault_at("concepts.0.path") is not None
    assert draft.fault_at("concepts") is None


def test_error_in_list_of_numbers_belongs_to_its_field(draft: Draft) -> None:
    draft.set("optimizer.betas", ["0.9", "2"])
    assert draft.fault_at("optimizer.betas") is not None


def test_each_optimizer_keeps_its_settings(draft: Draft) -> None:
    draft.set("optimizer.weight_decay", "0.5")
    draft.set("optimizer.name", "sgd")
    assert draft.get("optimizer.momentum") == 0.9
    draft.set("optimizer.momentum", "0.8")
    draft.set("optimizer.name", "adamw")
    assert draft.get("optimizer.weight_decay") == "0.5"
    draft.set("optimizer.name", "sgd")
    assert draft.get("optimizer.momentum") == "0.8"
    assert draft.faults == ()


def test_defaults_are_known_however_they_are_typed(draft: Draft) -> None:
    option = find_option(TrainConfig, "learning_rate")
    assert option is not None
    for text in ("1e-4", "0.0001", 1e-4):
        draft.set("learning_rate", text)
        assert draft.is_default("learning_rate", option)
    draft.set("learning_rate", "1e-3")
    assert not draft.is_default("learning_rate", option)
    draft.reset("learning_rate", option)
    assert draft.get("learning_rate") == 1e-4


def test_save_and_open(draft: Draft, tmp_path: Path) -> None:
    draft.set("epochs", "3")
    draft.save(tmp_path / "a.yaml")
    assert (draft.is_dirty, draft.name) == (False, "a.yaml")
    assert load_config(tmp_path / "a.yaml").epochs == 3
    draft.set("epochs", "4")
    assert draft.is_dirty
    draft.open(tmp_path / "a.yaml")
    assert (draft.get("epochs"), draft.is_dirty, draft.can_undo) == (3, False, False)


def test_nothing_invalid_reaches_a_file(draft: Draft, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    save_config(TrainConfig(epochs=3), file)
    draft.open(file)
    draft.set("epochs", "many")
    with pytest.raises(ConfigError, match="epochs is"):
        draft.save(file)
    with pytest.raises(ConfigError, match="epochs is"):
        draft.save_as_preset("mine")
    assert load_config(file).epochs == 3


def test_unwritable_file_is_reported(draft: Draft, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        draft.save(tmp_path / "gone" / "a.yaml")
    assert draft.file is None
    with pytest.raises(ConfigError, match="must end in"):
        draft.save(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.yaml", b"epochs: [", "line"),
        ("a.yaml", b"", "empty"),
        ("a.json", b"[1, 2]", "contains a list"),
        ("a.yaml", b"\xff\xfe\x00\x01", "UTF-8"),
        ("a.yaml", b"version: 99\nepochs: 3\n", "supports versions up to"),
        ("a.txt", b"epochs: 3", "must end in"),
        ("a.json", b"{" * 5000, "cannot be read"),
    ],
)
def test_files_that_are_not_configs(draft: Draft, tmp_path: Path, name: str, content: bytes, words: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    for repair in (False, True):
        with pytest.raises(ConfigError, match=words):
            draft.open(file, repair)
    assert draft.config == TrainConfig()
    assert draft.file is None


def test_what_an_older_file_may_have_meant_is_told(draft: Draft, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("version: 1\nmasked_training: true\n")
    told = draft.open(file)
    assert str(file) in told
    assert "normalize_masked_area_loss: true is used" in told
    draft.save(file)
    assert draft.open(file) == ""


def test_file_that_is_gone(draft: Draft, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        draft.open(tmp_path / "gone.yaml")


def test_faulty_file_can_be_repaired(draft: Draft, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "version: 1\nepochs: many\nbatch_sise: 4\nseed: 5\n"
        "optimizer: {name: lion, momentum: 3, weight_decay: 0.5}\n"
        "concepts: [{path: pictures, repeets: 3}, 7]\n"
    )
    with pytest.raises(ConfigError, match="epochs is"):
        draft.open(file)

    draft.open(file, repair=True)

    assert [fault.path for fault in draft.faults] == ["epochs"]
    assert draft.is_dirty
    draft.set("epochs", 2)
    assert draft.config is not None
    assert (draft.config.seed, draft.config.optimizer.name) == (5, "lion")
    assert draft.config.concepts[0].path == "pictures"
    draft.save(file)
    assert load_config(file).epochs == 2


def test_file_with_an_unknown_optimizer_can_be_repaired(draft: Draft, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("optimizer: {name: adamww}\n")
    draft.open(file, repair=True)
    assert [fault.path for fault in draft.faults] == ["optimizer.name"]
    draft.set("optimizer.name", "adamw")
    assert draft.faults == ()


def test_preset_is_opened_as_a_copy(draft: Draft) -> None:
    draft.open_preset("demo")
    assert (draft.file, draft.name, draft.is_dirty) == (None, "demo", False)


class Options(Section):
    """Options of a family."""

    width: int = setting(32, ge=8, le=512, title="Width", help="How wide.")
    deep: bool = setting(False, title="Deep", help="How deep.")
    depth: int = setting(4, ge=1, le=9, title="Depth", help="How deep exactly.", depends_on="deep")


@pytest.fixture
def family() -> FamilyDeclaration:
    return FamilyDeclaration(
        "pixel_diffusion", ("fine_tune",), ("unet", "text_encoder"), _with_group_path(Options), Options, 8
    )


def test_a_family_that_does_not_exist_is_an_error(draft: Draft) -> None:
    draft.set("family", "stable_difusion")
    fault = draft.fault_at("family")
    assert fault is not None
    assert draft.config is None
    for name in ("stable_diffusion", "a/model.py"):
        draft.set("family", name)
        assert draft.faults == ()


def test_family_checks_submodules_and_resolution(draft: Draft, family: FamilyDeclaration) -> None:
    draft.set_family(family)
    draft.set("resolution", "100")
    assert [fault.sentence for fault in draft.faults] == [
        "resolution is 100; Pixel diffusion needs a multiple of 8, for example 96."
    ]
    draft.set("resolution", "96")
    draft.insert("parts", 0, {"part": "vae"})
    assert [fault.sentence for fault in draft.faults] == [
        "parts.0.part is 'vae'; the family 'pixel_diffusion' has unet, text_encoder."
    ]
    draft.set("parts.0.part", "")
    assert [fault.path for fault in draft.faults] == ["parts.0.part"], "the config itself says that it is empty"
    draft.set("parts.0.part", "unet")
    assert draft.faults == ()


def test_family_options_are_checked_and_omit_defaults(draft: Draft, family: FamilyDeclaration) -> None:
    draft.set_family(family)
    assert draft.get("family_options.width") == 32
    draft.set("family_options.width", "7")
    assert [fault.sentence for fault in draft.faults] == [
        "family_options.width is 7; it must be a whole number from 8 to 512."
    ]
    draft.set("family_options.width", "64")
    assert draft.config is not None
    assert draft.config.family_options == {"width": 64}
    draft.reset("family_options.width", family.options[0])
    assert draft.config is not None
    assert draft.config.family_options == {}


def test_familys_options_depend_on_each_other(draft: Draft, family: FamilyDeclaration) -> None:
    draft.set_family(family)
    depth = family.options[2]
    assert not draft.is_active(depth)
    draft.set("family_options.deep", True)
    assert draft.is_active(depth)


def test_options_of_another_family_are_not_checked(draft: Draft, family: FamilyDeclaration) -> None:
    draft.set_family(family)
    draft.set("family", "other.py")
    draft.set("family_options", {"anything": 1})
    assert draft.faults == ()


def test_read_only_folder_is_reported(draft: Draft, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        try:
            (folder / "probe").touch()
        except OSError:
            with pytest.raises(ConfigError, match="cannot be written"):
                draft.save(folder / "a.yaml")
    finally:
        folder.chmod(stat.S_IRWXU)
