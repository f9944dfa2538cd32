"""Several GPUs and several machines."""

from __future__ import annotations

from functools import partial

from app import look, texts
from app.controls import Button, card, text, wrap_within
from app.form.build import Card
from app.multi_gpu.gpu_list import GpuList
from app.multi_gpu.link_matrix import LinkMatrix
from app.multi_gpu.readings import Reading, read_gpus, read_links
from app.multi_gpu.sentence import describe
from app.sections.form_section import FormSection
from modules.machine import Link

_READ_EVERY_MS = 1500
_PLAN_PAUSE_MS = 250


class Section(FormSection):
    """Who takes part, how they are started, how they share the work."""

    name = "multi_gpu"
    declared_in = ("Multi-GPU",)
    cards = (
        Card(texts.CARD_SEVERAL_GPUS, ("enable_multi_gpu", "training_mode", "device_ids", "world_size"), 0),
        Card(texts.CARD_LEARNING_RATE, ("lr_scaling",), 0),
        Card(
            texts.CARD_SEVERAL_MACHINES,
            ("num_nodes", "node_rank", "master_addr", "processes_per_node", "rendezvous"),
            1,
        ),
        Card(
            texts.CARD_START,
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
            texts.CARD_PATIENCE_AND_DIAGNOSIS,
            ("startup_timeout_s", "step_timeout_s", "debug_distributed"),
            1,
        ),
        Card(
            texts.CARD_EXCHANGE_OF_GRADIENTS,
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
            texts.CARD_MODELS_TOO_LARGE_FOR_ONE_GPU,
            ("fsdp_reshard_after_forward", "fsdp_cpu_offload", "fsdp_reduce_precision", "fsdp_whole_gradients"),
            0,
        ),
    )

    def build(self) -> None:
        """The GPUs and what the settings amount to, above the generated cards."""
        self._reading: Reading | None = None
        self._reading_at = ""
        self._planning = ""
        self._links_read = False
        self.gpus = GpuList(self.scroll.inside, self._choose)
        self.columns.add(self.gpus.frame, 0)
        self.plan = card(self.scroll.inside)
        title = text(self.plan, texts.PLAN_TITLE, "heading")
        title.pack(anchor="w", padx=look.px(16), pady=(look.px(12), look.px(4)))
        self.plan_words = text(self.plan)
        wrap_within(self.plan_words, self.plan)
        self.plan_words.pack(fill="x", padx=look.px(16), pady=(0, look.px(14)))
        self.columns.add(self.plan, 1)
        super().build()
        for words, event in ((texts.MULTI_NODE, "<<MultiNode>>"), (texts.PREFLIGHT, "<<Preflight>>")):
            button = Button(self.head, words, partial(self.event_generate, event), on=look.WINDOW)
            button.pack(side="right", padx=(8, 0))

    def show(self) -> None:
        super().show()
        self._read()

    def hide(self) -> None:
        super().hide()
        if self._reading_at:
            self.after_cancel(self._reading_at)
            self._reading_at = ""

    def refresh(self) -> None:
        super().refresh()
        self._show_gpus()
        if self._planning:
            self.after_cancel(self._planning)
        self._planning = self.after(_PLAN_PAUSE_MS, self._describe)

    def _read(self) -> None:
        """Ask the driver, now and again while the section is in sight."""
        self._reading_at = ""
        self.state.background.run(read_gpus, self._take_in)

    def _take_in(self, reading: Reading) -> None:
        self._reading = reading
        if not self.shown:
            return
        self._show_gpus()
        if len(reading.gpus) > 1 and not self._links_read:
            self._links_read = True
            self.state.background.run(lambda: read_links(reading), self._show_links)
        self._reading_at = self.after(_READ_EVERY_MS, self._read)

    def _show_gpus(self) -> None:
        if self._reading is None:
            return
        ids = self.state.draft.get("device_ids")
        whole = isinstance(ids, list) and all(isinstance(number, int) for number in ids)
        self.gpus.show(self._reading, ids if isinstance(ids, list) and whole else None)

    def _show_links(self, links: list[Link]) -> None:
        matrix = LinkMatrix(self.scroll.inside)
        matrix.show(links)
        self.columns.add(matrix.frame, 1)
        self.refresh()

    def _choose(self, ids: tuple[int, ...] | None) -> None:
        self.state.draft.set("device_ids", None if ids is None else list(ids))

    def _describe(self) -> None:
        self._planning = ""
        config = self.state.draft.config
        self.state.background.run(lambda: describe(config), self._tell)

    def _tell(self, told: tuple[str, str]) -> None:
        sentence, fault = told
        look.paint(self.plan_words, fg=look.BAD if fault else look.TEXT)
        self.plan_words.configure(text=fault or sentence)
