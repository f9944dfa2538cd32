"""A real Slurm of two nodes on this machine: its own munged, slurmctld and two slurmd, all state in one folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.runs import environment

Daemon = subprocess.Popen[bytes]

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo")
NODES = ("tandem1", "tandem2")
# Slurm is told that each node has two cores, so that two tasks fit on it on any machine.
CORES = 2

_CONFIG = """\
ClusterName=tandem
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
# A requeued job waits for cred_expire seconds before it starts again; 5 is the least.
AuthInfo=socket={root}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
ReturnToService=2
KillWait=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=DEFAULT CPUs={cores} Gres=gpu:{cores} State=UNKNOWN
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName={nodes[1]} NodeHostname={nodes[1]} NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=60 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=off State=UP
"""


def skip_reason() -> str:
    """Why this machine cannot simulate a cluster; empty if it can."""
    if sys.platform != "linux":
        return "Slurm exists only on Linux"
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"{', '.join(missing)} not installed (Debian: slurm-wlm, munge)"
    return ""


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `variables` is what a command needs to find it."""

    root: Path
    variables: dict[str, str]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm, or one that uses it, to its end."""
        # MASTER_ADDR: these nodes share one machine, and no name server knows their names.
        variables = {**environment(), **self.variables, "MASTER_ADDR": "127.0.0.1"}
        return subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False, env=variables)

    def say(self, *argv: str) -> str:
        """The output of a command that must succeed."""
        done = self.run(*argv)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def job(self, job_id: str) -> dict[str, str]:
        """What scontrol tells of a job."""
        words = self.say("scontrol", "--oneliner", "show", "job", job_id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for_end(self, job_id: str, within_s: float = 200) -> dict[str, str]:
        """Wait until a job has ended for good."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"}
        self.wait_for(lambda: self.job(job_id)["JobState"] in over, f"job {job_id} to end", within_s)
        return self.job(job_id)

    def wait_for(self, condition: Callable[[], bool], what: str, within_s: float = 200) -> None:
        """Wait until `condition`; a guard against hanging."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"waited {within_s} s for {what}: {self.say('squeue', '--long')}"
            time.sleep(0.2)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start the cluster and end all of it; raises RuntimeError with the daemons' output if it does not start."""
    # Not below pytest's folder, which munged's user may not enter.
    root = Path(tempfile.mkdtemp(prefix="tandem-slurm-"))
    variables = {"SLURM_CONF": str(root / "slurm.conf")}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        root.chmod(0o755)
        (root / "state").mkdir()
        (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # it is asked for nothing, and starts everywhere
        # As many GPUs; empty files stand for the devices, so that Slurm hands them out and tells each task its own.
        for number in range(CORES):
            (root / f"gpu{number}").touch()
        (root / "gres.conf").write_text(f"Name=gpu File={root}/gpu[0-{CORES - 1}]\n")
        (root / "slurm.conf").write_text(
            _CONFIG.format(root=root, ports=_free_ports(3), nodes=NODES, host=socket.gethostname(), cores=CORES)
        )
        _start_munged(stack, root)
        commands = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in NODES)]
        daemons = [_start(stack, argv, root, {**environment(), **variables}) for argv in commands]
        made = Cluster(root, variables)
        _wait_until_idle(made, daemons)
        stack.callback(_cancel_all, made)
        yield made


def _start_munged(stack: ExitStack, root: Path) -> None:
    """Munge authenticates the daemons; it runs as its own user, and refuses files that others may write."""
    folder = root / "munge"
    folder.mkdir()
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    for path in (key, folder):
        shutil.chown(path, "munge", "munge")
    files = [
        f"--{name}={folder / name.split('-')[0]}"
        for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")
    ]
    user = {"user": "munge", "group": "munge", "extra_groups": []}
    munged = _start(stack, ["munged", "--foreground", *files], root, environment(), **user)
    _until(lambda: (folder / "socket").exists(), root, [munged])


def _start(stack: ExitStack, argv: Sequence[str], root: Path, variables: dict[str, str], **more: object) -> Daemon:
    output = stack.enter_context((root / f"{argv[0]}-{Path(argv[-1]).name}.out").open("wb"))
    process: Daemon = subprocess.Popen(  # type: ignore[call-overload]
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables, start_new_session=True, **more
    )
    stack.callback(_end, process)
    return process


def _end(process: Daemon) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _cancel_all(made: Cluster) -> None:
    """Cancel the jobs that a failed test left in the queue."""
    made.run("scancel", "--signal=KILL", "--full", "--user=root")
    made.run("scancel", "--user=root")
    made.wait_for(lambda: not made.say("squeue", "--noheader"), "an empty queue")


def _wait_until_idle(made: Cluster, daemons: Sequence[Daemon]) -> None:
    def is_idle() -> bool:
        return made.run("sinfo", "--noheader", "-N", "-p", "main", "-o", "%T").stdout.split() == ["idle"] * len(NODES)

    _until(is_idle, made.root, daemons)


def _until(condition: Callable[[], bool], root: Path, daemons: Sequence[Daemon]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in daemons):
            logs = [*root.glob("*.out"), *root.glob("*.log")]
            said = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-600:]}" for log in logs)
            raise RuntimeError(f"Slurm did not start:\n{said}")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(server.getsockname()[1]) for server in servers]
    for server in servers:
        server.close()
    return ports
