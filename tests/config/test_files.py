from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from modules.config import ConfigError, TrainConfig, load_config, resolve_config, save_config
from modules.config.train_config import VERSION

LEVELS = "abcdefghi"  # each nine times the one before: 9 ** 9 words
BOMB = "a: &a [x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{LEVELS[at]}'] * 9)}]\n" for at, name in enumerate(LEVELS[1:])
)


def message(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert not any(word in text for word in ("Traceback", "pydantic", "https", "yaml.", "object at"))
    return text


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("a.yaml", "a: 1\nb: [1\nc: 2\n", ["line 3"]),
        ("a.yaml", "seed: 1\nepochs: 2\nseed: 3\n", ["line 3", '"seed" is given twice']),
        ("a.yaml", "concepts:\n- {path: x, path: y}\n", ["line 2", '"path" is given twice']),
        ("a.yaml", "\tseed: 1\n", ["line 1"]),
        ("a.yaml", "seed: 1\n---\nseed: 2\n", ["line 2", "single document"]),
        ("a.yaml", "- 1\n", ["list", "names with values"]),
        ("a.yaml", "", ["is empty"]),
        ("a.yaml", "seed: !!python/object/apply:os.getcwd []\n", ["line 1", "python/object"]),
        ("a.yaml", "seed: !!timestamp 2024\n", ["line 1"]),
        ("a.yaml", "seed: !!int abc\n", ["line 1", '"abc"']),
        ("a.yaml", "? [a]\n: 1\n", ["line 1"]),
        ("a.yaml", "a: &a [*a]\n", ["line 1", "anchors and aliases (&a) are not supported"]),
        ("a.yaml", BOMB, ["anchors and aliases (&a) are not supported"]),
        ("a.yaml", "seed: 1\n<<: *b\n", ["line 2", "anchors and aliases (*b) are not supported"]),
        ("a.yaml", "runs_dir: ${oc.env:HOME}/runs\n", ["runs_dir is", "variables are not replaced"]),
        ("a.yaml", "cache_dir: $HOME/cache\n", ["cache_dir is", "variables are not replaced"]),
        ("a.yaml", 'concepts: [{path: "%DATA%/cats"}]\n', ["concepts.0.path is", "variables are not replaced"]),
        ("a.yaml", 'run_name: "a\\nrm -rf x"\n', ["run_name is", "control character \\n"]),
        ("a.yaml", 'concepts:\n- path: "a\\e[2Jb"\n', ["concepts.0.path is", "control character \\x1b"]),
        ("a.yaml", 'lora_patterns: [a, "b\\nc"]\n'.replace("lora_patterns", "lora_targets"), ["lora_targets"]),
        ("a.yaml", 'samples:\n- prompt: "a\\x1b[2Jb"\n', ["samples.0.prompt is", "control character \\x1b"]),
        ("a.yaml", '"a\\e[2Jb": 1\n', ["not a known setting"]),
        ("a.yaml", 'family_options: {a: [{b: {"c\\e[2J": 1}}]}\n', ["family_options is", "control character \\x1b"]),
        ("a.yaml", 'family_options: {a: {b: [["c\\e[2J"]]}}\n', ["family_options is", "control character \\x1b"]),
        ("a.yaml", "[" * 1500, ["nested too deeply"]),
        ("a.yaml", "seed: " + "9" * 5000, ["seed is", "whole number"]),
        ("a.yaml", "seed: \x01\n", ["cannot be read"]),
        ("a.yaml", b"\xff\xfe\x00", ["UTF-8"]),
        ("a.yaml", "1: 2\n", ["not a known setting"]),
        ("a.json", '{"seed": 1,\n "epochs": }', ["line 2", "column 12"]),
        ("a.json", '{"seed": 1, "seed": 2}', ['"seed" is given twice']),
        ("a.json", '{"learning_rate": NaN}', ["learning_rate is NaN"]),
        ("a.json", "[" * 100_000, ["nested too deeply"]),
        ("a.json", '{"seed": ' + "9" * 5000 + "}", ["cannot be read"]),
        ("a.json", "", ["line 1"]),
        ("a.json", "[]", ["list"]),
        ("a.toml", "seed = 1", [".json, .yaml or .yml"]),
        ("a.json", f'{{"version": {VERSION + 1}}}', [f"version is {VERSION + 1}", "Update Tandem"]),
        ("a.json", '{"version": "1"}', ['version is "1"']),
        ("a.json", '{"version": true}', ["version is true"]),
        ("a.json", '{"version": -1}', ["version is -1"]),
        ("a.json", '{"lerning_rate": 1, "ema": 5}', ["has 2 invalid settings", "learning_rate?", "ema is 5"]),
    ],
)
def test_unusable_files_are_explained(tmp_path: Path, name: str, text: str | bytes, parts: list[str]) -> None:
    found = message(write(tmp_path, name, text))
    assert name in found
    for part in parts:
        assert part in found, found


