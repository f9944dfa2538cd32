"""The pods of a job on Kubernetes, as processes here: what the manifests say is what is started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from modules.config import save_config
from modules.run import RunFolder
from scripts import submit_kubernetes
from tests.end_to_end.conftest import TrainingProcess
from tests.ports import free_port
from tests.runs import ROOT, TINY, Run, environment, tiny_config, train_alone

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


def pod(manifests: dict[str, Any], index: int, place: Path, run: Run) -> TrainingProcess:
    """The container of a pod: kubelet's $(NAME), the image's folder, the ConfigMap and the name of the first pod."""
    [container] = manifests["Job"]["spec"]["template"]["spec"]["containers"]
    name = manifests["Job"]["metadata"]["name"]
    config = place / "config.json"
    config.write_text(manifests["ConfigMap"]["data"]["config.json"])
    there = {
        "$(JOB_COMPLETION_INDEX)": str(index),
        "$$": "$",
        f"{name}-0.{name}": "127.0.0.1",
        "/etc/tandem/config.json": str(config),
        "/opt/tandem": str(ROOT),
        "/home/tandem": str(place),
    }

    def here(text: str) -> str:
        for old, new in there.items():
            text = text.replace(old, new)
        return sys.executable if text == "python" else text

    variables = {each["name"]: here(each["value"]) for each in container["env"] if "value" in each}
    process = subprocess.Popen(
        [here(word) for word in (*container["command"], *container["args"])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=container["workingDir"],
        env=environment(**variables, JOB_COMPLETION_INDEX=str(index), TANDEM_STORE_SECRET="0" * 32),
    )
    return TrainingProcess(process, run)


def test_pods_that_are_moved_train_as_one_undisturbed_process(images: Path, tmp_path: Path) -> None:
    place = tmp_path / "it's $(a) volume"
    place.mkdir()
    settings = {"max_steps": 20, "initial_port": free_port()}
    slow = {"slow_step_s": 0.3, "slow_until": f"|{tmp_path}/fast"}
    config = tiny_config(images, place, **settings, family_options=slow, runs_dir="runs", cache_dir="cache")
    save_config(config, tmp_path / "config.json")
    asked = ["--config", str(tmp_path / "config.json"), "--image", "tandem:cpu", "--cpu", "--gpus", "1"]
    asked += ["--machines", "2", "--volume", f"work:{place}", "--volume", f"images:{images}"]
    asked += ["--volume", f"code:{Path(TINY).parent}", "--output", str(tmp_path / "job.yaml")]
    assert submit_kubernetes.main(asked) == 0
    manifests = {each["kind"]: each for each in yaml.safe_load_all((tmp_path / "job.yaml").read_text())}
    run = Run(RunFolder(place / "runs" / "x"))

    moved = [pod(manifests, index, tmp_path, run) for index in range(2)]
    moved[1].wait_for(lambda: run.folder.events_file.exists() and bool(run.events("step")), "the first step")
    moved[1].process.send_signal(signal.SIGTERM)
    (tmp_path / "fast").touch()
    ends = [each.wait() for each in moved]
    assert [code for code, _ in ends] == [143, 143], ends

    ends = [each.wait() for each in [pod(manifests, index, tmp_path, run) for index in range(2)]]
    assert [code for code, _ in ends] == [0, 0], ends
    assert [event["reason"] for event in run.events("finished")] == ["terminated", "finished"]
    assert run.events("started")[-1]["world"] == 2
    assert "Resuming at step" in ends[0][1]

    _, alone = train_alone(tiny_config(images, tmp_path / "alone", **settings))
    assert run.losses == pytest.approx(alone.losses, rel=1e-5), "the sums of two ranks are rounded otherwise"
