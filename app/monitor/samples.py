"""The Samples page: all prompts at one step, with a slider over the steps and the loss; one prompt at all
steps; or all."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from app.monitor.page import Page
from app.monitor.points import points_of, smoothed
from app.monitor.tile_grid import TileGrid
from app.monitor.tile_lines import Block
from app.monitor.viewer import SampleViewer
from app.open_path import show_folder
from app.widgets import theme
from app.widgets.buttons import Button, Menu, Segments, Slider, add_tooltip, card, frame, handler, text
from app.widgets.text_width import text_width
from app.windows.custom_sample import custom_sample_obstacle
from modules.run.folder.run_folder import RunFolder
from modules.run.view.event_records import SampleFile
from modules.run.view.run_view import RunView

BY_STEP: Final = "By step"
BY_PROMPT: Final = "By prompt"
ALL_STEPS: Final = "All"
_FULL: Final = 1000  # positions of the slider
_SLIDER: Final = 320  # of most widths, in unscaled pixels
_MENU: Final = 460
_LOSS: Final = 90  # what the others leave to the loss
_GAP: Final = 12
_UNKNOWN: Final = -1
_HEIGHT: Final = 30  # unscaled pixels
_NARROWEST: Final = 60
_EDGE: Final = 4
_READ_S: Final = 2.0
_SMOOTHING: Final = 0.05  # of the curve


class SamplesPage(Page):
    """Shows the newest step until the slider is moved away from the end."""

    def build(self) -> None:
        """Mode and slider above, images in a card."""
        self.index = SampleIndex()
        self.view = BY_STEP
        self.step: int | None = None
        self.prompt = ""
        self._follows = True
        self._viewer: SampleViewer | None = None
        self._custom_count = _UNKNOWN
        bar = frame(self, theme.WINDOW)
        bar.pack(fill="x", padx=theme.px(6), pady=(0, theme.px(8)))
        self.mode = Segments(bar, [BY_STEP, BY_PROMPT, ALL_STEPS], self._choose_mode)
        self.mode.set(BY_STEP)
        self.mode.pack(side="left")
        # before the controls, which get the room that is left
        self.custom = Button(
            bar, "Custom sample…", lambda: self.state.views.custom_sample(), icon="generate", bg=theme.WINDOW
        )
        self.custom.pack(side="right")
        self._controls = frame(bar, theme.WINDOW)
        self._controls.pack(side="left", fill="x", expand=True, padx=(theme.px(16), 0))
        self._controls.bind("<Configure>", lambda event: self._fit_controls())
        self.slider = Slider(self._controls, 0, 1, _FULL, self._slide, bg=theme.WINDOW, width=_SLIDER)
        self.slider.show(1)
        for key, by in (("<Left>", -1), ("<Right>", 1)):
            self.slider.bind(key, handler(partial(self._step_by, by)))
        self.position = text(self._controls, "", bg=theme.WINDOW)
        add_tooltip(self.position, "Which of the steps with samples is shown, and the training loss near it, smoothed.")
        self.loss = LossStrip(self._controls, self._choose_step)
        self.loss.pack(side="right", fill="x", expand=True, padx=(0, theme.px(_GAP)))
        add_tooltip(self.loss, "The training loss, smoothed. Click for the samples of a step.")
        self.menu = Menu(self._controls, [""], self._choose_prompt, bg=theme.WINDOW, width=_MENU)
        add_tooltip(self.custom, self._custom_help)
        self._reason = ""
        self._show_custom()
        holder = card(self)
        holder.pack(fill="both", expand=True, padx=6, pady=(0, 6))
        self.grid_view = TileGrid(holder, self._open)
        self.grid_view.pack(fill="both", expand=True, padx=theme.px(4), pady=theme.px(4))

    def run_changed(self) -> None:
        """Clear the page for another run."""
        self.index = SampleIndex()
        self.grid_view.clear()
        self.loss.clear()
        self.step, self.prompt, self._follows = None, "", True
        self._custom_count = _UNKNOWN
        self.slider.show(1)
        self.menu.set_choices([""])
        self.menu.show("")
        self._show_custom()
        self._show_controls()
        self._show()

    def refresh(self) -> None:
        """Show new samples, and whether more can be asked for."""
        self._show_custom()
        if self.run is not None and self.index.steps and self.loss.refresh(self.run.view):
            self._show_position()
        if self.run is None:
            return
        resets, is_caught_up = self.index.resets, self.run.is_caught_up
        has_new = self.index.update(self.run.view, self.run.folder)
        new_custom = self._new_custom(is_caught_up)
        if not has_new:
            return
        if self.index.resets != resets:
            self.grid_view.clear()
        prompts = self.index.prompts
        self.menu.set_choices(prompts)
        self.prompt = self.prompt or (prompts[0] if prompts else "")
        self.menu.show(self.prompt)
        previous = self.step
        self._fit_controls()
        self._show_controls()
        if self._follows and self.index.steps:
            self.step = self.index.steps[-1]
        self._show(keep_scroll=self.view != BY_STEP or previous == self.step)
        if new_custom is not None:
            self.show_sample(new_custom)

    def show_sample(self, sample: SampleFile) -> None:
        """Show a sample among those of its step, and mark it."""
        self.refresh()
        if sample.step not in self.index.steps:
            return
        self._leave_view()
        self._go_to(self.index.steps.index(sample.step))
        found = next((each for each in self.shown() if Path(each.file).name == Path(sample.file).name), sample)
        self.grid_view.mark(found.file)

    def _new_custom(self, is_caught_up: bool) -> SampleFile | None:
        """A custom sample that has just come; none of those that the run had before."""
        count, before = len(self.index.custom), self._custom_count
        if is_caught_up or before != _UNKNOWN:
            self._custom_count = count
        return self.index.custom[-1] if _UNKNOWN < before < count else None

    def close(self) -> None:
        """Stop the image thread."""
        self.grid_view.close()

    def shown(self) -> list[SampleFile]:
        """The samples shown now, in order."""
        if self.view == BY_PROMPT:
            return self.index.of_prompt(self.prompt)
        if self.view == ALL_STEPS:
            return [sample for row in self._rows() for sample in row]
        return [] if self.step is None else self.index.at_step(self.step)

    def _rows(self) -> list[list[SampleFile]]:
        """The samples of each step, the newest first; custom ones belong to no column."""
        steps = reversed(self.index.steps)
        return [[sample for sample in self.index.at_step(step) if not sample.is_custom] for step in steps]

    def _show(self, *, keep_scroll: bool = False) -> None:
        samples, blocks = self.shown(), list[Block]()
        if self.view == BY_PROMPT:
            items = [(sample, f"step {sample.step:,}") for sample in samples]
        elif self.view == ALL_STEPS:
            items = [(sample, f"{sample.step:,}  ·  {sample.prompt}") for sample in samples]
            rows = self._rows()
            longest = max(map(len, rows), default=0)
            blocks = [Block(len(row), longest, is_apart=True) for row in rows]
        else:
            blocks = [Block(max(len(samples), self._expected()))]
            items = [(sample, f"{'custom:  ' if sample.is_custom else ''}{sample.prompt}") for sample in samples]
        self._show_position()
        self.grid_view.show(items, keep_scroll=keep_scroll, blocks=blocks)

    def _expected(self) -> int:
        """How many images there will be at the step in sight, while the run draws them; else 0."""
        if self.run is None or not self.index.steps or self.step != self.index.steps[-1]:
            return 0
        with self.run.view.lock:
            phase, run_info = self.run.view.phase, self.run.view.run_info
        if phase is None or phase.name != "sampling" or run_info is None or not self.run.is_alive:
            return 0
        found = run_info.config.get("samples")
        prompts = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
        custom = sum(sample.is_custom for sample in self.index.at_step(self.step))
        return sum(bool(each.get("enabled", True)) for each in prompts) + custom

    def _show_position(self) -> None:
        """Which step is shown, and the loss at it."""
        steps = self.index.steps
        self.slider.enable(len(steps) > 1)
        if self.view != BY_STEP or self.step is None or self.step not in steps:
            self.loss.mark(None)
            self.position.configure(text="")
            return
        loss = self.loss.loss_at(self.step)
        self.position.configure(text=_position(steps, self.step, loss))
        self.loss.mark(self.step)

    def _fit_controls(self) -> None:
        """The slider leaves room for the longest position beside it, so that it does not move while it is used."""
        if self._controls.winfo_width() <= 1:
            return  # until it is known
        room = self._controls.winfo_width() - theme.px(_LOSS) - theme.px(_GAP)
        steps = self.index.steps
        longest = text_width(self, _position(steps, steps[-1], 0.001234), theme.tk_font()) if steps else 0
        left = room - longest - 2 * theme.px(_GAP)
        self.slider.configure(width=min(theme.px(_SLIDER), max(left, theme.px(_SLIDER) // 4)))
        self.menu.configure(width=min(theme.px(_MENU), room - theme.px(_GAP)))

    def _choose_step(self, wanted: float) -> None:
        """Show the samples drawn nearest to a step."""
        steps = self.index.steps
        if steps:
            self._leave_view()
            index = min(range(len(steps)), key=lambda number: abs(steps[number] - wanted))
            self._go_to(index)

    def _show_custom(self) -> None:
        reason = "No run is followed." if self.run is None else custom_sample_obstacle(self.run)
        if reason != self._reason:
            self._reason = reason
            self.custom.configure(state="disabled" if reason else "normal")

    def _custom_help(self) -> str:
        return self._reason or "Generate an image with a prompt of your own, after the current step."

    def _leave_view(self) -> None:
        """Show the samples of one step."""
        if self.view != BY_STEP:
            self.mode.set(BY_STEP)
            self._choose_mode(BY_STEP)

    def _choose_mode(self, mode: str) -> None:
        self.view = mode
        self._show_controls()
        self._show()

    def _show_controls(self) -> None:
        """Those of the mode, once there is something to choose."""
        for control in (self.menu, self.slider, self.position):
            control.pack_forget()
        if self.index.steps and self.view == BY_PROMPT:
            self.menu.pack(side="left", padx=(0, theme.px(_GAP)))
        elif self.index.steps and self.view == BY_STEP:
            self.slider.pack(side="left")
            self.position.pack(side="left", padx=theme.px(_GAP))

    def _choose_prompt(self, prompt: str) -> None:
        self.prompt = prompt
        self._show()

    def _slide(self, fraction: float) -> None:
        steps = self.index.steps
        if steps:
            index = round(fraction * (len(steps) - 1))
            self._follows = index == len(steps) - 1
            if steps[index] != self.step:
                self.step = steps[index]
                self._show(keep_scroll=True)

    def _step_by(self, by: int) -> None:
        steps = self.index.steps
        if self.step in steps:
            self._go_to(min(max(steps.index(self.step) + by, 0), len(steps) - 1))

    def _go_to(self, index: int) -> None:
        fraction = index / max(1, len(self.index.steps) - 1)
        self.slider.show(fraction)
        self._slide(fraction)

    def _open(self, sample: SampleFile) -> None:
        if self._viewer is not None and self._viewer.winfo_exists():
            self._viewer.destroy()
        viewer = self._viewer = SampleViewer(self, self.index, sample)
        Button(
            viewer.buttons,
            "Open folder",
            lambda: show_folder(self.state, Path(viewer.sample.file).parent, lambda reason: None),
            icon="folder",
            bg=theme.CARD,
        ).pack(anchor="w", pady=(8, 0))


def _position(steps: Sequence[int], step: int, loss: float | None) -> str:
    position = f"Step {step:,}   ({steps.index(step) + 1} of {len(steps)})"
    return position if loss is None else f"{position}   Loss ≈ {loss:.3g}"


class LossStrip(tk.Canvas):
    """`refresh` reads the loss, `mark` says which step is shown; a click calls `choose` with the step clicked on."""

    def __init__(self, parent: tk.Misc, choose: Callable[[float], object]) -> None:
        super().__init__(parent, height=theme.px(_HEIGHT), width=10, borderwidth=0, highlightthickness=0)
        self.configure(cursor="hand2")
        self._choose = choose
        self._step: int | None = None
        self.bind("<Configure>", lambda event: self._draw())
        self.bind("<Button-1>", lambda event: self._click(event.x))
        self.clear()
        theme.paint(self, bg=theme.WINDOW)
        theme.follow(self, "loss", self._draw)

    def clear(self) -> None:
        """Forget the curve: another run is followed."""
        self.steps, self.losses = np.empty(0), np.empty(0)
        self._count, self._read_at = 0, 0.0
        self._draw()

    def refresh(self, view: RunView) -> bool:
        """Read the loss again if some time has passed; return whether it has changed."""
        if time.monotonic() < self._read_at + _READ_S:
            return False
        with view.lock:
            series = view.metrics["loss"]
            if series.count == self._count:
                return False
            self._count, curve = series.count, series.curve()
        points = points_of(curve, "steps", 0.0)
        self.steps, self.losses = smoothed(points, max(1.0, _SMOOTHING * (points.x[-1] - points.x[0])))
        self._read_at = time.monotonic()
        self._draw()
        return True

    def mark(self, step: int | None) -> None:
        """Show at which step the samples were drawn; None for no mark."""
        if step != self._step:
            self._step = step
            self._draw()

    def loss_at(self, step: int) -> float | None:
        """The smoothed loss at a step; None before there is any."""
        return float(np.interp(step, self.steps, self.losses)) if len(self.steps) else None

    def _click(self, x: int) -> None:
        if len(self.steps) > 1:
            share = (x - theme.px(_EDGE)) / max(1, self.winfo_width() - 2 * theme.px(_EDGE))
            self._choose(float(self.steps[0] + share * (self.steps[-1] - self.steps[0])))

    def _draw(self) -> None:
        self.delete("all")
        width, height, edge = self.winfo_width(), self.winfo_height(), theme.px(_EDGE)
        if len(self.steps) < 2 or width < theme.px(_NARROWEST):
            return
        first, least = self.steps[0], self.losses.min()
        across = (width - 2 * edge) / (self.steps[-1] - first)
        high = (height - 2 * edge) / ((self.losses.max() - least) or 1.0)
        x, y = edge + (self.steps - first) * across, height - edge - (self.losses - least) * high
        line = np.column_stack((x, y)).ravel().tolist()
        self.create_line(line, fill=theme.resolve(theme.ACCENT_TEXT), width=theme.px(2), joinstyle="round")
        loss = None if self._step is None else self.loss_at(self._step)
        if self._step is not None and loss is not None:
            at = edge + (min(max(self._step, first), self.steps[-1]) - first) * across
            level, radius = height - edge - (loss - least) * high, theme.px(4)
            self.create_line(at, 0, at, height, fill=theme.resolve(theme.MUTED))
            box = (at - radius, level - radius, at + radius, level + radius)
            self.create_oval(*box, fill=theme.resolve(theme.ACCENT_TEXT), outline=theme.resolve(theme.WINDOW))


class SampleIndex:
    """A sample generated again by a resumed run replaces the previous one of that file name."""

    def __init__(self) -> None:
        self.resets = 0  # how often the run began anew
        self._read_count = 0
        self._by_step: dict[int, dict[str, SampleFile]] = {}
        self._by_prompt: dict[str, dict[str, SampleFile]] = {}
        self._steps: list[int] = []
        self.custom: list[SampleFile] = []  # in the order in which they came

    def update(self, view: RunView, folder: RunFolder) -> bool:
        """Add new samples of the run in `folder`; returns whether there were any."""
        with view.lock:
            if view.samples_count == self._read_count:
                return False
            was_reset = view.samples_count < self._read_count
            count = len(view.samples) if was_reset else min(len(view.samples), view.samples_count - self._read_count)
            new = [view.samples[index] for index in range(len(view.samples) - count, len(view.samples))]
            self._read_count = view.samples_count
        if was_reset:
            self.resets += 1
            self._by_step, self._by_prompt, self.custom = {}, {}, []
        for each in new:
            sample = replace(each, file=str(folder.sample_file(each.file)))
            self._by_step.setdefault(sample.step, {})[sample.file] = sample
            self._by_prompt.setdefault(sample.prompt, {})[sample.file] = sample
            self.custom += [sample] * sample.is_custom
        self._steps = sorted(self._by_step)
        return True

    @property
    def steps(self) -> list[int]:
        """All steps with samples, in order."""
        return self._steps

    @property
    def prompts(self) -> list[str]:
        """All prompts in order of first appearance."""
        return list(self._by_prompt)

    def at_step(self, step: int) -> list[SampleFile]:
        """The samples of a step in prompt order."""
        return sorted(self._by_step.get(step, {}).values(), key=lambda sample: sample.file)

    def of_prompt(self, prompt: str) -> list[SampleFile]:
        """The samples of a prompt in step order."""
        return sorted(self._by_prompt.get(prompt, {}).values(), key=lambda sample: (sample.step, sample.file))