def test_text_of_several_lines_is_for_prompts_only(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "a.yaml", 'samples:\n- prompt: "a\\n\\tb"\n'))
    assert config.samples[0].prompt == "a\n\tb"


def test_no_file_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    assert "is a named pipe, not a file" in message(tmp_path / "a.yaml")
    with (tmp_path / "b.yaml").open("wb") as file:
        file.truncate(1 << 30)
    assert "is larger than 1 MiB" in message(tmp_path / "b.yaml")


def test_an_error_controls_no_terminal(tmp_path: Path) -> None:
    for text in ('"\\e]0;x\\a": 1\n', 'family: "\\e[2J"\n'):
        assert "\x1b" not in message(write(tmp_path, "a.yaml", text))
    assert "\x1b" not in message(tmp_path / "\x1b[2J.yaml")


def test_missing_files_and_folders_are_explained(tmp_path: Path) -> None:
    assert "does not exist" in message(tmp_path / "none.yaml")
    assert "is a folder" in message(tmp_path)
    (tmp_path / "f.json").mkdir()
    assert "is a folder" in message(tmp_path / "f.json")
    assert "has no valid name" in message(tmp_path / "a\0b.json")


def test_yaml_is_read_as_people_mean_it(tmp_path: Path) -> None:
    text = """# my first run
learning_rate: 1e-4
ema: yes
run_name: 2024-05-01
concepts:
  - path: pictures
    prompt_prefix: no
    name: 12:30
    repeats: 2
max_grad_norm: null
sample_every: 200
optimizer: lion
"""
    config = load_config(write(tmp_path, "a.yml", b"\xef\xbb\xbf" + text.encode()))
    assert config.learning_rate == 1e-4
    assert config.ema is True
    assert config.run_name == "2024-05-01"
    assert (config.concepts[0].prompt_prefix, config.concepts[0].name) == ("no", "12:30")
    assert config.max_grad_norm is None
    assert str(config.sample_every) == "200 steps"
    assert config.optimizer.name == "lion"


def test_a_file_of_version_0_still_opens(tmp_path: Path) -> None:
    for text in ('{"lr": 0.5}', '{"version": 0, "lr": 0.5}'):
        config = load_config(write(tmp_path, "old.json", text))
        assert config.learning_rate == 0.5
        assert config.version == VERSION
    both = message(write(tmp_path, "old.json", '{"lr": 0.5, "learning_rate": 1}'))
    assert "lr (0.5) is not a known setting" in both
    assert "lr (0.5)" in message(write(tmp_path, "new.json", '{"version": 1, "lr": 0.5}'))


