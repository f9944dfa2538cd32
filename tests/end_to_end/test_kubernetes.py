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
from tests.ports import free_port
from tests.runs import ROOT, TINY, Run, environment, same_state, tiny_config, train_alone
from tests.waiting import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


def pod(manifests: dict[str, Any], index: int, place: Path) -> subprocess.Popen[str]:
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
    return subprocess.Popen(
        [here(word) for word in (*container["command"], *container["args"])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=container["workingDir"],
        env=environment(**variables, JOB_COMPLETION_INDEX=str(index), TANDEM_STORE_SECRET="0" * 32),
    )


def test_pods_that_are_moved_end_in_the_bits_of_one_process(images: Path, tmp_path: Path) -> None:
    place = tmp_path / "it's $(a) volume"
    place.mkdir()
    settings = {"max_steps": 12, "initial_port": free_port(), "family_options": {"slow_step_s": 0.2}}
    config = tiny_config(images, place, **settings, runs_dir="runs", cache_dir="cache")
    save_config(config, tmp_path / "config.json")
    asked = ["--config", str(tmp_path / "config.json"), "--image", "tandem:cpu", "--cpu", "--gpus", "1"]
    asked += ["--machines", "2", "--volume", f"work:{place}", "--volume", f"images:{images}"]
    asked += ["--volume", f"code:{Path(TINY).parent}", "--output", str(tmp_path / "job.yaml")]
    assert submit_kubernetes.main(asked) == 0
    manifests = {each["kind"]: each for each in yaml.safe_load_all((tmp_path / "job.yaml").read_text())}
    run = Run(RunFolder(place / "runs" / "x"))

    moved = [pod(manifests, index, tmp_path) for index in range(2)]
    wait_until(lambda: run.folder.events_file.exists() and bool(run.events("step")), 120)
    moved[1].send_signal(signal.SIGTERM)
    said = [each.communicate(timeout=120)[0] for each in moved]
    assert [each.returncode for each in moved] == [143, 143], said

    again = [pod(manifests, index, tmp_path) for index in range(2)]
    said = [each.communicate(timeout=120)[0] for each in again]
    assert [each.returncode for each in again] == [0, 0], said
    assert [event["reason"] for event in run.events("finished")] == ["terminated", "finished"]
    assert run.events("started")[-1]["world"] == 2
    assert "Resuming at step" in said[0]

    _, alone = train_alone(tiny_config(images, tmp_path / "alone", **settings))
    assert same_state(run.state, alone.state)
