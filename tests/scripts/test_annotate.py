"""scripts/annotate.py: the whole way from images to files and back, as people and the window run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from modules.annotation import Message, ProposalSet, proposal_sets
from modules.annotators.caption import Captioner
from modules.config import ConfigError
from modules.data.index.images import decode_mask
from modules.files import validate_record
from scripts.annotate import main
from tests.annotators.tiny_models import tiny_blip, tiny_clipseg


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cats"
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(("a.png", "b.jpg", "sub/c.png")):
        Image.effect_noise((40 + number, 30), 90).convert("RGB").save(folder / name)
    (folder / "broken.png").write_bytes(b"none")
    (folder / "b.txt").write_text("a photo of mine\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[Message]]:
    code = main([*arguments, "--events"])
    return code, [validate_record(Message, json.loads(line)) for line in capsys.readouterr().out.splitlines()]


def test_captions_from_start_to_undo(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_blip(work / "model")
    command = ["caption", "cats", "--model", "./model", "--max_tokens", "4", "--prefix", "cats, "]
    ask = Captioner.__call__
    with monkeypatch.context() as patch:  # Ctrl-C after the first image
        asked: list[int] = []

        def interrupt(self: Captioner, images: list[Image.Image]) -> list[str]:
            if asked:
                raise KeyboardInterrupt
            asked.append(1)
            return ask(self, images)

        patch.setattr(Captioner, "__call__", interrupt)
        code, messages = run(capsys, *command)
    assert code == 130
    with monkeypatch.context() as patch:
        patch.setattr(Captioner, "__call__", lambda self, images: 1 / 0)
        assert run(capsys, *command, "--replace", "--review", "--out", "other")[0] == 3, "it failed at every image"
    assert [each.image for each in messages if each.text] == ["a.png"]
    code, messages = run(capsys, *command)
    assert code == 0
    assert [each for each in messages if each.total is not None] == [Message(total=2, kept=1)]
    assert [each.image for each in messages if each.text] == ["sub/c.png"]
    assert [each.image for each in messages if each.error] == ["broken.png"]
    assert messages[-2:] == [Message(finished=2), Message(written=2, unchanged=0)]
    proposals = next(each.proposals for each in messages if each.proposals)
    written = (work / "cats" / "a.txt").read_text()
    assert written.startswith("cats, ")
    assert written.strip() == ProposalSet(proposals).read()["a.png"].text
    assert (work / "cats" / "b.txt").read_text() == "a photo of mine\n"

    code, messages = run(capsys, "list")
    assert [(each.state, each.images) for each in messages] == [("written", 2)]
    (work / "cats" / "broken.png").unlink()
    messages = run(capsys, *command)[1]
    assert "Nothing to do: 3 images have a caption already" in str(messages[0].note)
    assert messages[-1] == Message(finished=0)
    assert [each.path.name for each in proposal_sets(work / "annotations")] == [Path(proposals).name]
    (work / "cats" / "a.txt").write_text("changed")
    code, messages = run(capsys, "undo", proposals)
    assert (code, messages[-1]) == (3, Message(undone=1, left=1))
    assert messages[0].image == "a.txt"
    assert not (work / "cats" / "sub" / "c.txt").exists()
    (work / "none").mkdir()
    assert run(capsys, "caption", "none", "--model", "./model")[0] == 4


def test_masks_that_training_reads(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_clipseg(work / "model")
    code, messages = run(
        capsys, "mask", "cats", "--model", "./model", "--prompt", "a cat", "--threshold", "0.5", "--review"
    )
    assert code == 0
    assert messages[-1] == Message(finished=3)
    assert not list(work.rglob("*-masklabel.png"))
    made = {each.image: Path(each.mask) for each in messages if each.image and each.mask}
    assert all(file.is_file() for file in made.values())
    proposals = next(each.proposals for each in messages if each.proposals)
    assert main(["apply", proposals]) == 0
    assert "3 files written" in capsys.readouterr().out
    mask = decode_mask((work / "cats" / "sub" / "c-masklabel.png").read_bytes())
    assert mask.size == (42, 30)
    assert main(["undo", proposals]) == 0
    assert not list((work / "cats").rglob("*-masklabel.png"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["caption", "nowhere"], "does not exist"),
        (["caption", "s3://bucket/cats"], "s3://bucket/cats is an address, which is only read"),
        (["caption", "cats", "--batch_size", "0"], "--batch_size is 0; use a number from 1 to 1024"),
        (["caption", "cats", "--device", "tpu"], "--device is 'tpu'"),
        (["caption", "cats", "--out", "cats/x"], "is in the folder of the images"),
        (["caption", "cats", "--caption_extension", ".png"], "is no ending of caption files"),
        (["caption", "cats", "--model", "./nothing"], "--model: there is no folder './nothing'"),
        (["tag", "cats", "--threshold", "2"], "--threshold is 2.0"),
        (["mask", "cats", "--prompt", " "], "--prompt is empty"),
        (["mask", "cats", "--prompt", "x", "--mask_suffix", ".png"], "is no ending of masks"),
        (["apply", "nowhere"], "holds no proposals"),
    ],
)
def test_one_sentence(work: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    code = main([*arguments, "--events"])
    shown = capsys.readouterr()
    assert code in (2, 4)
    assert said in shown.err
    failed = validate_record(Message, json.loads(shown.out.splitlines()[-1])).failed
    assert failed is not None
    assert not (work / "annotations").exists() or not list((work / "annotations").iterdir())


def test_a_second_program_is_told_before_it_loads_the_model(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes nothing of the first one's, either."""

    def busy(proposals: ProposalSet) -> None:
        raise ConfigError("Another program is busy.")

    (work / "model").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(ProposalSet, "lock", busy)
        code, messages = run(capsys, "caption", "cats", "--model", "./model")
        assert (code, [each.failed for each in messages]) == (2, ["Another program is busy."])
    assert len(proposal_sets(work / "annotations")) == 1
    code, messages = run(capsys, "caption", "cats", "--model", "./model")
    assert messages[-1].failed is not None
    assert "has no config.json" in messages[-1].failed
    assert not proposal_sets(work / "annotations")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["c\x1b[2J", "--out", "x"], r"it contains the control character \x1b"),
        (["x" * 5000], "The command is wrong in 'folder': String should have at most 4096 characters"),
        (["cats", "--out", "loop"], "loop"),
        (["cats", "--model", "x" * 300], "xxx"),
        (["cats", "--model", "\udcff/x"], "wrong in 'model': Input should be a valid string"),
        (["cats", "--model", "a/b@../../x"], "there is no folder 'a/b@../../x'. Give"),
    ],
)
def test_a_hostile_command_line_is_one_sentence(
    work: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    (work / "loop").symlink_to("loop")
    assert main(["caption", *arguments]) in (2, 3)
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert "\x1b" not in said.out + said.err
