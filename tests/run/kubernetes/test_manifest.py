"""Manifests as Kubernetes' schemas and kubectl read them: names, paths, secrets, refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from modules.config import ConfigError, TrainConfig, dump
from modules.run.cluster.command import SubmitError
from modules.run.kubernetes.apply import PartlyApplied, apply
from modules.run.kubernetes.manifest import KubernetesJob, plan_job, rank_secret, render
from modules.run.kubernetes.request import KubernetesRequest, Volume, object_name
from scripts import submit_kubernetes

WORK = Volume("work", "/work")
OLDEST, NEWEST = "1.31", kubernetes_validate.latest_version()


def job_of(request: Mapping[str, object] | None = None, /, **config: object) -> KubernetesJob:
    asked = {"image": "tandem:1", "volumes": (WORK,), "gpus": 1, **(request or {})}
    return plan_job(TrainConfig.model_validate({"run_name": "cats", **config}), KubernetesRequest(**asked))  # type: ignore[arg-type]


def objects(job: KubernetesJob) -> dict[str, Any]:
    """The manifests by their kinds."""
    return {each["kind"]: each for each in yaml.safe_load_all(render(job))}


def container(job: KubernetesJob) -> dict[str, Any]:
    [only] = objects(job)["Job"]["spec"]["template"]["spec"]["containers"]
    return dict(only)


HOSTILE = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=30) | st.sampled_from(
    ["1e3", "0x1F", "y", "no", "null", "~", "12:30", "a: b", "- x", "---\nkind: Pod", "'\"#", "$(HOME) $$"]
)


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    prompt=HOSTILE,
    folder=HOSTILE.filter(lambda text: text.isprintable() and not {*"/\\$~"} & {*text} and text.strip() == text != ""),
    run_name=st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,150}[A-Za-z0-9])?", fullmatch=True),
    label=st.sampled_from(["1e3", "0x1F", "y", "no", "null", "12", "a100", ""]),
    machines=st.sampled_from([1, 2, 1000]),
    cpu=st.booleans(),
    some=st.booleans(),
    version=st.sampled_from([OLDEST, NEWEST]),
)
def test_what_is_written_is_valid_and_says_what_was_given(
    prompt: str, folder: str, run_name: str, label: str, machines: int, cpu: bool, some: bool, version: str
) -> None:
    given_ = {
        "namespace": "ml-2",
        "secrets": ("hf",),
        "mem": "64Gi",
        "time": "1-0",
        "node_selector": (f"a.b/c={label}",),
    }
    more: Mapping[str, object] = given_ if some else {}
    asked = {"gpus": 4, "machines": machines, "cpu": cpu, "gpu_resource": "amd.com/gpu", **more}
    try:
        job = job_of(asked, run_name=run_name, concepts=[{"path": folder}], samples=[{"prompt": prompt}])
    except ConfigError:  # a control character in a path, or a run that Windows would not take
        return
    text = render(job)
    written = list(yaml.safe_load_all(text))
    for each in (*written, yaml.safe_load(rank_secret(job, "0" * 32))):
        kubernetes_validate.validate(each, version, strict=True)
        longest = 253 if each["kind"] in {"ConfigMap", "Secret"} else 63
        assert re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", each["metadata"]["name"])
        assert len(each["metadata"]["name"]) <= longest
        assert all(re.fullmatch(r"[\w.-]{1,63}", value) for value in each["metadata"]["labels"].values())
    assert len(f"{job.name}-{machines - 1}") <= 63, "the name of the last pod's host"
    assert json.loads(written[0]["data"]["config.json"]) == json.loads(json.dumps(dump(job.config)))
    assert [each["kind"] for each in written][-1] == "Job"
    if some:
        assert written[-1]["spec"]["template"]["spec"]["nodeSelector"] == {"a.b/c": label}
        assert f'a.b/c: "{label}"' in text or label in ("a100", "no", "null"), "numbers of other versions of YAML"


def test_resources_rights_and_what_a_pod_gets() -> None:
    job = job_of({"gpus": 2, "cpus_per_gpu": 3, "mem": "64Gi", "secrets": ("hf", "wandb"), "user": 4711})
    found, pod = container(job), objects(job)["Job"]["spec"]["template"]["spec"]
    assert found["resources"]["requests"] == {"cpu": "6", "memory": "64Gi", "nvidia.com/gpu": "2"}
    assert found["resources"]["limits"] == found["resources"]["requests"]
    assert found["envFrom"] == [{"secretRef": {"name": "hf"}}, {"secretRef": {"name": "wandb"}}]
    assert found["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["fsGroup"]) == (True, 4711)
    assert pod["shareProcessNamespace"], "else a process that is PID 1 and waits for the others ignores SIGTERM"
    assert (pod["restartPolicy"], pod["automountServiceAccountToken"]) == ("Never", False)
    assert {each["name"]: each["value"] for each in found["env"]}["HF_HOME"] == "/work/huggingface"
    assert found["args"][-1] == "--require_multi_gpu"
    assert "nvidia" not in render(job_of({"cpu": True}))


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-3g.40gb", "amd.com/gpu"])
def test_nodes_that_keep_others_off_their_gpus_are_tolerated(resource: str) -> None:
    found = objects(job_of({"gpu_resource": resource}))["Job"]["spec"]["template"]["spec"]["tolerations"]
    assert {each["key"] for each in found} == {resource, f"{resource.split('/')[0]}/gpu"}


def test_which_ends_start_again() -> None:
    first, second, third = objects(job_of())["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert (first["action"], first["onExitCodes"]["values"]) == ("FailJob", [4, 130])
    assert (second["action"], second["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (third["action"], third["onExitCodes"]["values"]) == ("Ignore", [138, 143])


def test_several_machines_meet_at_the_first_and_let_nobody_else_in() -> None:
    job = job_of({"gpus": 8, "machines": 2})
    found = objects(job)
    assert [*found] == ["ConfigMap", "Service", "NetworkPolicy", "Job"]
    labels = found["Job"]["spec"]["template"]["metadata"]["labels"].items()
    assert found["Service"]["spec"]["selector"].items() <= labels
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels
    assert found["Job"]["spec"]["template"]["spec"]["subdomain"] == found["Service"]["metadata"]["name"] == "cats"
    assert found["Job"]["spec"]["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert {"--nnodes=2", "--node_rank=$(JOB_COMPLETION_INDEX)", "--master_addr=cats-0.cats"} < {
        *container(job)["args"]
    }
    of_job = TrainConfig.model_validate(json.loads(found["ConfigMap"]["data"]["config.json"]))
    assert (of_job.world_size, of_job.num_nodes, of_job.enable_multi_gpu) == (16, 2, True)


@pytest.mark.parametrize(
    ("run_name", "name"),
    [
        ("cats", "cats"),
        ("Cats", "cats-[0-9a-f]{8}"),
        ("2026_cats", "run-2026-cats-[0-9a-f]{8}"),
        ("a.b", "a-b-[0-9a-f]{8}"),
        ("Katzenb\u00e4r", "katzenb-r-[0-9a-f]{8}"),
        ("\u732b", "run-[0-9a-f]{8}"),
        ("x" * 200, "x+-[0-9a-f]{8}"),
    ],
)
def test_names(run_name: str, name: str) -> None:
    assert re.fullmatch(name, found := object_name(run_name, 1000))
    assert len(found) <= 59
    assert found == "cats" or found != object_name(run_name.lower() + "x", 1000)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpus": 0}, "--gpus is 0; it must be 1 or more"),
        ({"gpus": -1}, "--gpus is -1"),
        ({"gpus": 10**9}, "--gpus is 1000000000; it must be 1024 or less"),
        ({"machines": 0}, "--machines is 0"),
        ({"machines": 10**6}, "--machines is 1000000; it must be 1000 or less"),
        ({"user": 0}, "--user is 0"),
        ({"grace_s": 0}, "--grace_s is 0"),
        ({"retries": -1}, "--retries is -1"),
        ({"time": "soon"}, "--time is 'soon'; write it as"),
        ({"time": "0"}, "--time is 0, which is 0 s"),
        ({"time": "9" * 20}, "--time is 9+, which is"),
        ({"mem": "0"}, "--mem is '0'; write a whole number above 0 and Ki, Mi"),
        ({"mem": "64 Gi"}, "--mem is '64 Gi'"),
        ({"shm": "-1Gi"}, "--shm is '-1Gi'"),
        ({"image": "a b"}, "--image is 'a b'"),
        ({"image": "x\n  hostNetwork: true"}, r"--image is 'x\\n"),
        ({"namespace": "Team A"}, "--namespace is 'Team A'; it must be the name of"),
        ({"namespace": "x" * 64}, "--namespace is .*at most 63"),
        ({"gpu_resource": "gpu"}, "--gpu_resource is 'gpu'"),
        ({"node_selector": ("a100",)}, "--node_selector is 'a100'.*NAME=VALUE"),
        ({"node_selector": ("a=b\nc",)}, "--node_selector is"),
        ({"node_selector": ("a=b", "c=d", "a=c")}, "--node_selector names the label a twice"),
        ({"volumes": ()}, "--volume is missing: the run folder must outlive"),
        ({"volumes": (WORK, Volume("data", "/work"))}, "names the path /work twice"),
        ({"volumes": (WORK, Volume("work", "/data"))}, "names the claim work twice"),
        ({"hub": "/elsewhere"}, "--hub is '/elsewhere', which is in no volume"),
    ],
)  # fmt: skip
def test_invalid_requests(asked: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        job_of(asked)


@pytest.mark.parametrize(
    "text", ["work", ":/work", "work:", "work:work", "Work:/w", "w:/a:b", "w:/", "w:/a\nb", "w:/.."]
)
def test_invalid_volumes(text: str) -> None:
    with pytest.raises(ConfigError, match="--volume is"):
        Volume.parse(text)


@pytest.mark.parametrize(
    "path", ["/etc", "/opt/tandem/modules", "/opt", "/dev/shm", "/usr/x/../lib", "/lib64", "/home/tandem/x", "/run"]
)
def test_a_volume_hides_nothing_of_the_image(path: str) -> None:
    with pytest.raises(ConfigError, match="would hide /"):
        Volume.parse(f"work:{path}")


@pytest.mark.parametrize(
    "path", ["/data/cats", "../cats", "/work/../data", "/workshop", "~/cats", "C:\\cats", "\\\\a\\b"]
)
def test_a_path_outside_the_volumes_is_named(path: str) -> None:
    with pytest.raises(ConfigError, match=r"concepts\.0\.path is .*which is in no volume of the pods \(/work\)"):
        job_of(concepts=[{"path": path}])
    job_of(concepts=[{"path": path, "enabled": False}])


@pytest.mark.parametrize("name", ["runs_dir", "cache_dir", "base_model", "rescue_dir", "lora_from"])
def test_each_setting_with_a_path_is_checked(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is '/elsewhere/x', which is in no volume"):
        job_of(**{name: "/elsewhere/x"})


def test_paths_with_spaces_and_dollars_are_taken_as_they_are() -> None:
    request: dict[str, object] = {"volumes": (Volume.parse("work:/my work/$(HOME)"),)}
    found = container(job_of(request))
    assert found["workingDir"] == "/my work/$(HOME)", "Kubernetes replaces nothing here"
    assert found["command"][-1] == "/my work/$$(HOME)/runs/cats"


SECRET = "hf_" + "aB3" * 12


@pytest.mark.parametrize(
    ("setting", "value", "name"),
    [
        ("trigger_phrase", SECRET, "trigger_phrase"),
        ("samples", [{"prompt": f"https://me:{SECRET}@example.com"}], r"samples\.0\.prompt"),
        ("family_options", {"api_key": "sesame"}, r"family_options\.api_key"),
    ],
)
def test_no_secret_reaches_a_manifest(setting: str, value: object, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} holds what looks like a password") as caught:
        job_of(**{setting: value})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("value", [SECRET, f"HF_TOKEN={SECRET}", "HF_TOKEN=sesame"])
def test_a_value_in_place_of_a_secrets_name_stays_unsaid(value: str) -> None:
    with pytest.raises(ConfigError, match=r"--secret is \*\*\*; it must be the name of a secret") as caught:
        job_of({"secrets": (value,)})
    assert value not in str(caught.value)


def test_a_secret_in_an_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="an option holds what looks like a password"):
        render(job_of({"hub": f"hub/{SECRET}"}))


def test_a_config_larger_than_a_config_map() -> None:
    with pytest.raises(ConfigError, match="a ConfigMap holds at most"):
        render(job_of(concepts=[{"path": f"data/{number}", "prompt_prefix": "x" * 900} for number in range(700)]))


@pytest.mark.parametrize("choice", ["wait", "continue"])
def test_kubernetes_starts_all_pods_again(choice: str) -> None:
    with pytest.raises(ConfigError, match=f"on_machine_loss is {choice}, but Kubernetes starts the pods of all 2"):
        job_of({"machines": 2}, on_machine_loss=choice)


KUBECTL = """#!/bin/sh
case "$*" in get*) echo "$CONDITIONS"; exit ;; esac
echo "$*" >> log; cat > text
case "$*" in *"$REFUSE") grep -q "kind: ConfigMap" text && { echo "$SAID" >&2; exit 1; } ;; esac
echo applied
"""
IMMUTABLE = 'The Job "cats" is invalid: spec.template: Invalid value: {Args:{"timeout=9"}}: field is immutable'
APPLY = "apply --server-side -f -"


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that notes what it is asked, and refuses manifests if its arguments end with $REFUSE."""
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL)
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return program


