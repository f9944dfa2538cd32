"""Files that cannot be imported are explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.config import ConfigError, TrainConfig, save_config
from modules.importers import import_file
from modules.importers.source_file import LARGEST_FILE, LARGEST_TOML, MOST_PARTS, read_toml


def refusal(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        import_file(file)
    assert str(file) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.json", b"", "is empty"),
        ("a.json", b"  \n", "is empty"),
        ("a.json", b'{\n"training_method": "LORA",\n', "line 3"),
        ("a.toml", b"network_dim = 4\nx = = 1\n", "line 2, column 5"),
        ("a.yaml", b"job: extension\nconfig: b: c", "line 2"),
        ("a.yaml", b"a: [" + b"1, " * 200_000 + b"]", "YAML of more than 512 KiB"),
        ("a.json", "{}".encode("utf-16"), "is not UTF-8 text"),
        ("a.json", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("a.json", b"null", "contains NoneType instead of settings"),
        ("a.json", b"3", "contains int instead of settings"),
        ("a.txt", b"just words", "as JSON"),
        ("a.json", b"[" * 100_000, "too deeply"),
        ("a.toml", b"a = " + b"[" * 100_000, "too deeply"),
        ("a.json", b"{}", "no supported trainer has"),
        ("a.json", b'{"lr": 3, "model": "x"}', "they start with lr, model"),
        ("a.json", b'[{"path": "x", "image": {}, "text": {}}]', "only OneTrainer's concepts"),
        ("a.json", b'[{"prompt": "x", "cfg_scale": 1}]', "only OneTrainer's samples"),
        ("a.json", b'[{"id": "x", "type": "local"}]', "only SimpleTuner's list of datasets"),
        ("a.json", b"[1, 2]", "this is a list"),
    ],
)
def test_the_error_says_what_is_wrong(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert expected in refusal(tmp_path / name)


def test_errors_name_the_supported_trainers(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}", encoding="utf-8")
    text = refusal(tmp_path / "a.json")
    assert all(name in text for name in ("OneTrainer", "kohya's sd-scripts", "ai-toolkit"))


def test_missing_files_folders_and_huge_files(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "gone.json")
    assert "is a folder" in refusal(tmp_path)
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    assert "is larger than 4 MiB" in refusal(tmp_path / "huge.json")


def test_a_tandem_config_is_recognised(tmp_path: Path) -> None:
    save_config(TrainConfig(), tmp_path / "a.json")
    assert "open it directly" in refusal(tmp_path / "a.json")


def test_broken_referenced_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "concepts.json").write_text("[{", encoding="utf-8")
    data = {
        "training_method": "LORA", "model_type": "STABLE_DIFFUSION_15", "base_model_name": "a/b",
        "concept_file_name": "concepts.json", "sample_definition_file_name": "gone.json",
    }  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(data), encoding="utf-8")
    found = import_file(tmp_path / "a.json")
    reported = {entry.source: entry.why for entry in found.report.not_imported}
    assert "line 1, column 3" in reported["concept_file_name"]
    assert "not found" in reported["sample_definition_file_name"]
    assert found.config.concepts == ()


DOTS = ".".join(["a"] * 100_000)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "text",
    [
        f"{DOTS} = 1",
        f'x = 1\n  "b.c" . {DOTS} = 1',
        f"x = {{ y = 1, {DOTS} = 1 }}",
        f"x = {{{DOTS} = 1}}",
        "".join(f"[[ {'.'.join(['a'] * 1000)}.b{number} ]]\n" for number in range(500)),
        f"[{DOTS}]",
    ],
    ids=["key", "quoted", "second of a table", "inline table", "tables", "table"],
)
def test_names_of_endless_parts_are_refused(tmp_path: Path, text: str) -> None:
    """tomllib takes the square of their number, which is hours here."""
    (tmp_path / "a.toml").write_text(text, encoding="utf-8")
    assert f"has a name of more than {MOST_PARTS} parts" in refusal(tmp_path / "a.toml")


def test_endless_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f"x = '{'x' * LARGEST_TOML}'", encoding="utf-8")
    assert "TOML of more than 1024 KiB" in refusal(tmp_path / "a.toml")


def test_ordinary_dots_are_no_parts() -> None:
    text = (
        f"prompt = 'one. two, {'a b. ' * 100}'\nversion = '{'1.' * 100}0'\n# {DOTS[:200]}\n"
        f'x.\'a.b.c\'."{DOTS[:200]}" = [0.1, 0.2, 1.0]\nlong = """\nfrom {DOTS[:200]} to there"""\n'
    )
    assert isinstance(read_toml(text), dict)