@pytest.mark.parametrize(
    ("text", "now"),
    [
        ("version: 2\nrendezvous: static\nmax_restarts: 2\n", "end"),
        ("version: 2\nrendezvous: elastic\n", "end"),
        ("version: 2\nrendezvous: elastic\nmax_restarts: '0'\n", "end"),
        ("version: 1\nrendezvous: elastic\nmax_restarts: 2\n", "wait"),
        ("version: 2\nrendezvous: elastic\nmax_restarts: '2'\n", "wait"),
        ("rendezvous: elastic\nmax_restarts: 2\n", "wait"),
        ("rendezvous: static\non_machine_loss: wait\n", 'rendezvous ("static") is not a known setting'),
        ("rendezvous: c10d\n", 'on_machine_loss is "c10d"'),
    ],
)
def test_rendezvous_is_now_what_it_did(tmp_path: Path, text: str, now: str) -> None:
    file = write(tmp_path, "a.yaml", text)
    if now in ("end", "wait"):
        assert load_config(file).on_machine_loss == now
    else:
        assert now in message(file)


def test_older_files_keep_their_shapes_and_crops(tmp_path: Path) -> None:
    concepts = "concepts: [{path: a, crop_jitter: true}, {path: b}, {path: c, crop_jitter: yes, image_variations: 2}]\n"
    older = load_config(write(tmp_path, "a.yaml", f"version: 3\n{concepts}"))
    assert (older.fewer_buckets, [each.variations for each in older.concepts]) == (True, [1, 1, 2])
    newer = load_config(write(tmp_path, "a.yaml", concepts))
    assert (newer.fewer_buckets, [each.variations for each in newer.concepts]) == (False, [4, 1, 2])
    assert not load_config(write(tmp_path, "a.yaml", "version: 3\nfewer_buckets: false\n")).fewer_buckets


