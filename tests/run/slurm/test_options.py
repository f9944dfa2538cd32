"""Options of a Slurm job among other words of a command line."""

from __future__ import annotations

import pytest

from modules.config import ConfigError, TrainConfig
from modules.run.slurm.options import request_of_words, split_words, words_for_each_start


def test_options_are_told_from_those_of_training() -> None:
    line = ["--gpus", "4", "--set", "epochs=2", "--sbatch_line=--mail-type=END", "--multi_gpu", "--no-exclusive"]
    words, others = split_words([*line, "--setup_line", "module load cuda", "--warn_s", "120"])
    assert others == ["--set", "epochs=2", "--multi_gpu"]
    request = request_of_words(words, TrainConfig())
    assert (request.gpus, request.exclusive, request.warn_s) == (4, False, 120)
    assert request.sbatch_lines == ("--mail-type=END",)
    assert request.setup_lines == ("module load cuda",)


def test_those_of_a_start_go_before_those_of_the_machine() -> None:
    of_machine = words_for_each_start(["--gpus=2", "--no-requeue", "--partition=gpu", "--warn_s=60"])
    given, _ = split_words(["--gpus", "8", "--requeue", "--warn_s", "120"])  # the last two are as without any
    request = request_of_words([*of_machine, *given], TrainConfig())
    assert (request.gpus, request.requeue, request.partition, request.warn_s) == (8, True, "gpu", 120)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus=x"], "argument --gpus: invalid int value: 'x'"),
        (["--gpus=0"], "--gpus is 0; it must be 1 or more"),
        (["--partiton=gpu"], "'--partiton=gpu' is no option for Slurm"),
        (["--partition=a b"], "--partition is 'a b'; it must be one word"),
        (["--cache_gpus=1"], "--cache_gpus cannot be used from here"),
        (["--setup_line=a\nb"], "--setup_line contains a line break"),
    ],
)
def test_faults_are_found_before_they_are_kept(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        words_for_each_start(words)


def test_a_cluster_without_options_is_one() -> None:
    assert words_for_each_start([]) != []