def test_nothing_has_changed_if_the_cluster_refuses_an_object(kubectl: Path) -> None:
    path = f"{kubectl.parent}:{os.environ['PATH']}"
    job = job_of({"machines": 2, "namespace": "ml"})
    assert apply(job, {"PATH": path, "REFUSE": "none"}) == "applied\n"
    checked, log = f"{APPLY} --dry-run=server", kubectl.with_name("log")
    assert log.read_text().splitlines() == [checked, "create -f -", APPLY]
    log.unlink()
    with pytest.raises(SubmitError, match=r"kubectl delete --namespace ml job cats\)") as caught:
        apply(job, {"PATH": path, "REFUSE": "=server", "SAID": IMMUTABLE})
    assert log.read_text().splitlines() == [checked]
    assert not isinstance(caught.value, PartlyApplied)
    with pytest.raises(PartlyApplied, match="quota"):
        apply(job, {"PATH": path, "REFUSE": " -", "SAID": "exceeded quota: gpus"})


@pytest.mark.parametrize("conditions", ["FailureTarget Failed", "SuccessCriteriaMet Complete", "Suspended", ""])
def test_a_job_that_has_ended_is_not_said_to_start(kubectl: Path, conditions: str) -> None:
    environ = {"PATH": f"{kubectl.parent}:{os.environ['PATH']}", "REFUSE": "none", "CONDITIONS": conditions}
    if conditions in {"Suspended", ""}:
        assert apply(job_of(), environ) == "applied\n"
        return
    with pytest.raises(SubmitError, match=r"the job cats has ended.*kubectl delete job cats"):
        apply(job_of(), environ)
    assert not kubectl.with_name("log").exists()


