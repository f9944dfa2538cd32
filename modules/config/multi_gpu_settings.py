"""Several GPUs and several machines."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modules.config.section import Section, setting

DeviceId = Annotated[int, Field(ge=0, le=65_535)]
ProcessCount = Annotated[int, Field(ge=1, le=1024)]


class MultiGpuSettings(Section):
    """Which devices take part, how they are started and how they share their work."""

    section_title: ClassVar[str] = "Multi-GPU"

    enable_multi_gpu: bool = setting(
        False,
        title="Use several GPUs",
        help="Shares every batch among the GPUs, so that training is faster. Off: one GPU.",
    )
    distributed_backend: Literal["nccl", "gloo"] = setting(
        "nccl",
        title="Backend",
        help="How the processes talk to each other. nccl: fast, for NVIDIA GPUs. gloo: slower, works "
        "everywhere, also without a GPU. Where nccl is missing, gloo is used and the reason is printed.",
        depends_on="enable_multi_gpu",
    )
    world_size: int | None = setting(
        None,
        title="Number of processes",
        help="How many GPUs take part, all machines together; each gets a process of its own. Without "
        "GPUs, how many processes share the CPU. Empty: every GPU that is visible.",
        unit="processes",
        depends_on="enable_multi_gpu",
        ge=1,
        le=65_536,
    )
    training_mode: Literal["auto", "single", "data_parallel", "distributed", "fully_sharded"] = setting(
        "auto",
        title="Mode",
        help="auto: several GPUs if there are several, otherwise one. single: one. distributed: one "
        "process per GPU, the fast way. data_parallel: one process for all GPUs, simple and slower. "
        "fully_sharded: for models too large for one GPU.",
        depends_on="enable_multi_gpu",
    )
    device_ids: tuple[DeviceId, ...] | None = setting(
        None,
        title="GPUs",
        help="The numbers of the GPUs to use on this machine, such as [0, 1]. Empty: all that are visible.",
        depends_on="enable_multi_gpu",
        min_length=1,
    )
    use_torchrun: bool = setting(
        True,
        title="Start with torchrun",
        help="Starts the processes with torchrun, which watches over them and is needed for several "
        "machines. Off: Tandem starts them itself, on this machine only.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    distributed_data_loading: bool = setting(
        True,
        title="Share the preparation",
        help="Every GPU prepares its share of the pictures for the cache. Off: one prepares all of them "
        "and the others wait.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    share_sampling: bool = setting(
        False,
        title="Share the samples",
        help="Every GPU draws some of the samples, so that training goes on sooner. The pictures are the same, on "
        "GPUs of one model to the bit. Off: the first GPU draws all of them and the others wait.",
        advanced=True,
        depends_on="enable_multi_gpu & samples & training_mode=auto|distributed",
    )
    initial_port: int = setting(
        12355,
        title="Port",
        help="The network port on which the processes find each other; machines join on the one after it. If it is "
        "in use, the next free one is taken and shown.",
        advanced=True,
        depends_on="enable_multi_gpu",
        ge=1024,
        le=65_535,
    )
    num_nodes: int = setting(
        1,
        title="Machines",
        help="How many machines train together. The first one shows a line by which each of the others joins.",
        unit="machines",
        depends_on="enable_multi_gpu",
        ge=1,
        le=16_384,
    )
    processes_per_node: tuple[ProcessCount, ...] | None = setting(
        None,
        title="Processes on each machine",
        help="How many GPUs each machine brings, machine 0 first, such as [4, 2]; a single number holds for all. "
        "Empty: every machine uses all of its GPUs.",
        advanced=True,
        depends_on="enable_multi_gpu",
        min_length=1,
    )
    rendezvous: Literal["static", "elastic"] = setting(
        "static",
        title="How machines meet",
        help="static: each machine has its number and all must come. elastic: a machine that failed may come "
        "back, and the run goes on from its newest backup.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    max_restarts: int = setting(
        0,
        title="Restarts after a failure",
        help="How often torchrun starts all processes again after one has failed. Each time training goes on "
        "from the newest backup.",
        unit="restarts",
        advanced=True,
        depends_on="enable_multi_gpu",
        ge=0,
        le=1000,
    )
    node_rank: int = setting(
        0,
        title="This machine's number",
        help="0 for the first machine, whose address the others use, then 1, 2 and so on. A machine that joins by the "
        "line of the first gets its number there.",
        depends_on="enable_multi_gpu",
        ge=0,
        le=16_383,
    )
    master_addr: str = setting(
        "localhost",
        title="Address of the first machine",
        help="The name or IP address under which the other machines reach machine 0. With localhost, machine 0 takes "
        "its own address in the network and shows it.",
        depends_on="enable_multi_gpu",
        min_length=1,
    )
    lr_scaling: Literal["sqrt", "linear", "none"] = setting(
        "sqrt",
        title="Scale the learning rate",
        help="More GPUs make a larger batch, which bears a larger learning rate. sqrt: 4 GPUs double it. "
        "linear: 4 GPUs make it four times as large. none: it stays. Never scaled with a fixed effective "
        "batch.",
        depends_on="enable_multi_gpu & !global_batch_size",
    )
    find_unused_parameters: bool = setting(
        False,
        title="Look for unused weights",
        help="Needed only if parts of the model take no part in some steps; an error message then names them "
        "and asks for it. Costs some speed.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    broadcast_buffers: bool = setting(
        True,
        title="Share buffers",
        help="Copies the model's counters and averages (those of BatchNorm, for example) from the first "
        "GPU to the others before each step. Costs nothing in models that have none.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    bucket_cap_mb: int = setting(
        25,
        title="Transfer size",
        help="How much is gathered before it is sent to the other GPUs. Larger suits fast links, smaller "
        "lets sending begin earlier. Where only small additions such as LoRA are trained, all is sent at once.",
        unit="MiB",
        advanced=True,
        depends_on="enable_multi_gpu",
        ge=1,
        le=4096,
    )
    static_graph: bool = setting(
        False,
        title="Model never changes course",
        help="Promises that every step uses the same parts of the model, which allows a faster exchange. "
        "Wrong promises end in an error or a wrong result.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    gradient_as_bucket_view: bool = setting(
        True,
        title="No second copy of gradients",
        help="Keeps the gradients only in the memory they are sent from, which saves as much memory as "
        "the gradients take.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    sync_batch_norm: bool = setting(
        False,
        title="Shared BatchNorm",
        help="Lets BatchNorm layers average over all GPUs instead of each over its own few pictures. "
        "Better for small batches, slower; no effect in models without BatchNorm.",
        advanced=True,
        depends_on="enable_multi_gpu",
        resume="told",
    )
    gradient_compression: Literal["none", "fp16", "bf16", "powersgd"] = setting(
        "none",
        title="Compress the exchange",
        help="Sends less between the GPUs, for slow networks. none: exact. fp16 and bf16 send half with a "
        "little rounding; powersgd sends far less of large matrices and changes the training slightly, but hardly "
        "shrinks what LoRA sends, which is small already.",
        advanced=True,
        depends_on="enable_multi_gpu",
        resume="told",
    )
    powersgd_rank: int = setting(
        2,
        title="Rank of PowerSGD",
        help="How many rows and columns stand for each matrix of gradients. More is closer to the exact exchange "
        "and sends more.",
        advanced=True,
        depends_on="enable_multi_gpu & gradient_compression=powersgd",
        ge=1,
        le=256,
        resume="told",
    )
    powersgd_start_step: int = setting(
        100,
        title="First step with PowerSGD",
        help="Steps before this one exchange the full gradients, which change too fast at first to be compressed.",
        unit="steps",
        advanced=True,
        depends_on="enable_multi_gpu & gradient_compression=powersgd",
        ge=2,
        le=1_000_000,
    )
    fsdp_reshard_after_forward: bool = setting(
        True,
        title="Give weights back after the forward",
        help="fully_sharded only. On: each GPU drops the others' weights after the forward and fetches them again "
        "for the backward, which saves memory. Off: faster, needs more memory.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=fully_sharded",
    )
    fsdp_cpu_offload: bool = setting(
        False,
        title="Keep weights in main memory",
        help="fully_sharded only. Weights, gradients and optimizer state rest in main memory and visit the GPU "
        "when needed: the least GPU memory, much slower.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=fully_sharded",
    )
    fsdp_reduce_precision: Literal["fp32", "bf16"] = setting(
        "fp32",
        title="Precision of the summed gradients",
        help="fully_sharded only. fp32 sums gradients exactly; bf16 sends half as much and rounds.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=fully_sharded",
        resume="told",
    )
    fsdp_whole_gradients: bool = setting(
        False,
        title="Keep whole gradients while accumulating",
        help="fully_sharded only. On: accumulated batches are summed over the GPUs once a step instead of once a "
        "batch, which is faster, but each GPU then needs room for the gradients of the whole model.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=fully_sharded",
    )
    debug_distributed: bool = setting(
        False,
        title="Record how processes talk",
        help="Turns on the detailed logs of NCCL and torch.distributed and gathers them in the run's log folder. "
        "For finding the cause of a hang; slower.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    startup_timeout_s: int = setting(
        1800,
        title="Patience at the start",
        help="How long the processes wait for each other until the first step is done before they give up "
        "with an error.",
        unit="seconds",
        advanced=True,
        depends_on="enable_multi_gpu",
        ge=10,
        le=604_800,
    )
    step_timeout_s: int = setting(
        300,
        title="Patience in a step",
        help="How long a process waits for the others in a step, once training runs, before it gives up "
        "with an error. Larger for very slow steps.",
        unit="seconds",
        advanced=True,
        depends_on="enable_multi_gpu",
        ge=10,
        le=604_800,
    )
