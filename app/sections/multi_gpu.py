"""Multiple GPUs and multiple machines."""

from __future__ import annotations

from app.form.cards import Card
from app.form.field import Field
from app.form.setting_text import with_titles
from app.multi_gpu.gpu_list import GpuList, GpuReading, read_gpus
from app.multi_gpu.hosts_card import HostsCard
from app.multi_gpu.link_matrix import LinkMatrix
from app.multi_gpu.plan_summary import Summary, describe
from app.sections.form_section import FormSection
from app.widgets import theme
from app.widgets.buttons import Button, card, text, wrap_within
from modules.machine import Link, gpu_links

_READ_EVERY_MS = 1500
_PLAN_PAUSE_MS = 250


class Section(FormSection):
    """Devices, machines, launch and gradient sync."""

    name = "multi_gpu"
    declared_in = ("Multi-GPU",)
    masters = ("enable_multi_gpu",)
    cards = (
        Card("Devices", ("enable_multi_gpu", "training_mode", "device", "device_ids", "world_size"), 0),
        Card("Learning rate", ("lr_scaling",), 0),
        Card("Load balancing", ("balance",), 0),
        Card(
            "Multiple machines",
            ("num_nodes", "node_rank", "master_addr", "processes_per_node", "on_machine_loss"),
            1,
        ),
        Card(
            "Launch",
            (
                "distributed_backend",
                "use_torchrun",
                "distributed_data_loading",
                "share_sampling",
                "initial_port",
                "max_restarts",
            ),
            0,
        ),
        Card(
            "Timeouts and debugging",
            ("startup_timeout_s", "step_timeout_s", "debug_distributed"),
            1,
        ),
        Card(
            "Gradient sync (DDP)",
            (
                "bucket_cap_mb",
                "gradient_as_bucket_view",
                "static_graph",
                "find_unused_parameters",
                "broadcast_buffers",
                "sync_batch_norm",
                "gradient_compression",
                "powersgd_rank",
                "powersgd_start_step",
            ),
            1,
        ),
        Card(
            "Slow networks: local updates",
            ("local_steps", "outer_learning_rate", "outer_momentum", "outer_compression"),
            0,
        ),
        Card(
            "FSDP: large models",
            (
                "fsdp_replicate",
                "fsdp_reshard_after_forward",
                "fsdp_cpu_offload",
                "fsdp_reduce_precision",
                "fsdp_whole_gradients",
            ),
            0,
        ),
    )

    def build(self) -> None:
        """Build the GPU list and the summary above the generated cards."""
        self._reading: GpuReading | None = None
        self._reading_at = ""
        self._planning = ""
        self._links_read = False
        self._marked: list[Field] = []  # what the summary finds at fault
        self.gpus = GpuList(self.scroll.inside, self.state, self._choose)
        self._matrix: LinkMatrix | None = None  # of this computer
        self.columns.add(self.gpus.frame, 0)
        self.plan = card(self.scroll.inside)
        title = text(self.plan, "Summary", "heading")
        title.pack(anchor="w", padx=theme.px(16), pady=(theme.px(12), theme.px(4)))
        self.plan_label = text(self.plan, "Counting the processes…")
        wrap_within(self.plan_label, self.plan)
        self.plan_label.pack(fill="x", padx=theme.px(16), pady=(0, theme.px(14)))
        self.columns.add(self.plan, 1)
        self.hosts = HostsCard(self.scroll.inside, self.state)
        self.columns.add(self.hosts.frame, 1)
        super().build()
        views = self.state.views
        for label, show in (
            ("Multiple machines…", views.multi_node),
            ("Preflight check", views.preflight),
            ("Find the largest batch…", views.batch_size),
            ("Benchmark…", views.benchmark),
        ):
            button = Button(self.head, label, show, bg=theme.WINDOW)
            button.pack(side="right", padx=(8, 0))

    def show(self) -> None:
        super().show()
        self.hosts.read()
        self.state.place.keep_fresh()
        self._read()

    def hide(self) -> None:
        super().hide()
        if self._reading_at:
            self.after_cancel(self._reading_at)
            self._reading_at = ""

    def empty_cards(self) -> set[str]:
        empty = super().empty_cards()
        if self._matrix is not None and self.state.place.machine is not None:
            empty.add(str(self._matrix.frame))
        return empty

    def refresh(self) -> None:
        super().refresh()
        self.hosts.refresh()
        if self.state.place.machine is None and self._reading is not None and self._reading.machine is not None:
            self._reading = None  # this computer is the place again
            self._read()
        self._show_gpus()
        if self._planning:
            self.after_cancel(self._planning)
        self._planning = self.after(_PLAN_PAUSE_MS, self._describe)

    def _read(self) -> None:
        """Query the driver, repeatedly while the section is visible and Train starts runs here."""
        self._reading_at = ""
        if self.state.place.machine is None:
            self.state.background.run(read_gpus, self._show_reading)

    def _show_reading(self, reading: GpuReading) -> None:
        self._reading = reading
        if not self.shown:
            return
        self._show_gpus()
        if len(reading.gpus) > 1 and not self._links_read:
            self._links_read = True
            self.state.background.run(lambda: gpu_links(reading.gpus), self._show_links)
        if self._reading_at:  # the section was left and shown again while this was read
            self.after_cancel(self._reading_at)
        self._reading_at = self.after(_READ_EVERY_MS, self._read)

    def _show_gpus(self) -> None:
        if (machine := self.state.place.machine) is not None:
            self._reading = GpuReading(tuple(machine.as_gpus), machine=machine)
        if self._reading is None:
            return
        ids = self.state.draft.get("device_ids")
        whole = isinstance(ids, list) and all(isinstance(number, int) for number in ids)
        self.gpus.show(self._reading, ids if isinstance(ids, list) and whole else None)

    def _show_links(self, links: list[Link]) -> None:
        self._matrix = matrix = LinkMatrix(self.scroll.inside)
        matrix.show(links)
        self.columns.add(matrix.frame, 1)
        self.refresh()

    def _choose(self, ids: tuple[int, ...] | None) -> None:
        self.state.draft.set("device_ids", None if ids is None else list(ids))

    def _describe(self) -> None:
        self._planning = ""
        config, machine = self.state.draft.config, self.state.place.machine
        self.state.background.run(lambda: describe(config, machine), self._show_summary)

    def _show_summary(self, summary: Summary) -> None:
        sentence, fault, backend, path = summary
        if (field := self.find("distributed_backend")) is not None:
            field.note(backend, theme.MUTED)
        elif self._due and self.shown and not self._planning:  # its card is still to appear
            self._planning = self.after(_PLAN_PAUSE_MS, self._describe)
        theme.paint(self.plan_label, fg=theme.BAD if fault else theme.TEXT)
        self.plan_label.configure(text=with_titles(fault) or sentence)
        for field in self._marked:
            field.note("")
        self._marked = []
        if path:
            self.force(path)
            super().refresh()
            if (field := self.find(path)) is not None:
                field.note(with_titles(fault), theme.BAD)
                self._marked = [field]
