"""GPUs, several machines, and the preflight check."""

from __future__ import annotations

from typing import Final

GPUS_TITLE: Final = "GPUs of this machine"
GPUS_CHOSEN: Final = "{chosen} of {found} used"
NO_GPUS: Final = (
    "No GPU was found here: training uses the processor. “Number of processes” says how many processes share it, "
    "which is for trying things out."
)
GPU_NAME: Final = "GPU {index}   {name}"
GPU_MEMORY: Final = "{used:.1f} of {total:.0f} GB"
LINKS_TITLE: Final = "Links between the GPUs"
LINK_MEANING: Final = "{label}: {meaning}."
NO_PEER_ACCESS: Final = "GPU {first} and GPU {second} cannot read each other's memory: their exchange takes a detour."
PLAN_TITLE: Final = "What this amounts to"
PLAN_UNKNOWN: Final = "Some settings are not right yet."
PLAN_WORLD_UNKNOWN: Final = "The number of processes is known when all machines have counted their GPUs."
UNIT_GPU: Final = "GPU"
UNIT_PROCESS: Final = "process"
PLAN_HERE: Final = "{count} {unit}"
PLAN_NODES: Final = "{nodes} nodes x {count} {unit}"
PLAN_UNEQUAL: Final = "{counts} {unit}"
PLAN_BATCH: Final = " x batch {batch} x accumulation {steps} = {total}"
PLAN_FIXED_BATCH: Final = ", effective batch fixed at {total}"
PLAN_SAME_RATE: Final = "; learning rate {rate}."
PLAN_SCALED_RATE: Final = "; learning rate {rate} becomes {scaled}."
PREFLIGHT: Final = "Preflight check"
MULTI_NODE: Final = "Several machines…"


def plural(count: int, unit: str) -> str:
    """ "The unit for so many: GPU, GPUs, processes."""
    return f"{unit}{'' if count == 1 else 'es' if unit.endswith('s') else 's'}"


MULTI_NODE_TITLE: Final = "Train on several machines"
MULTI_NODE_WORDS: Final = (
    "Every machine needs Tandem and the pictures. Start machine 0, then paste the join line on each of the others: it "
    "brings the settings, and differences in code, packages or pictures are found before anything starts."
)
MACHINES: Final = "Machines"
MEETING: Final = "Where they meet"
OWN_ADDRESSES: Final = "This machine's addresses; choose the one that the others reach:"
PORT_FREE: Final = "Port {port} is free on this machine."
PORT_TAKEN: Final = "Port {port} is in use on this machine: choose another."
GENERATE: Final = "Generate launch command"
GENERATE_HINT: Final = "“Generate launch command” shows one exact command for each machine."
ONE_MACHINE: Final = "“Machines” is 1: set how many machines train together."
SAVE_FIRST: Final = "The commands name the config file: save the settings first."
COPY: Final = "Copy"
COPIED: Final = "Copied"
COMMAND_FIRST: Final = "Machine 0, which the others join"
COMMAND_FIRST_HELP: Final = (
    "Start this first, here or on whichever machine has the address above. It shows who has come."
)
COMMAND_JOIN: Final = "Every other machine"
COMMAND_JOIN_HELP: Final = "In Tandem's folder there. It needs no config file; its word at the end keeps strangers out."
COMMAND_NODE: Final = "Machine {node} with torchrun, by hand"
COMMAND_NODE_HELP: Final = "Needs the same config file at the same place on every machine."
COMMAND_SLURM: Final = "Slurm batch script"
COMMAND_SLURM_HELP: Final = "Save it and submit it with sbatch, or let scripts/submit_slurm.py do both."
COMMAND_IMPOSSIBLE: Final = "# not possible: {reason}"
SLURM_RUN_NAME: Final = "slurm-run"
PREFLIGHT_WORDS: Final = "Tries out devices, network, disks and pictures with these settings; trains nothing."
PREFLIGHT_DEPTHS: Final = {"Quick": "basic", "Thorough": "all"}
PREFLIGHT_START: Final = "Check again"
PREFLIGHT_RUNNING: Final = "Checking …"
PREFLIGHT_SILENT: Final = "The check ended without a word."
PREFLIGHT_CHECK: Final = "Check"
PREFLIGHT_WHERE: Final = "Where"
PREFLIGHT_RESULT: Final = "Result"
PREFLIGHT_STATES: Final = {"green": "ok", "yellow": "note", "red": "wrong", "grey": "-"}