def test_a_job_keeps_its_config_and_differs_with_another() -> None:
    one, other = (objects(job_of({"machines": 2}, max_steps=steps)) for steps in (5, 6))
    names = [each["ConfigMap"]["metadata"]["name"] for each in (one, other)]
    assert names[0] != names[1]
    assert all(re.fullmatch("tandem-cats-[0-9a-f]{8}", name) for name in names)
    assert one["Job"] != other["Job"], "else the cluster would say that nothing has changed, and start nothing"
    job = job_of({"machines": 2})
    [key] = [each["valueFrom"]["secretKeyRef"] for each in container(job)["env"] if "valueFrom" in each]
    assert yaml.safe_load(rank_secret(job, "0" * 32))["metadata"]["name"] == key["name"] == "tandem-cats"


def test_what_is_to_be_removed_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    submit_kubernetes.report(job_of(), None)
    lines = [line for line in capsys.readouterr().out.splitlines() if " -l " in line]
    assert len(lines) == 2
    assert all("=cats,app.kubernetes.io/managed-by=tandem" in line for line in lines)


def test_without_kubectl_and_without_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(SubmitError, match=r"there is no command kubectl on this computer\. Without --apply"):
        apply(job_of(), {"PATH": str(tmp_path)})
    program = tmp_path / "kubectl"
    program.write_text("no program")
    program.chmod(0o755)
    with pytest.raises(SubmitError, match=r"kubectl cannot be run: Exec format error\."):
        apply(job_of(), {"PATH": str(tmp_path)})
    if shutil.which("kubectl"):
        nowhere = tmp_path / "kubeconfig"
        cluster = {"cluster": {"server": "http://127.0.0.1:9"}, "name": "x"}
        context = {"context": {"cluster": "x", "user": ""}, "name": "x"}
        nowhere.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "x"}))
        with pytest.raises(SubmitError, match="kubectl reaches no cluster"):
            apply(job_of({"machines": 2}), {"PATH": os.environ["PATH"], "KUBECONFIG": str(nowhere)})
