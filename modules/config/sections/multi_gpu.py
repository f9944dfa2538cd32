"""Training on several GPUs and machines."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modules.config.balance import EQUAL, Balance
from modules.config.section import Section, setting

DeviceId = Annotated[int, Field(ge=0, le=65_535)]
ProcessCount = Annotated[int, Field(ge=1, le=1024)]


class MultiGpuSettings(Section):
    """Which devices take part, how processes are launched and how they communicate."""

    section_title: ClassVar[str] = "Multi-GPU"

    enable_multi_gpu: bool = setting(
        False,
        title="Multi-GPU training",
        help="Splits every batch across the GPUs, so that training is faster. Off: one GPU.",
    )
    distributed_backend: Literal["nccl", "gloo"] = setting(
        "nccl",
        title="Communication backend",
        titles={"nccl": "NCCL"},
        help="How the processes communicate. nccl: fast, for NVIDIA GPUs. gloo: slower, works everywhere, also "
        "without a GPU. If nccl is not available, gloo is used and the reason is logged.",
        depends_on="enable_multi_gpu",
    )
    world_size: int | None = setting(
        None,
        title="World size (number of processes)",
        help="How many GPUs take part on all machines together; each gets its own process, whose number is its "
        "rank. Without GPUs, how many processes share the CPU. Empty: every visible GPU.",
        unit="processes",
        depends_on="enable_multi_gpu",
        ge=1,
        le=65_536,
    )
    training_mode: Literal["auto", "single", "data_parallel", "distributed", "fully_sharded"] = setting(
        "auto",
        title="Training mode (DDP, FSDP)",
        titles={
            "auto": "Automatic",
            "data_parallel": "Data parallel (DP)",
            "distributed": "Distributed (DDP)",
            "fully_sharded": "Fully sharded (FSDP2)",
        },
        help="auto: several GPUs if there are several, otherwise one. single: one. distributed: one process per GPU "
        "(DDP), the fast way. data_parallel: one process for all GPUs, simple and slower. fully_sharded: FSDP, for "
        "models too large for one GPU.",
        depends_on="enable_multi_gpu",
    )
    device: Literal["auto", "cpu"] = setting(
        "auto",
        title="Device",
        titles={"auto": "Automatic", "cpu": "CPU"},
        help="auto: the GPUs, or the CPU if this machine has none; a GPU that PyTorch cannot use ends the start with "
        "the reason. cpu: the CPU, also if there is a GPU.",
        advanced=True,
    )
    device_ids: tuple[DeviceId, ...] | None = setting(
        None,
        title="GPU indices",
        help="The indices of the GPUs to use on this machine, such as [0, 1]. Empty: all visible ones.",
        depends_on="enable_multi_gpu",
        min_length=1,
    )
    use_torchrun: bool = setting(
        True,
        title="Launch with torchrun",
        help="torchrun launches and supervises the processes, which is needed for several machines. Off: Tandem "
        "launches them itself, on this machine only.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    distributed_data_loading: bool = setting(
        True,
        title="Distributed caching",
        help="Every GPU encodes its share of the images for the cache. Off: one encodes all of them and the others "
        "wait.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    share_sampling: bool = setting(
        False,
        title="Distributed sampling",
        help="Every GPU generates some of the samples, so that training resumes sooner. The images are the same, bit "
        "for bit on GPUs of one model. Off: the first GPU generates all of them and the others wait.",
        advanced=True,
        depends_on="enable_multi_gpu & samples & training_mode=auto|distributed",
    )
    initial_port: int = setting(
        12355,
        title="Rendezvous port",
        help="The network port on which the processes find each other; machines join on the one after it. If it is "
        "in use, the next free one is used and shown.",
        advanced=True,
        depends_on="enable_multi_gpu",
        ge=1024,
        le=65_535,
    )
    num_nodes: int = setting(
        1,
        title="Number of machines (nodes)",
        help="How many machines train together. The first one shows a command with which each of the others joins.",
        unit="machines",
        depends_on="enable_multi_gpu",
        ge=1,
        le=16_384,
    )
    processes_per_node: tuple[ProcessCount, ...] | None = setting(
        None,
        title="Processes per machine",
        help="How many GPUs each machine contributes, machine 0 first, such as [4, 2]; a single number applies to "
        "all. Empty: every machine uses all of its GPUs.",
        advanced=True,
        depends_on="enable_multi_gpu",
        min_length=1,
    )
    on_machine_loss: Literal["end", "wait", "continue"] = setting(
        "end",
        title="When a machine is lost",
        help="Such as by a power cut, its network, or because Tandem was killed there. end: the run ends on all "
        "machines. wait: the others wait until it has joined again with machine 0's line, and all go on from the "
        "newest backup. continue: the others go on from it without the lost one, with the same result, and take it in "
        "again at a later backup. Machine 0 has the backups: without it, the run ends.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    max_restarts: int = setting(
        0,
        title="Maximum restarts",
        help="How often all processes are started again after one has failed. Each time training resumes from the "
        "newest backup. A machine that is lost does not count: on_machine_loss decides about that.",
        unit="restarts",
        advanced=True,
        depends_on="enable_multi_gpu",
        ge=0,
        le=1000,
    )
    node_rank: int = setting(
        0,
        title="Node rank (this machine's number)",
        help="0 for the first machine, whose address the others use, then 1, 2 and so on. A machine that joins with "
        "the first one's command gets its number there.",
        depends_on="enable_multi_gpu",
        ge=0,
        le=16_383,
    )
    master_addr: str = setting(
        "localhost",
        title="Rendezvous address (first machine)",
        help="The host name or IP address at which the other machines reach machine 0. With localhost, machine 0 "
        "uses its own address in the network and shows it.",
        depends_on="enable_multi_gpu",
        min_length=1,
    )
    lr_scaling: Literal["sqrt", "linear", "none"] = setting(
        "sqrt",
        title="Learning-rate scaling",
        titles={"sqrt": "Square root"},
        help="More GPUs make a larger batch, which allows a higher learning rate. sqrt: 4 GPUs double it. linear: 4 "
        "GPUs make it four times as high. none: unchanged. Never scaled with a fixed global batch size, or with "
        "prodigy, which finds its step size itself.",
        depends_on="enable_multi_gpu & !global_batch_size",
    )
    balance: Balance = setting(
        EQUAL,
        title="Load balancing",
        help="How the GPUs share the samples of each step. equal: all take as many, and wait for the slowest. auto: "
        "by the speed that is measured while training, for unequal GPUs or ones that other programs use. A number for "
        "each GPU, rank 0 first, such as [2, 1]: rank 0 takes two thirds. The result is the same but for rounding.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=auto|distributed|fully_sharded",
    )
    find_unused_parameters: bool = setting(
        False,
        title="Find unused parameters",
        help="Needed only if parts of the model are not used in some steps; an error message then names them and "
        "asks for it. Costs some speed.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    broadcast_buffers: bool = setting(
        True,
        title="Broadcast buffers",
        help="Gives all GPUs the same buffers after each step: BatchNorm's running averages become the mean over the "
        "GPUs, so they follow all images as on one GPU. Costs nothing in models that have none.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    bucket_cap_mb: int = setting(
        25,
        title="Gradient bucket size",
        help="How many gradients are gathered before they are sent to the other GPUs. Larger suits fast links, "
        "smaller starts sending earlier. If only a small adapter such as a LoRA is trained, all are sent at once.",
        unit="MiB",
        advanced=True,
        depends_on="enable_multi_gpu",
        ge=1,
        le=4096,
    )
    static_graph: bool = setting(
        False,
        title="Static graph",
        help="Promises that every step uses the same parts of the model, which allows faster communication. If the "
        "promise is wrong, training fails or gives a wrong result.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    gradient_as_bucket_view: bool = setting(
        True,
        title="Gradients as bucket views",
        help="Keeps the gradients only in the memory they are sent from, which saves as much memory as the gradients "
        "take.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    sync_batch_norm: bool = setting(
        False,
        title="Synchronised BatchNorm",
        help="BatchNorm layers average over all GPUs instead of each over its own few images. Better for small "
        "batches, slower; no effect in models without BatchNorm.",
        advanced=True,
        depends_on="enable_multi_gpu",
        resume="warn",
    )
    gradient_compression: Literal["none", "fp16", "bf16", "powersgd"] = setting(
        "none",
        title="Gradient compression",
        titles={"powersgd": "PowerSGD"},
        help="Sends less between the GPUs, for slow networks. none: exact. fp16 and bf16 send half with a little "
        "rounding; powersgd sends far less of large matrices and changes training slightly, but hardly shrinks what "
        "a LoRA sends, which is small already.",
        advanced=True,
        depends_on="enable_multi_gpu",
        resume="warn",
    )
    powersgd_rank: int = setting(
        2,
        title="PowerSGD rank",
        help="Rank of the approximation that is sent for each matrix of gradients. Higher is more exact and sends "
        "more.",
        advanced=True,
        depends_on="enable_multi_gpu & gradient_compression=powersgd",
        ge=1,
        le=256,
        resume="warn",
    )
    powersgd_start_step: int = setting(
        100,
        title="PowerSGD start step",
        help="Steps before this one exchange the full gradients, which change too fast at first to be compressed.",
        unit="steps",
        advanced=True,
        depends_on="enable_multi_gpu & gradient_compression=powersgd",
        ge=2,
        le=1_000_000,
    )
    local_steps: int | None = setting(
        None,
        title="Local steps (DiLoCo, local SGD)",
        help="For several machines on a slow network: each machine trains for N steps on its part of the samples, its "
        "GPUs in step with each other; then the machines average their weights (an outer step). Sends N times less, "
        "and is not exactly the training of one machine. Empty: gradients are averaged over all GPUs in every step.",
        unit="steps",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=auto|distributed",
        ge=1,
        le=100_000,
        resume="warn",
    )
    outer_learning_rate: float = setting(
        1.0,
        title="Outer learning rate (DiLoCo)",
        help="The factor on the mean change of the machines' weights. 1, with an outer momentum of 0, makes the "
        "weights their plain mean. DiLoCo has 0.7, with an outer momentum of 0.9, for 500 local steps.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=auto|distributed & local_steps",
        gt=0,
        le=10,
        resume="warn",
    )
    outer_momentum: float = setting(
        0.0,
        title="Outer momentum (DiLoCo)",
        help="Of the outer step, as Nesterov's. 0: none. After some outer steps in one direction, the weights move by "
        "outer_learning_rate / (1 - outer_momentum) times their mean change; with 20 local steps, 0.7 and 0.9 went "
        "too far.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=auto|distributed & local_steps",
        ge=0,
        lt=1,
        resume="warn",
    )
    outer_compression: Literal["none", "fp16", "int8"] = setting(
        "fp16",
        title="Outer compression",
        help="How the change of the weights is sent between machines. none: in fp32. fp16 and int8 send a half and a "
        "quarter of that, with a scale for every 256 values, so that none overflows.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=auto|distributed & local_steps",
        resume="warn",
    )
    fsdp_replicate: Literal["none", "machines"] = setting(
        "none",
        title="FSDP: replicate (hybrid sharding, HSDP)",
        help="fully_sharded only, on several machines. none: all GPUs divide the weights among them. machines: those "
        "of each machine do, and the machines exchange only gradients, once a step (once a "
        "batch with fsdp_reduce_precision=bf16). Much faster if the network is "
        "slower than the links inside a machine; needs memory for the model in each machine, and as many GPUs on all.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=fully_sharded",
    )
    fsdp_reshard_after_forward: bool = setting(
        True,
        title="FSDP: reshard after forward",
        help="fully_sharded only. On: each GPU frees the others' weights after the forward pass and fetches them "
        "again for the backward pass, which saves memory. Off: faster, needs more memory.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=fully_sharded",
    )
    fsdp_cpu_offload: bool = setting(
        False,
        title="FSDP: CPU offload",
        help="fully_sharded only. Weights, gradients and optimizer state stay in main memory and are copied to the "
        "GPU when needed: the least GPU memory, much slower.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=fully_sharded",
    )
    fsdp_reduce_precision: Literal["fp32", "bf16"] = setting(
        "fp32",
        title="FSDP: gradient reduction precision",
        help="fully_sharded only. fp32 sums gradients exactly; bf16 sends half as much and rounds.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=fully_sharded",
        resume="warn",
    )
    fsdp_whole_gradients: bool = setting(
        False,
        title="FSDP: accumulate unsharded gradients",
        help="fully_sharded only. On: accumulated batches are reduced across the GPUs once a step instead of once a "
        "batch, which is faster, but each GPU then needs memory for the gradients of the whole model.",
        advanced=True,
        depends_on="enable_multi_gpu & training_mode=fully_sharded",
    )
    debug_distributed: bool = setting(
        False,
        title="Distributed debug logs",
        help="Turns on the detailed logs of NCCL and torch.distributed and collects them in the run's log folder. "
        "For finding the cause of a hang; slower.",
        advanced=True,
        depends_on="enable_multi_gpu",
    )
    startup_timeout_s: int = setting(
        1800,
        title="Startup timeout",
        help="How long the processes wait for each other until the first step is done, before they give up with an "
        "error.",
        unit="seconds",
        advanced=True,
        depends_on="enable_multi_gpu",
        ge=10,
        le=604_800,
    )
    step_timeout_s: int = setting(
        300,
        title="Step timeout",
        help="How long a process waits for the others in a step, once training runs, before it gives up with an "
        "error. Increase it for very slow steps.",
        unit="seconds",
        advanced=True,
        depends_on="enable_multi_gpu",
        ge=10,
        le=604_800,
    )
