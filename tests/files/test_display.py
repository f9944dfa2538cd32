"""Texts from elsewhere are shown, not obeyed, and passwords and access tokens are masked wherever texts go."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from modules.config import ConfigError, TrainConfig
from modules.files import encodable, mask_secrets, printable, spreadsheet_cell, visible
from modules.importers import import_file
from modules.run import RunFolder, read_events
from modules.run.console import echo, warn
from modules.run.folder.events import EventLog
from modules.run.folder.failures import Failure, read_failures, record_failure
from modules.run.folder.rank_log import start_rank_log, stop_rank_log
from modules.run.supervise.supervisor import Supervisor
from modules.run.view.event_records import parse_text

TOKEN = "hf_" + "aBcD1234" * 4
SECRET_TEXTS = (
    f"https://me:{TOKEN[3:]}@host/x",
    f"socks5h://{TOKEN[3:]}@proxy:1080",
    f"/data/runs/https:/me:{TOKEN[3:]}@host/x.png",
    f"https:/{TOKEN[3:]}@host",
    f"https:\\me:{TOKEN[3:]}@host\\x",
    f"HTTPS:\\\\\\\\me:{TOKEN[3:]}@host",
    f"the token {TOKEN} of the hub",
    f"https://cdn/x?Expires=1&X-Amz-Signature={TOKEN[3:]}&b=2",
    f"HF_TOKEN={TOKEN[3:]} python train.py",
    f"WANDB_API_KEY={TOKEN[3:]}",
    f"{{'aws_secret_access_key': '{TOKEN[3:]}', 'a': 1}}",
    f'{{"password": "{TOKEN[3:]}"}}',
    f"Authorization: Bearer {TOKEN[3:]}",
    f"github_pat_{TOKEN[3:]}",
)
PLAIN_TEXTS = (
    "https://huggingface.co/owner/model@main",
    "git@github.com:owner/repository.git",
    "me@host:/data, keep_tokens=2, embedding_token=<my-cat>, max_token_length=225",
    "a secret: the password is wrong; token count 77",
    "/data/hf_home/sk_learn/gho_images",
    "/data/hf_stable_diffusion_xl_base_with_refiner/x",
    "sk_portraits_of_people_v2_large_batch",
    "hf_stablediffusionxlbasewithrefinermodel",
    "https://host/x?page=2#y@z",
    "https:/host/x@2, host:/data@2, C:\\https\\a@b",
)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cat\u202egpj.exe", "cat\\u202egpj.exe"),
        ("a\u200b\xad\u3164b\U000e0041", "a\\u200b\\xad\\u3164b\\U000e0041"),
        ("x\x1b[2J\x85", "x\\x1b[2J\\x85"),
        ("e" + "\u0301" * 50 + ".png", "e" + "\u0301" * 4 + "….png"),
        (
            "\U0001f468\u200d\U0001f469\u200d\U0001f466 e\u0301 \u0645\u06cc\u200c\u062e",
            "",
        ),  # families of emoji; Persian
    ],
)
def test_names_look_as_they_are(name: str, shown: str) -> None:
    assert visible(name) == printable(name) == (shown or name)


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_secrets_are_masked(text: str) -> None:
    for shown in (mask_secrets(text), printable(text), printable(text, limit=len(text) - 3), str(ConfigError(text))):
        assert TOKEN[3:12] not in shown, shown
        assert "***" in shown or len(shown) < len(text)


@pytest.mark.parametrize("text", PLAIN_TEXTS)
def test_other_texts_stay(text: str) -> None:
    assert mask_secrets(text) == text


@pytest.mark.parametrize("piece", ["://", "a", "?token", "://a", "password", "bearer ", "hf_a", '"password" '])
@pytest.mark.timeout(60)
def test_long_texts_take_linear_time(piece: str) -> None:
    assert mask_secrets(piece * 200_000)  # would take hours otherwise


def test_no_log_event_or_report_holds_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="x"))
    url = SECRET_TEXTS[0]
    Supervisor(["true", url], folder, environment={"HTTPS_PROXY": url}).run()
    events = EventLog(folder.events_file)
    events.write("warning", message=f"no connection to {url}", proxies=[{"https": url}], file=Path(TOKEN))
    events.write("sample", file=Path(url).resolve(), path=str(Path(url)), more={url: 1, "hf_token": TOKEN[3:]})
    events.close()
    handler = start_rank_log(folder, 0)
    logging.getLogger("hub").warning("retrying %s", url)
    stop_rank_log(handler)
    error = OSError(f"cannot reach {url}")
    record_failure(folder, Failure.from_exception(error, rank=0, traceback=f"Traceback\nOSError: {error}"))
    echo(f"from {url}")
    warn(f"from {url}")
    (tmp_path / "t.json").write_text(
        json.dumps(
            {"__version": 10, "base_model_name": "x", "training_method": "LORA", "my_api_key": TOKEN[3:], "other": url}
        )
    )
    report = "\n".join(import_file(tmp_path / "t.json").report.lines())
    written = [file for file in folder.path.rglob("*") if file.is_file()]
    assert {file.name for file in written} >= {"events.jsonl", "rank-0.txt", "rank-0.error.json", "launcher.txt"}
    texts = [report, *capsys.readouterr(), *(file.read_text() for file in written)]
    assert not [text for text in texts if TOKEN[3:12] in text]
    warnings = [event["message"] for event in read_events(folder.events_file) if event["type"] == "warning"]
    assert warnings == ["no connection to https://***@host/x"]
    assert "cannot reach https://***@host/x" in read_failures(folder)[0].message


def test_logs_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    """A log line may quote the name of an image, and a traceback the text of a file."""
    folder = RunFolder.create(TrainConfig(runs_dir=str(tmp_path), run_name="x"))
    handler = start_rank_log(folder, 0)
    logging.getLogger("data").warning("bad\x1b[2J.png\x85rank 1 ends\r\nin two lines")
    stop_rank_log(handler)
    record_failure(folder, Failure.from_exception(OSError("x"), rank=0, traceback="Traceback\n  x\x1b[2J"))
    lines = folder.log_file(0).read_bytes().decode().split("\n")
    assert [line.partition(" rank 0 ")[2] for line in lines] == [
        "WARNING data: bad\\x1b[2J.png\\x85rank 1 ends", "in two lines", "Traceback", "  x\\x1b[2J", "",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ['=HYPERLINK("http://x")', "+1", "-a.png", "@x", "\t=1"])
def test_what_a_spreadsheet_would_run_is_text(text: str) -> None:
    assert spreadsheet_cell(text) == "'" + text
    assert spreadsheet_cell("a" + text) == "a" + text


def test_lone_surrogates_are_no_text() -> None:
    file_name = os.fsdecode(b"caf\xe9")
    assert encodable(f"a\ud800b {file_name} \U0001f600\udfff") == f"a\ufffdb {file_name} \U0001f600\ufffd"
    assert parse_text("\ud800") == "\ufffd"
