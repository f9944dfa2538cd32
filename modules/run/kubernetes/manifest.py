"""Renders the manifests of a run on Kubernetes: its config, an indexed job with a pod for each machine, and for several
machines the name of the first and a rule that lets nobody else in.

Every start of a pod resumes the run's newest backup, so the first start and a later one are the same command.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from modules import __version__
from modules.config import ConfigError, TrainConfig, dump
from modules.config.io.text_formats import write_json
from modules.config.trusted_code import VARIABLE as TRUSTED_CODE
from modules.files import mask_secrets
from modules.run.cluster.job import config_of_job, pluralize
from modules.run.exit_codes import INTERRUPTED, NO_DATA, PAUSED, TERMINATED
from modules.run.folder.run_folder import CONFIG_FILE_NAME, check_run_name
from modules.run.join.keys import STORE_SECRET
from modules.run.kubernetes.placement import check_no_secret, check_paths, whole_path_there
from modules.run.kubernetes.request import CODE, CONFIG_DIR, HOME, KubernetesRequest, object_name

_LARGEST_CONFIG: Final = 1_000_000  # bytes: a ConfigMap may have 1 MiB
_INDEX: Final = "JOB_COMPLETION_INDEX"  # Kubernetes sets it: the pod's number
_PLAIN: Final = re.compile(r"[A-Za-z/][\w./-]+", re.ASCII)

Manifest = dict[str, Any]


@dataclass(frozen=True)
class KubernetesJob:
    """One run: its config as the pods get it, what it requests, and the names of its objects.

    `code` are the hashes of the Python files that may run there, `drawing` is the folder of demo images to draw first,
    and the program that draws them.
    """

    config: TrainConfig
    request: KubernetesRequest
    name: str
    code: Sequence[str] = ()
    drawing: tuple[str, str] | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Kubernetes' recommended labels."""
        return {
            "app.kubernetes.io/name": "tandem",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/version": re.sub(r"[^\w.-]", "_", __version__),
            "app.kubernetes.io/managed-by": "tandem",
        }

    @property
    def selector(self) -> str:
        """What kubectl's -l takes to find the objects of this job and none that another tool has given its name."""
        names = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by")
        return ",".join(f"{name}={self.labels[name]}" for name in names)

    @property
    def config_text(self) -> str:
        """The config as the pods read it."""
        return write_json(dump(self.config))

    @property
    def config_map(self) -> str:
        """The ConfigMap's name. With another config it is another: a job keeps what it was started with."""
        return f"{self.secret}-{hashlib.sha256(self.config_text.encode()).hexdigest()[:8]}"

    @property
    def secret(self) -> str:
        """The name of the ranks' Secret, which no object of somebody else has by chance."""
        return f"tandem-{self.name}"

    @property
    def run_folder(self) -> str:
        """The run's folder in the pods."""
        return whole_path_there(f"{self.config.runs_dir}/{self.config.run_name}", self.request)

    @property
    def cores(self) -> int:
        """Cores of each process."""
        return self.request.cpus_per_gpu or 1 + self.config.loader_workers


def plan_job(
    config: TrainConfig,
    request: KubernetesRequest,
    *,
    code: Sequence[str] = (),
    drawing: tuple[str, str] | None = None,
) -> KubernetesJob:
    """The job of a config. Raises ConfigError if it does not fit the request or may not be in a manifest."""
    request.check()
    if config.run_name is None:
        raise ConfigError(
            "--run_name is missing: by it, a pod that starts again finds its run", "For example --run_name cats"
        )
    check_run_name(config.run_name)
    check_paths(config, request)
    check_no_secret(config)
    of_job = config_of_job(
        config,
        processes=request.processes,
        nodes=request.machines,
        cpu=request.cpu,
        loss=(
            f"Kubernetes starts the pods of all {request.machines} machines again if one is lost",
            "they go on from the newest backup",
        ),
    )
    return KubernetesJob(of_job, request, object_name(config.run_name, request.machines), code, drawing)


