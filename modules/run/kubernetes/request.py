"""What a job asks of a Kubernetes cluster: machines, resources, volumes, secrets by name."""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from modules.config import ConfigError
from modules.files import MASK, mask_secrets, printable
from modules.run.cluster.job import require_positive, time_limit_s

CODE: Final = "/opt/tandem"  # Tandem in the image of the Dockerfile
HOME: Final = "/home/tandem"
CONFIG_DIR: Final = "/etc/tandem"
MOST_MACHINES: Final = 1000
_MOST: Final = (1 << 31) - 1  # Kubernetes' limit of what it counts in 32 bits
_MOST_PER_MACHINE: Final = 1024  # processes
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_KEY_NAME: Final = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_IMAGE: Final = re.compile(r"[a-zA-Z0-9][\w.:/@-]*", re.ASCII)
_SIZE: Final = re.compile(r"[1-9]\d{0,9}(Ki|Mi|Gi|Ti|k|M|G|T)", re.ASCII)
_LONGEST_LABEL: Final = 63
_LONGEST_SUBDOMAIN: Final = 253
# A volume there would hide what the image or the pod has there.
_OCCUPIED: Final = (
    *(CODE, HOME, CONFIG_DIR, "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc"),
    *("/run", "/sbin", "/sys", "/usr", "/var/run"),
)


class Volume(NamedTuple):
    """A claim of a volume that exists in the namespace, and where the pods see it."""

    claim: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Volume:
        """Of CLAIM:PATH. Raises ConfigError."""
        claim, _, path = text.partition(":")
        _check_name("volume", claim, _SUBDOMAIN, _LONGEST_SUBDOMAIN, "a claim (kubectl get pvc) before the colon")
        whole = f"/{posixpath.normpath(path).lstrip('/')}"  # of two slashes POSIX keeps both
        if not path.startswith("/") or not path.isprintable() or ":" in path or whole == "/":
            raise ConfigError(
                f"--volume is {printable(repr(text))}; behind the colon it must have the whole path of a folder "
                "without another colon",
                f"For example --volume {claim}:/work",
            )
        for occupied in _OCCUPIED:
            if lies_in(whole, occupied) or lies_in(occupied, whole):
                raise ConfigError(
                    f"--volume {printable(text)} would hide {occupied} of the image", f"Use {claim}:/work or /data"
                )
        return cls(claim, whole)


