"""The search for the largest batch size: in this process, and by the real command with two ranks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from modules.config import ConfigError, TrainConfig, load_config, save_config
from modules.config.io.batch_size_line import set_batch_size
from modules.run import RunFolder
from modules.run.batch_size.records import RESULT, RankBatchSize, SearchRequest, SearchResult
from modules.run.batch_size.start import search_config
from modules.training.studies.batch_size_finder import largest_that_fits
from modules.training.worker import run_worker
from scripts.find_batch_size import main
from tests.runs import ROOT, Run, environment, group_settings, run_command, tiny_config


def search_alone(
    images: Path, place: Path, monkeypatch: pytest.MonkeyPatch, request: SearchRequest | None = None, **settings: object
) -> tuple[int, Run]:
    """Search in this process; the exit code and the folder."""
    config = search_config(tiny_config(images, place, **settings), place)
    for name, value in (request or SearchRequest()).environment().items():
        monkeypatch.setenv(name, value)
    folder = RunFolder.create(config)
    return run_worker(config, folder), Run(folder)


def found(run: Run) -> SearchResult:
    return SearchResult.load(run.folder.path / RESULT)


@pytest.mark.parametrize("most", [1, 2, 7, 64])
def test_the_search_finds_the_largest_that_fits(most: int) -> None:
    for largest in range(most + 1):
        assert largest_that_fits(lambda size, at_most=largest: size <= at_most, most) == largest  # type: ignore[misc]


@pytest.mark.slow
def test_the_search_stops_where_memory_runs_out(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, run = search_alone(images, tmp_path, monkeypatch, family_options={"faults": ["fits:0:6"], "batch_norm": True})
    assert code == 0
    assert found(run).batch_size == 6
    assert not run.events("step")
    assert list(run.folder.backup_dir.glob("*")) == []
    assert [event["reason"] for event in run.events("finished")] == ["searched"]


@pytest.mark.slow
def test_the_search_ends_at_what_the_data_can_fill(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping: dict[str, Any] = {"early_stopping_patience": 3, "validation_split": 0.1, "validate_every": "1 epoch"}
    code, run = search_alone(images, tmp_path, monkeypatch, aspect_ratio_bucketing=False, **stopping)
    assert code == 0
    assert 30 < found(run).batch_size == found(run).most < 41  # those that are not held out
    assert "more samples never come together" in "\n".join(found(run).lines(tiny_config(images, tmp_path)))


@pytest.mark.slow
def test_the_search_measures_what_a_process_takes(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"family_options": {"width": 128}, "aspect_ratio_bucketing": False, "resolution": 64}  # 10 MB a sample
    limit = psutil.Process().memory_info().rss + 200 * 2**20
    _, run = search_alone(images, tmp_path, monkeypatch, SearchRequest(memory_limit_gb=limit / 2**30), **wide)
    one = found(run).ranks[0]
    assert 4 < one.batch_size < 36
    assert 0 < one.peak <= one.limit == limit


def test_not_even_one_sample_is_an_error_with_advice(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, run = search_alone(images, tmp_path, monkeypatch, family_options={"faults": ["fits:0:0"]})
    assert code == 3
    assert run.failure(0).startswith("Not even one sample fits into the memory of rank 0, cpu on ")
    assert not (run.folder.path / RESULT).exists()


@pytest.mark.slow
@pytest.mark.end_to_end
def test_two_ranks_agree_on_the_smallest_and_leave_nothing_behind(images: Path, tmp_path: Path) -> None:
    settings = {**group_settings(2), "global_batch_size": None, "sync_batch_norm": True}
    limits = {"faults": ["fits:0:7", "fits:1:5"], "batch_norm": True}
    config = tiny_config(images, tmp_path, family_options=limits, **settings)
    file = tmp_path / "config.yaml"
    save_config(config, file)
    file.write_text(file.read_text().replace("batch_size: 4\n", "batch_size: 4  # as before\n", 1))
    place, result = tmp_path / "temporary", tmp_path / "result.json"
    place.mkdir()
    script = str(ROOT / "scripts" / "find_batch_size.py")
    done = run_command(
        [sys.executable, script, "--config", str(file), "--write", "--json", str(result)], TMPDIR=str(place)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [rank["batch_size"] for rank in json.loads(result.read_text())["ranks"]] == [7, 5]
    assert "Largest batch_size: 5, the smallest of all ranks." in done.stdout
    assert "one step takes 10 samples, and the learning rate 0.01 becomes 0.0141" in done.stdout
    assert "batch_size: 5  # as before\n" in file.read_text()
    assert load_config(file) == config.model_copy(update={"batch_size": 5})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "result.json", "temporary"]
    assert not list(place.glob("tandem-*"))


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process there")
def test_ctrl_c_stops_the_search_of_all_ranks(images: Path, tmp_path: Path) -> None:
    file, place = tmp_path / "config.yaml", tmp_path / "temporary"
    place.mkdir()
    save_config(tiny_config(images, tmp_path, family_options={"slow_step_s": 1.0}, **group_settings(2)), file)
    command = [sys.executable, str(ROOT / "scripts" / "find_batch_size.py"), "--config", str(file)]
    variables = environment(TMPDIR=str(place))
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as searching:
        assert searching.stdout is not None
        assert any(line.startswith("batch_size 1: fits") for line in searching.stdout)
        searching.send_signal(signal.SIGINT)
        rest = searching.stdout.read()
        assert searching.wait(timeout=60) == 130
    assert "Largest batch_size" not in rest
    assert not list(place.glob("tandem-*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory_target", "0"], "memory_target is 0; give the share"),
        (["--memory_target", "1.5"], "between 0 and 1, such as 0.9"),
        (["--memory_target", "nan"], "memory_target is nan"),
        (["--memory_limit_gb", "-2"], "memory_limit_gb is -2; give the GiB"),
        (
            ["--set", "training_mode=fully_sharded", "--set", "enable_multi_gpu=true"],
            "with training_mode fully_sharded",
        ),
        (["--set", "batch_size=none"], "batch_size"),
    ],
)
def test_a_wrong_argument_is_a_sentence(
    arguments: list[str], message: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    save_config(tiny_config(images, tmp_path), file)
    assert main(["--config", str(file), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_without_a_config_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "--config is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_without_images_the_run_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    file = tmp_path / "config.json"
    save_config(tiny_config(tmp_path / "empty", tmp_path), file)
    assert main(["--config", str(file)]) == 4
    assert "No usable image in" in capfd.readouterr().err


def test_the_result_says_what_becomes_of_batch_and_learning_rate() -> None:
    gib = 2**30
    result = SearchResult((RankBatchSize("a", 9, gib, gib), RankBatchSize("b", 8, gib, gib)), 100)
    config = TrainConfig.model_validate({"learning_rate": 1e-4, "lr_scaling": "linear", "batch_size": 8})
    assert (
        "takes 16 samples, and the learning rate 0.0001 becomes 0.0002 (lr_scaling linear)." in result.lines(config)[-1]
    )
    fixed = config.model_copy(update={"global_batch_size": 64})
    assert "64, and so does the learning rate: 2 processes take 16 samples at once" in result.lines(fixed)[-1]
    assert "so a step takes 4 micro-batches on each." in result.lines(fixed)[-1]
    assert "1 process takes 9 samples at once" in replace(result, ranks=result.ranks[:1]).lines(fixed)[-1]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set in the environment (2), but RANK is not"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "The search for the batch size starts processes of its own"),
    ],
)
def test_a_rank_does_not_search(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["--config", "classifier_demo"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("c.yaml", "batch_size: 4 # mine\nseed: 1\n", "batch_size: 12 # mine\nseed: 1\n"),
        ("c.yaml", "# only this\nseed: 1", "# only this\nseed: 1\nbatch_size: 12\n"),
        ("c.json", '{\n  "batch_size": 1,\n  "seed": 1\n}', '{\n  "batch_size": 12,\n  "seed": 1\n}'),
    ],
)
def test_only_the_line_of_the_batch_size_changes(name: str, before: str, after: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(before)
    set_batch_size(file, 12)
    assert file.read_text() == after


@pytest.mark.parametrize(("name", "text"), [("c.yaml", "{batch_size: 4}"), ("c.json", '{"seed": 1}'), ("c", "seed: 1")])
def test_a_file_without_such_a_line_is_left_alone(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError, match="Write it there yourself: batch_size: 12"):
        set_batch_size(file, 12)
    assert file.read_text() == text