def render(job: KubernetesJob) -> str:
    """The manifests as one YAML file. Raises ConfigError if the config is too long or a text in them is a secret."""
    objects = [_config_map(job), _job(job)]
    if job.request.machines > 1:
        objects[1:1] = [_service(job), _network_policy(job)]
    text = "---\n".join([_heading(job), *(_yaml(each) for each in objects)])
    if mask_secrets(text) != text:
        raise ConfigError(
            "an option holds what looks like a password or an access token, which must not be in a manifest",
            "Put it into a secret of the cluster and name that with --secret",
        )
    return text


def rank_secret(job: KubernetesJob, value: str) -> str:
    """The Secret, as YAML, by which the ranks of several machines authenticate what they tell each other."""
    secret = {"apiVersion": "v1", "kind": "Secret", **_metadata(job, job.secret), "stringData": {STORE_SECRET: value}}
    return _yaml(secret)


def _heading(job: KubernetesJob) -> str:
    request = job.request
    machines = "one machine" if request.machines == 1 else f"{request.machines} machines"
    return (
        f"# Trains the run {job.config.run_name} with {pluralize(request.gpus, request.unit)} on "
        f"{machines if request.machines == 1 else f'each of {machines}'}.\n"
        "# Written by scripts/submit_kubernetes.py; docs/kubernetes.md explains each part. To start it:\n"
        "#   kubectl apply --server-side -f THIS_FILE\n"
    )


def _config_map(job: KubernetesJob) -> Manifest:
    text = job.config_text
    if (size := len(text.encode())) > _LARGEST_CONFIG:
        raise ConfigError(
            f"the config has {size:,} bytes, and a ConfigMap holds at most {_LARGEST_CONFIG:,}",
            "Put folders into one folder, which is then one concept with its subfolders",
        )
    return {"apiVersion": "v1", "kind": "ConfigMap", **_metadata(job, job.config_map), "data": {CONFIG_FILE_NAME: text}}


def _service(job: KubernetesJob) -> Manifest:
    """Gives the pods names. These are needed before all pods are ready, which is when they have found each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        **_metadata(job),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _selector(job),
            "ports": [{"name": "rendezvous", "port": job.config.initial_port}],
        },
    }


def _network_policy(job: KubernetesJob) -> Manifest:
    """Torch's store and the ports of gloo and NCCL, which authenticate nobody, are for the pods of the job alone."""
    pods = {"podSelector": {"matchLabels": _selector(job)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        **_metadata(job),
        "spec": {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]},
    }


def _job(job: KubernetesJob) -> Manifest:
    request = job.request
    more: Manifest = {} if request.limit_s is None else {"activeDeadlineSeconds": request.limit_s}
    if request.machines > 1:  # else a pod that is lost at the very end would start again, and wait for the others
        more["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        **_metadata(job),
        "spec": {
            "completionMode": "Indexed",
            "completions": request.machines,
            "parallelism": request.machines,
            "backoffLimitPerIndex": request.retries,
            "maxFailedIndexes": 0,
            **more,
            "podFailurePolicy": {"rules": _failure_rules()},
            "template": {"metadata": {"labels": job.labels}, "spec": _pod(job)},
        },
    }


def _failure_rules() -> list[Manifest]:
    """The first that holds: what another start would repeat or somebody has asked for ends the job; a pod that was
    moved away or has stopped after a backup starts again; each other failure counts, as do settings that cannot be
    used: a hub that is down, a full disk or a run that another process still holds may be passing."""
    return [
        {"action": "FailJob", "onExitCodes": _ended_with(NO_DATA, INTERRUPTED)},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": _ended_with(PAUSED, TERMINATED)},
    ]


def _ended_with(*codes: int) -> Manifest:
    return {"containerName": "train", "operator": "In", "values": list(codes)}


def _pod(job: KubernetesJob) -> Manifest:
    request = job.request
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": request.grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # PID 1 would ignore SIGTERM until Python or torchrun handle it
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": request.user,
            "runAsGroup": request.user,
            "fsGroup": request.user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job)],
        "volumes": [
            *(
                {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": volume.claim}}
                for number, volume in enumerate(request.volumes)
            ),
            {"name": "config", "configMap": {"name": job.config_map}},
            {"name": "home", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": request.shm}},
        ],
    }
    if request.machines > 1:
        spec["subdomain"] = job.name
    if request.node_selector:
        spec["nodeSelector"] = dict(text.split("=", 1) for text in request.node_selector)
    if not request.cpu:
        spec["tolerations"] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in request.taints]
    return spec