@dataclass(frozen=True)
class KubernetesRequest:
    """What the user requests; None leaves the choice to Tandem or the cluster. Sizes are Kubernetes' own, as 64Gi."""

    image: str
    volumes: tuple[Volume, ...]
    gpus: int  # of each machine; of CPU processes with `cpu`
    machines: int = 1
    cpu: bool = False
    cpus_per_gpu: int | None = None
    mem: str | None = None
    shm: str = "8Gi"
    gpu_resource: str = "nvidia.com/gpu"
    namespace: str | None = None
    secrets: tuple[str, ...] = ()
    node_selector: tuple[str, ...] = ()
    time: str | None = None
    grace_s: int = 120
    retries: int = 6
    user: int = 1000
    hub: str | None = None

    @property
    def processes(self) -> int:
        """The processes on all machines together."""
        return self.gpus * self.machines

    @property
    def unit(self) -> str:
        """The device of one process."""
        return "CPU process" if self.cpu else "GPU"

    @property
    def taints(self) -> list[str]:
        """Keys that keep other pods off GPUs: the resource, and for slices of NVIDIA's that of whole ones."""
        more = ["nvidia.com/gpu"] if self.gpu_resource.startswith("nvidia.com/") else []
        return list(dict.fromkeys([self.gpu_resource, *more]))

    @property
    def work(self) -> str:
        """Where relative paths of the config begin: the first volume."""
        return self.volumes[0].path

    @property
    def limit_s(self) -> int | None:
        """Seconds that all starts of the job may take together; None without a limit."""
        return None if self.time is None else time_limit_s(self.time)

    def check(self) -> None:
        """Raise ConfigError for the first value that Kubernetes would refuse or take for another."""
        self._check_numbers()
        if not _IMAGE.fullmatch(self.image) or len(self.image) > 500:
            raise ConfigError(
                f"--image is {printable(repr(self.image))}; it must be the name of an image that the cluster can pull",
                "For example --image registry.example.com/me/tandem:1.0, built as docs/kubernetes.md says",
            )
        if self.namespace is not None:
            _check_name("namespace", self.namespace, _LABEL, _LONGEST_LABEL, "a namespace (kubectl get namespaces)")
        for name in self.secrets:
            _check_name("secret", name, _SUBDOMAIN, _LONGEST_SUBDOMAIN, "a secret (kubectl get secrets), not a value")
        for name, value in (("mem", self.mem), ("shm", self.shm)):
            if value is not None and not _SIZE.fullmatch(value):
                raise ConfigError(
                    f"--{name} is {printable(repr(value))}; write a whole number above 0 and Ki, Mi, Gi or Ti (or k, "
                    "M, G, T: powers of 1000), such as 64Gi"
                )
        if "/" not in self.gpu_resource or not _is_key(self.gpu_resource):
            raise ConfigError(
                f"--gpu_resource is {printable(repr(self.gpu_resource))}; it must be a name such as nvidia.com/gpu",
                "kubectl describe nodes lists them under Allocatable",
            )
        names: set[str] = set()
        for text in self.node_selector:
            key, equals, value = text.partition("=")
            if not equals or not _is_key(key) or not _LABEL_VALUE.fullmatch(value):
                raise ConfigError(
                    f"--node_selector is {printable(repr(text))}; it must be a label of nodes, as NAME=VALUE",
                    "kubectl get nodes --show-labels lists them",
                )
            if key in names:
                raise ConfigError(f"--node_selector names the label {printable(key)} twice", "Give each its own once")
            names.add(key)
        self._check_volumes()

    def _check_numbers(self) -> None:
        require_positive(gpus=self.gpus, machines=self.machines, cpus_per_gpu=self.cpus_per_gpu, user=self.user)
        most = (
            ("gpus", self.gpus, _MOST_PER_MACHINE),
            ("machines", self.machines, MOST_MACHINES),
            ("cpus_per_gpu", self.cpus_per_gpu or 1, _MOST_PER_MACHINE),
            ("grace_s", self.grace_s, 24 * 3600),
            ("retries", self.retries, 1000),
            ("user", self.user, _MOST),
        )
        for name, value, limit in most:
            if value > limit:
                raise ConfigError(f"--{name} is {value}; it must be {limit} or less")
        if self.grace_s < 1:
            raise ConfigError(f"--grace_s is {self.grace_s}; it must be 1 or more")
        if self.retries < 0:
            raise ConfigError(f"--retries is {self.retries}; it must be 0 or more")
        limit_s = self.limit_s
        if limit_s is not None and not 0 < limit_s <= _MOST:
            raise ConfigError(f"--time is {self.time}, which is {limit_s} s; it must be from 1 s to {_MOST} s")

    def _check_volumes(self) -> None:
        if not self.volumes:
            raise ConfigError(
                "--volume is missing: the run folder must outlive its pods",
                "Name a claim of the namespace (kubectl get pvc) and its path, such as --volume work:/work",
            )
        for position, name in ((0, "claim"), (1, "path")):
            values = [volume[position] for volume in self.volumes]
            if twice := next((value for value in values if values.count(value) > 1), None):
                raise ConfigError(f"--volume names the {name} {printable(twice)} twice", "Give each its own once")


def object_name(run_name: str, machines: int) -> str:
    """The name of the job and what belongs to it, with room for the pods' numbers, and of the run if that is one.

    Kubernetes has letters in lower case, digits and "-", begins with a letter, and counts at most 63 characters; of
    other names a hash keeps apart those that differ only in what is left out.
    """
    longest = _LONGEST_LABEL - 1 - len(str(machines - 1))
    if len(run_name) <= longest and _LABEL.fullmatch(run_name) and run_name[0].isalpha():
        return run_name
    digest = hashlib.sha256(run_name.encode()).hexdigest()[:8]
    plain = re.sub(r"[^a-z0-9]+", "-", run_name.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"run-{plain}"
    return f"{plain[: longest - 9].strip('-')}-{digest}"


def lies_in(path: str, folder: str) -> bool:
    """Whether a whole path is a folder or lies in it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _is_key(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    is_prefix = len(prefix) <= _LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(prefix) if slash else not prefix
    return bool(is_prefix) and _KEY_NAME.fullmatch(name) is not None


def _check_name(option: str, value: str, allowed: re.Pattern[str], longest: int, what: str) -> None:
    if allowed.fullmatch(value) and len(value) <= longest:
        return
    # a value in place of a secret's name stays unsaid
    is_value = option == "secret" and (mask_secrets(value) != value or len(value) > 40 or "=" in value)
    shown = MASK if is_value else printable(repr(value))
    raise ConfigError(
        f"--{option} is {shown}; it must be the name of {what}: small letters, digits and '-' inside, at most {longest}"
    )
