"""The GPUs where Train starts the run, with checkbox and memory; those of this computer also with load, temperature and
power. They are drawn on one canvas."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.state import AppState
from app.widgets import theme
from app.widgets.bar import Bar
from app.widgets.buttons import Button, card, frame, text, wrap_within
from modules.machine import Gpu, GpuLoad, gpu_load, visible_gpus
from modules.run.hosts.hardware import Hardware

ROW = 52
_ASK = 120  # unscaled pixels beside the text for the button
_SEVERAL_ON_CPU = "For a test of several processes that share it, switch on “Multi-GPU training” and set “World size”."


@dataclass(frozen=True)
class GpuReading:
    """The GPUs that a run may use on this computer with their current load, or on a `machine`, without."""

    gpus: tuple[Gpu, ...] = ()
    loads: tuple[GpuLoad, ...] = ()
    machine: Hardware | None = None

    @property
    def found_none(self) -> str:
        """What it means that there are no GPUs; "" if there are some."""
        if self.gpus:
            return ""
        if self.machine is None:
            return f"No GPU found: training runs on the CPU. {_SEVERAL_ON_CPU}"
        return f"It has no GPU: training runs on its CPU. {_SEVERAL_ON_CPU}" if self.machine.at else ""


def read_gpus() -> GpuReading:
    """Query this computer's driver, which takes some tens of milliseconds: call it off the main thread."""
    gpus = visible_gpus()
    return GpuReading(tuple(gpus), tuple(gpu_load(gpus)))