def _container(job: KubernetesJob) -> Manifest:
    request = job.request
    amounts: Manifest = {"cpu": str(request.gpus * job.cores)}
    if request.mem is not None:
        amounts["memory"] = request.mem
    if not request.cpu:
        amounts[request.gpu_resource] = str(request.gpus)
    container: Manifest = {
        "name": "train",
        "image": request.image,
        "command": ["/bin/sh", "-c", _script(job), _literal(job.run_folder)],
        "args": _command(job),
        "workingDir": request.work,
        "env": _environment(job),
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            *({"name": f"volume-{number}", "mountPath": volume.path} for number, volume in enumerate(request.volumes)),
            {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True},
            {"name": "home", "mountPath": HOME},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if request.secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in request.secrets]
    return container


def _script(job: KubernetesJob) -> str:
    """What a pod's shell does: $0 is the run's folder, the arguments are the command."""
    lines = [
        "# A run that has begun goes on from its newest backup.",
        f'if [ -e "$0/{CONFIG_FILE_NAME}" ]; then set -- "$@" --resume latest; fi',
        'exec "$@"',
        "",
    ]
    if job.drawing is not None:
        folder, program = job.drawing
        lines.insert(0, f'if [ "${_INDEX}" = 0 ]; then python {CODE}/scripts/{program} {folder} || exit; fi')
    return "\n".join(lines)


def _command(job: KubernetesJob) -> list[str]:
    """One machine supervises its processes; on several, torchrun starts those of each."""
    request = job.request
    train = [f"{CODE}/scripts/train.py", "--config", f"{CONFIG_DIR}/{CONFIG_FILE_NAME}"]
    if request.machines == 1:
        return ["python", *train, *(["--require_multi_gpu"] if request.gpus > 1 else [])]
    return [
        "python",
        f"{CODE}/scripts/torchrun.py",
        f"--nnodes={request.machines}",
        f"--nproc_per_node={request.gpus}",
        f"--node_rank=$({_INDEX})",
        f"--rdzv_conf=timeout={job.config.startup_timeout_s}",
        f"--master_addr={job.name}-0.{job.name}",
        f"--master_port={job.config.initial_port}",
        *train,
    ]


def _environment(job: KubernetesJob) -> list[Manifest]:
    request = job.request
    variables = {
        "HOME": HOME,
        "USER": "tandem",  # a user by number has no name
        "HF_HOME": whole_path_there(request.hub or "huggingface", request),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": str(job.cores),
    }
    if not request.cpu:
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if request.machines > 1:
        variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(request.grace_s)  # 30 s may be short for a backup
    if job.code:
        variables[TRUSTED_CODE] = ",".join(job.code)
    listed: list[Manifest] = [{"name": name, "value": _literal(value)} for name, value in variables.items()]
    if request.machines > 1:
        key = {"name": job.secret, "key": STORE_SECRET, "optional": True}
        listed.append({"name": STORE_SECRET, "valueFrom": {"secretKeyRef": key}})
    return listed


def _metadata(job: KubernetesJob, name: str | None = None) -> Manifest:
    namespace = {} if job.request.namespace is None else {"namespace": job.request.namespace}
    return {"metadata": {"name": name or job.name, **namespace, "labels": job.labels}}


def _selector(job: KubernetesJob) -> dict[str, str]:
    return {name: job.labels[name] for name in ("app.kubernetes.io/name", "app.kubernetes.io/instance")}


def _literal(text: str) -> str:
    """A text in which Kubernetes replaces no $(NAME)."""
    return text.replace("$", "$$")


class _Dumper(yaml.SafeDumper):
    """Texts of several lines are blocks. Those that kubectl's reader, of another YAML version, could take for a number
    or a truth value are quoted."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(data: Manifest) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 30)
