"""scripts/sample.py: what it is given may be anything."""

from __future__ import annotations

import pytest

from scripts.sample import main

GIVEN = ["--family", "stable_diffusion", "--prompt", "a cat"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "a\x1b[2J/b"], r"control character \x1b"),
        (["--model", "x" * 300], "File name too long"),
        (["--model", "a/b@../../x"], "there is no 'a/b@../../x'"),
        (["--model", "a/b", "--lora", "x" * 300], "File name too long"),
        (["--model", "a/b", "--layout", "\x1b[2J"], r"control character \x1b"),
        (["--model", "a/b", "--out", __file__], "is not a folder"),
        (["--model", "a/b", "--out", f"{__file__}/new/x"], "is not a folder"),
    ],
)
def test_a_hostile_command_line_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*GIVEN, *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert "\x1b" not in said


def test_a_wrong_umask_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TANDEM_UMASK", "000")
    assert main([*GIVEN, "--model", "a/b"]) == 2
    assert capsys.readouterr().err.startswith("TANDEM_UMASK is '000'")