@pytest.mark.parametrize(
    ("text", "normalizes", "warned"),
    [
        ("version: 1\nmasked_training: true\n", True, "normalize_masked_area_loss: true is used"),
        ("version: 0\nmasked_training: true\n", True, "normalize_masked_area_loss: true is used"),
        ("version: 1\nmasked_training: true\nnormalize_masked_area_loss: false\n", False, ""),
        ('version: 1\nmasked_training: "yes"\n', True, "normalize_masked_area_loss: true is used"),
        ("version: 2\nmasked_training: true\n", False, ""),
        ("masked_training: true\n", False, ""),
        ("version: 1\n", False, ""),
        ("version: 1\noptimizer: adafactor\n", False, "optimizer.scale_parameter: false is used"),
        ("version: 1\noptimizer: {name: adafactor}\n", False, "optimizer.scale_parameter: false is used"),
        ("version: 1\noptimizer: {name: adafactor, scale_parameter: true}\n", False, ""),
        ("version: 2\noptimizer: adafactor\n", False, ""),
        ("optimizer: adafactor\n", False, ""),
    ],
)
def test_what_the_number_of_a_version_does_not_say_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, normalizes: bool, warned: str
) -> None:
    """Both 0.1.0 and later states wrote version 1, with other defaults of two settings."""
    config = load_config(write(tmp_path, "a.yaml", text))
    assert config.normalize_masked_area_loss is normalizes
    assert warned in caplog.text
    assert ("a.yaml is of version" in caplog.text) is bool(warned)
    assert len(caplog.messages) == bool(warned)
    if config.optimizer.name == "adafactor":
        assert config.optimizer.model_dump()["scale_parameter"] is ("true" in text)


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.YML"])
def test_saved_files_read_well(tmp_path: Path, name: str) -> None:
    given = {"run_name": "1e-4", "learning_rate": 1e-5, "concepts": [{"path": "Bärenfüße", "name": "yes"}]}
    config = TrainConfig.model_validate(given)
    save_config(config, tmp_path / name)
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert "Bärenfüße" in text
    assert text.index("version") < text.index("family") < text.index("resolution") < text.index("runs_dir")
    plain = json.loads(text) if name == "a.json" else yaml.safe_load(text)
    assert TrainConfig.model_validate(plain) == config, "YAML 1.1 readers read the same"
    assert os.listdir(tmp_path) == [name]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    save_config(TrainConfig(), path)
    before = path.read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(ConfigError, match="No space left"):
        save_config(TrainConfig(seed=1), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.json"]


def test_saving_to_invalid_places(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.json, \.yaml or \.yml"):
        save_config(TrainConfig(), tmp_path / "a.txt")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_config(TrainConfig(), tmp_path / "missing" / "a.json")


def test_a_family_file_is_looked_for_in_the_current_folder_and_beside_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("configs/own.py", "here/other.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "configs/a.yaml").write_text("family: own.py\n", encoding="utf-8")
    (tmp_path / "configs/b.yaml").write_text("include: a.yaml\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    for name in ("a.yaml", "b.yaml"):
        assert Path(load_config(f"../configs/{name}").family) == Path("../configs/own.py")
    (tmp_path / "here/own.py").touch()
    assert load_config("../configs/a.yaml").family == "own.py"


def test_pyyaml_itself_is_not_modified(tmp_path: Path) -> None:
    save_config(TrainConfig(), tmp_path / "a.yaml")
    assert yaml.safe_load("a: yes") == {"a": True}
    assert yaml.safe_dump("1e-4") == "1e-4\n...\n"


@pytest.mark.parametrize(
    "text", ['{"prompt_prefix": "x\\ud800"}', '{"family_options": {"a": "\\ud800"}}', '{"base_model": "\\udfff"}']
)
def test_lone_surrogates_are_refused(tmp_path: Path, text: str) -> None:
    data = text if "prompt_prefix" not in text else f'{{"concepts": [{{"path": "x", "{text[2:-1]}}}]}}'
    assert re.search(r"control character \\ud[8f]", message(write(tmp_path, "c.json", data)))


@pytest.mark.parametrize("path", ["/" + "a/" * 2500, "a" * 256, "ä" * 128])
def test_a_path_that_no_file_can_have_is_refused(tmp_path: Path, path: str) -> None:
    for data in ({"cache_dir": path}, {"concepts": [{"path": path}]}):
        assert "longer than the path of a file" in message(write(tmp_path, "c.json", json.dumps(data)))


def test_lone_surrogates_cannot_be_saved(tmp_path: Path) -> None:
    config = TrainConfig().model_copy(update={"family_options": {"text": ["\ud800"]}})
    with pytest.raises(ConfigError, match="lone surrogate"):
        save_config(config, tmp_path / "c.json")
    assert list(tmp_path.iterdir()) == []


def test_a_name_too_long_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="preset"):
        resolve_config("x" * 5000)


@pytest.mark.timeout(120)
def test_a_name_given_twice_among_many(tmp_path: Path) -> None:
    """Looking for each name in the list of all would take minutes."""
    names = [*range(60_000), 59_999]
    text = "{" + ",".join(f'"{number:x}":0' for number in names) + "}"
    assert f'"{59_999:x}" is given twice' in message(write(tmp_path, "a.json", text))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("c.yaml", "concepts:\n\t- path: x\n", "line 2, column 1: a tab; indent with spaces"),
        ("c.yaml", "a: [1, 2\nb: 3\n", "line 2, column 2: in a list between [ and ], there is no ',' or ']'"),
        ("c.yaml", "a: 1\n  b: 2\n", "no ':' is allowed here; check the indentation"),
        ("c.json", "[1]", "the file contains a list; it must contain names with values"),
        ("c.json", "7", "the file contains a number; it must"),
        ("a\nb.yaml", "[1]", "a\\nb.yaml: the file contains a list"),
        ("a\nb.yaml", None, "a\\nb.yaml does not exist."),
        ("a\nb.yaml", "seed: x", "a\\nb.yaml: seed "),
    ],
)
def test_faults_are_told_in_plain_words_on_one_line(tmp_path: Path, name: str, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    said = message(tmp_path / name)
    assert expected in said
    assert "\n" not in said


def test_a_config_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    config = TrainConfig.model_validate({"concepts": [{"path": "x"}] * 3000})
    with pytest.raises(ConfigError, match="3,000 concepts"):
        save_config(config, tmp_path / "large.yaml")
    assert not (tmp_path / "large.yaml").exists()
