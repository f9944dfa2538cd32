"""The GPUs found, each with a box to choose it, its memory, load, temperature and power; drawn on one canvas."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence

from app import look, texts
from app.controls import card, frame, text, wrap_within
from app.multi_gpu.readings import Reading
from modules.machine import Gpu, GpuLoad

ROW = 52


class GpuList:
    """A card. `chosen` is told the numbers of the chosen GPUs, None for all of them.

    Up and Down move, Space turns a GPU on or off; at least one stays on.
    """

    def __init__(self, parent: tk.Misc, chosen: Callable[[tuple[int, ...] | None], object]) -> None:
        self.frame = card(parent)
        self._tell = chosen
        self._reading: Reading | None = None
        self._ids: tuple[int, ...] | None = None
        self._place = 0
        head = frame(self.frame)
        head.pack(fill="x", padx=look.px(16), pady=(look.px(12), look.px(4)))
        text(head, texts.GPUS_TITLE, "heading").pack(side="left")
        self._count = text(head, font="small", colour=look.MUTED)
        self._count.pack(side="right")
        self._words = text(self.frame, colour=look.MUTED)
        wrap_within(self._words, self.frame)
        self._words.pack(fill="x", padx=look.px(16), pady=(0, look.px(12)))
        self.canvas = tk.Canvas(self.frame, height=0, width=10, borderwidth=0, highlightthickness=0, takefocus=1)
        self.canvas.bind("<Configure>", lambda event: self._draw())
        self.canvas.bind("<Button-1>", self._clicked)
        self.canvas.bind("<FocusIn>", lambda event: self._draw())
        self.canvas.bind("<FocusOut>", lambda event: self._draw())
        self.canvas.bind("<Up>", lambda event: self._move(-1))
        self.canvas.bind("<Down>", lambda event: self._move(1))
        self.canvas.bind("<space>", lambda event: self.toggle(self._place))
        look.follow(self.canvas, "rows", self._recoloured)

    def show(self, reading: Reading, device_ids: Sequence[int] | None) -> None:
        """Show what the driver says, and which GPUs the settings name."""
        ids = None if device_ids is None else tuple(device_ids)
        if (reading, ids) == (self._reading, self._ids):
            return
        count_changed = self._reading is None or len(reading.gpus) != len(self._reading.gpus)
        self._reading, self._ids = reading, ids
        if count_changed:
            self._arrange(reading)
        counted = texts.GPUS_CHOSEN.format(chosen=len(self.chosen()), found=len(reading.gpus))
        self._count.configure(text=counted if reading.gpus else "")
        self._draw()

    def chosen(self) -> list[int]:
        """The numbers of the GPUs that would be used."""
        return [gpu.index for gpu in self._gpus if self._ids is None or gpu.index in self._ids]

    @property
    def _gpus(self) -> tuple[Gpu, ...]:
        return () if self._reading is None else self._reading.gpus

    def toggle(self, place: int) -> None:
        """Turn a GPU on or off."""
        gpus = self._gpus
        if not 0 <= place < len(gpus):
            return
        wanted = set(self.chosen()) ^ {gpus[place].index}
        if wanted:
            every = all(gpu.index in wanted for gpu in gpus)
            self._tell(None if every else tuple(gpu.index for gpu in gpus if gpu.index in wanted))

    def _arrange(self, reading: Reading) -> None:
        found = bool(reading.gpus)
        self._words.configure(text="" if found else texts.NO_GPUS)
        if found:
            self._words.pack_forget()
            self.canvas.configure(height=look.px(ROW * len(reading.gpus)))
            self.canvas.pack(fill="x", padx=look.px(8), pady=(0, look.px(8)))
        else:
            self.canvas.pack_forget()
            self._words.pack(fill="x", padx=look.px(16), pady=(0, look.px(12)))

    def _move(self, by: int) -> str:
        self._place = min(max(self._place + by, 0), max(len(self._gpus) - 1, 0))
        self._draw()
        return "break"

    def _clicked(self, event: tk.Event[tk.Canvas]) -> None:
        self.canvas.focus_set()
        self._place = int(event.y) // look.px(ROW)
        self.toggle(self._place)

    def _recoloured(self) -> None:
        self.canvas.configure(bg=look.now(look.CARD))
        self._draw()

    def _draw(self) -> None:
        self.canvas.delete("all")
        loads = {} if self._reading is None else {load.index: load for load in self._reading.loads}
        for place, gpu in enumerate(self._gpus):
            self._draw_row(place, gpu, loads.get(gpu.index))

    def _draw_row(self, place: int, gpu: Gpu, load: GpuLoad | None) -> None:
        canvas, width, top = self.canvas, self.canvas.winfo_width(), look.px(ROW * place)
        is_on = gpu.index in self.chosen()
        if place == self._place and canvas.focus_get() is canvas:
            canvas.create_rectangle(
                2, top + 2, width - 2, top + look.px(ROW) - 2, outline=look.now(look.ACCENT), width=2
            )
        self._draw_box(look.px(10), top + look.px(9), is_on)
        colour = look.now(look.TEXT if is_on else look.FAINT)
        left = look.px(38)
        name = texts.GPU_NAME.format(index=gpu.index, name=gpu.name.removeprefix("NVIDIA "))
        canvas.create_text(left, top + look.px(17), anchor="w", text=name, fill=colour, font=look.tk_font("strong"))
        facts = gpu_facts(load)
        canvas.create_text(
            width - look.px(12), top + look.px(17), anchor="e", text=facts, fill=look.now(look.MUTED),
            font=look.tk_font("small"),
        )  # fmt: skip
        used = 0 if load is None or load.memory_used_mib is None else load.memory_used_mib
        words = texts.GPU_MEMORY.format(used=used / 1024, total=gpu.memory_mib / 1024)
        room = width - look.px(140)
        self._draw_bar(left, top + look.px(34), room, used / max(1, gpu.memory_mib), is_on)
        canvas.create_text(
            width - look.px(12), top + look.px(37), anchor="e", text=words, fill=look.now(look.MUTED),
            font=look.tk_font("small"),
        )  # fmt: skip

    def _draw_box(self, left: int, top: int, is_on: bool) -> None:
        side = look.px(17)
        colour = look.now(look.ACCENT) if is_on else look.now(look.FIELD)
        self.canvas.create_rectangle(
            left, top, left + side, top + side, fill=colour, outline=look.now(look.ACCENT if is_on else look.FIELD_LINE)
        )
        if is_on:
            x, y, unit = left, top, side / 17
            tick = [x + 4 * unit, y + 9 * unit, x + 7 * unit, y + 12 * unit, x + 13 * unit, y + 5 * unit]
            self.canvas.create_line(tick, fill=look.now(look.ON_ACCENT), width=look.px(2), capstyle="round")

    def _draw_bar(self, left: int, top: int, right: int, share: float, is_on: bool) -> None:
        height = look.px(6)
        self.canvas.create_rectangle(left, top, right, top + height, fill=look.now(look.TROUGH), width=0)
        colour = look.BAD if share > 0.95 else look.WARN if share > 0.85 else look.ACCENT
        end = left + max(0, min(1, share)) * (right - left)
        self.canvas.create_rectangle(
            left, top, end, top + height, fill=look.now(colour if is_on else look.FAINT), width=0
        )


def gpu_facts(load: GpuLoad | None) -> str:
    """ "37 %   61 °C   215 W": what the driver offers of it."""
    if load is None:
        return ""
    figures = (
        (load.utilization_percent, "{:.0f} %"),
        (load.temperature_c, "{:.0f} °C"),
        (load.power_w, "{:.0f} W"),
    )
    return "   ".join(form.format(figure) for figure, form in figures if figure is not None)