class GpuList:
    """A card. `on_select` is called with the indices of the selected GPUs, None for all.

    Up and Down move, Space toggles a GPU; at least one stays selected.
    """

    def __init__(self, parent: tk.Misc, state: AppState, on_select: Callable[[tuple[int, ...] | None], object]) -> None:
        self.frame = card(parent)
        self._place = state.place
        self._on_select = on_select
        self._reading: GpuReading | None = None
        self._ids: tuple[int, ...] | None = None
        self._row = 0
        self._bars: list[Bar] = []
        head = frame(self.frame)
        head.pack(fill="x", padx=theme.px(16), pady=(theme.px(12), theme.px(4)))
        self._title = text(head, "GPUs on this machine", "heading")
        self._title.pack(side="left")
        self._count = text(head, font="small", colour=theme.MUTED)
        self._count.pack(side="right")
        self._message = text(self.frame, "Looking for GPUs…", colour=theme.MUTED)  # takes seconds on a busy machine
        wrap_within(self._message, self.frame)
        self._message.pack(fill="x", padx=theme.px(16), pady=(0, theme.px(12)))
        self._below = frame(self.frame)  # of another machine: from when this is
        self.ask_button = Button(self._below, "Ask again", self._place.ask, bg=theme.CARD)
        self.ask_button.pack(side="right", anchor="n")
        self._known = text(self._below, font="small", colour=theme.MUTED)
        wrap_within(self._known, self._below, margin=_ASK)
        self._known.pack(side="left", fill="x")
        self.canvas = tk.Canvas(self.frame, height=0, width=10, borderwidth=0, highlightthickness=0, takefocus=1)
        self.canvas.bind("<Configure>", lambda event: self._draw())
        self.canvas.bind("<Button-1>", self._on_click)
        self.canvas.bind("<FocusIn>", lambda event: self._draw())
        self.canvas.bind("<FocusOut>", lambda event: self._draw())
        self.canvas.bind("<Up>", lambda event: self._move(-1))
        self.canvas.bind("<Down>", lambda event: self._move(1))
        self.canvas.bind("<space>", lambda event: self.toggle(self._row))
        theme.follow(self.canvas, "rows", self._recolour)

    def show(self, reading: GpuReading, device_ids: Sequence[int] | None) -> None:
        """Show the readings and the selection of the settings."""
        ids = None if device_ids is None else tuple(device_ids)
        self._show_known(reading.machine)
        if (reading, ids) == (self._reading, self._ids):
            return
        before = self._reading
        count_changed = before is None or (len(reading.gpus), reading.found_none) != (
            len(before.gpus),
            before.found_none,
        )
        self._reading, self._ids = reading, ids
        if count_changed:
            self._arrange(reading)
        summary = f"{len(self.selected())} of {len(reading.gpus)} selected"
        self._count.configure(text=summary if reading.gpus else "")
        self._draw()

    def selected(self) -> list[int]:
        """Indices of the selected GPUs."""
        return [gpu.index for gpu in self._gpus if self._ids is None or gpu.index in self._ids]

    @property
    def _gpus(self) -> tuple[Gpu, ...]:
        return () if self._reading is None else self._reading.gpus

    def toggle(self, row: int) -> None:
        """Select or deselect a GPU."""
        gpus = self._gpus
        if not 0 <= row < len(gpus):
            return
        selection = set(self.selected()) ^ {gpus[row].index}
        if selection:
            every = all(gpu.index in selection for gpu in gpus)
            self._on_select(None if every else tuple(gpu.index for gpu in gpus if gpu.index in selection))

    def _arrange(self, reading: GpuReading) -> None:
        self._message.configure(text=reading.found_none)
        self._message.pack_forget()
        self.canvas.pack_forget()
        self._below.pack_forget()
        if reading.gpus:
            self.canvas.configure(height=theme.px(ROW * len(reading.gpus)))
            self.canvas.pack(fill="x", padx=theme.px(8), pady=(0, theme.px(8)))
        elif reading.found_none:
            self._message.pack(fill="x", padx=theme.px(16), pady=(0, theme.px(12)))
        if reading.machine is not None:
            self._below.pack(fill="x", padx=theme.px(16), pady=(0, theme.px(12)))

    def _show_known(self, machine: Hardware | None) -> None:
        """Whose GPUs these are, and from when that is known."""
        self._title.configure(text="GPUs on this machine" if machine is None else f"GPUs on {machine.name}")
        if machine is None:
            return
        is_asking, fault = self._place.is_asking, self._place.fault
        why = f"It could not be asked again: {fault}" if fault else ""
        self._known.configure(text=" ".join(filter(None, [str(machine), f"Asking {machine.name}…" * is_asking or why])))
        theme.paint(self._known, fg=theme.WARN if why and not is_asking else theme.MUTED)
        if machine.is_cluster:
            self.ask_button.pack_forget()  # its login node does not know
        else:
            self.ask_button.pack(side="right", anchor="n")
        label = "Ask again" if machine.at else f"Ask {machine.name}"
        self.ask_button.configure(text=label, state="disabled" if is_asking else "normal")

    def _move(self, by: int) -> str:
        self._row = min(max(self._row + by, 0), max(len(self._gpus) - 1, 0))
        self._draw()
        return "break"

    def _on_click(self, event: tk.Event[tk.Canvas]) -> None:
        self.canvas.focus_set()
        self._row = int(event.y) // theme.px(ROW)
        self.toggle(self._row)

    def _recolour(self) -> None:
        self.canvas.configure(bg=theme.resolve(theme.CARD))
        self._draw()

    def _draw(self) -> None:
        self.canvas.delete("all")
        self._bars = []
        loads = {} if self._reading is None else {load.index: load for load in self._reading.loads}
        for row, gpu in enumerate(self._gpus):
            self._draw_row(row, gpu, loads.get(gpu.index))

    def _draw_row(self, row: int, gpu: Gpu, load: GpuLoad | None) -> None:
        canvas, width, top = self.canvas, self.canvas.winfo_width(), theme.px(ROW * row)
        is_on = gpu.index in self.selected()
        if row == self._row and canvas.focus_get() is canvas:
            canvas.create_rectangle(
                2, top + 2, width - 2, top + theme.px(ROW) - 2, outline=theme.resolve(theme.ACCENT), width=2
            )
        self._draw_checkbox(theme.px(10), top + theme.px(9), is_on)
        colour = theme.resolve(theme.TEXT if is_on else theme.FAINT)
        left = theme.px(38)
        name = f"GPU {gpu.index}   {gpu.name.removeprefix('NVIDIA ')}"
        canvas.create_text(left, top + theme.px(17), anchor="w", text=name, fill=colour, font=theme.tk_font("strong"))
        used = 0 if load is None or load.memory_used_mib is None else load.memory_used_mib
        memory = f"{gpu.memory_mib / 1024:.0f} GiB"
        beside = [memory]
        if self._reading is not None and self._reading.machine is None:
            beside = [format_gpu_load(load), f"{used / 1024:.1f} of {memory}"]
            self._draw_bar(left, top + theme.px(34), width - theme.px(140), used / max(1, gpu.memory_mib), is_on)
        for line, said in enumerate(beside):
            canvas.create_text(
                width - theme.px(12), top + theme.px(17 + 20 * line), anchor="e", text=said,
                fill=theme.resolve(theme.MUTED), font=theme.tk_font("small"),
            )  # fmt: skip

    def _draw_checkbox(self, left: int, top: int, is_on: bool) -> None:
        side = theme.px(17)
        colour = theme.resolve(theme.ACCENT) if is_on else theme.resolve(theme.FIELD)
        self.canvas.create_rectangle(
            left,
            top,
            left + side,
            top + side,
            fill=colour,
            outline=theme.resolve(theme.ACCENT if is_on else theme.FIELD_LINE),
        )
        if is_on:
            x, y, unit = left, top, side / 17
            tick = [x + 4 * unit, y + 9 * unit, x + 7 * unit, y + 12 * unit, x + 13 * unit, y + 5 * unit]
            self.canvas.create_line(tick, fill=theme.resolve(theme.ON_ACCENT), width=theme.px(2), capstyle="round")

    def _draw_bar(self, left: int, top: int, right: int, fraction: float, is_on: bool) -> None:
        colour = theme.BAD if fraction > 0.95 else theme.WARN if fraction > 0.85 else theme.ACCENT
        end = left + round(max(0, min(1, fraction)) * (right - left))
        for stop, fill in ((right, theme.TROUGH), (end, colour if is_on else theme.FAINT)):
            bar = Bar(self.canvas, theme.px(6))
            bar.colour(theme.resolve(fill))
            bar.place(left, stop, top)
            self._bars.append(bar)  # Tk itself keeps no reference to their ends


def format_gpu_load(load: GpuLoad | None) -> str:
    """ "37 %   61 °C   215 W", as far as the driver reports it."""
    if load is None:
        return ""
    metrics = (
        (load.utilization_percent, "{:.0f} %"),
        (load.temperature_c, "{:.0f} °C"),
        (load.power_w, "{:.0f} W"),
    )
    return "   ".join(form.format(value) for value, form in metrics if value is not None)
