"""The page of samples: all prompts at one step, with a slider through time, or one prompt through all steps."""

from __future__ import annotations

from functools import partial
from typing import Final

from app import look, texts
from app.controls import Menu, Segments, Slider, card, frame, text, then
from app.monitor.page import Page
from app.monitor.sample_index import SampleIndex
from app.monitor.tile_grid import TileGrid
from app.monitor.viewer import Viewer
from app.run_facts import SampleFile

_FULL: Final = 1000  # positions of the slider


class SamplesPage(Page):
    """The newest step is shown until one moves the slider away from the end."""

    def build(self) -> None:
        """Choice and slider above, pictures in a card."""
        self.index = SampleIndex()
        self.by_prompt = False
        self.step: int | None = None
        self.prompt = ""
        self._follows = True
        self._viewer: Viewer | None = None
        bar = frame(self, look.WINDOW)
        bar.pack(fill="x", padx=look.px(6), pady=(0, look.px(8)))
        self.mode = Segments(bar, [texts.BY_STEP, texts.BY_PROMPT], self._choose_mode)
        self.mode.set(texts.BY_STEP)
        self.mode.pack(side="left")
        self._room = frame(bar, look.WINDOW)
        self._room.pack(side="left", fill="x", expand=True, padx=(look.px(16), 0))
        self.slider = Slider(self._room, 0, 1, _FULL, self._slide, on=look.WINDOW, width=320)
        self.slider.show(1)
        self.slider.pack(side="left")
        for key, by in (("<Left>", -1), ("<Right>", 1)):
            self.slider.bind(key, then(partial(self._through_time, by)))
        self.words = text(self._room, "", on=look.WINDOW)
        self.words.pack(side="left", padx=look.px(12))
        self.menu = Menu(self._room, [""], self._choose_prompt, on=look.WINDOW, width=460)
        holder = card(self)
        holder.pack(fill="both", expand=True, padx=6, pady=(0, 6))
        self.grid_of_tiles = TileGrid(holder, self._open)
        self.grid_of_tiles.pack(fill="both", expand=True, padx=look.px(4), pady=look.px(4))

    def followed(self) -> None:
        """Another run."""
        self.index = SampleIndex()
        self.step, self.prompt, self._follows = None, "", True
        self.slider.show(1)
        self.menu.offer([""])
        self._show()

    def refresh(self) -> None:
        """Show samples that came."""
        if self.run is None or not self.index.update(self.run.view):
            return
        prompts = self.index.prompts
        self.menu.offer(prompts)
        self.prompt = self.prompt or (prompts[0] if prompts else "")
        self.menu.show(self.prompt)
        former = self.step
        if self._follows and self.index.steps:
            self.step = self.index.steps[-1]
        self._show(keep_place=self.by_prompt or former == self.step)

    def close(self) -> None:
        """End the thread of the pictures."""
        self.grid_of_tiles.close()

    def shown(self) -> list[SampleFile]:
        """The pictures that are offered to the eye now, in order."""
        if self.by_prompt:
            return self.index.of_prompt(self.prompt)
        return [] if self.step is None else self.index.at_step(self.step)

    def _show(self, *, keep_place: bool = False) -> None:
        samples = self.shown()
        if self.by_prompt:
            items = [(sample, texts.SAMPLE_STEP.format(step=sample.step)) for sample in samples]
            self.words.configure(text="")
        else:
            items = [(sample, sample.prompt) for sample in samples]
            count = len(self.index.steps)
            place = self.index.steps.index(self.step) + 1 if self.step in self.index.steps else 0
            words = texts.SAMPLE_PLACE.format(step=self.step, place=place, count=count) if place else ""
            self.words.configure(text=words)
        self.grid_of_tiles.show(items, keep_place=keep_place)

    def _choose_mode(self, word: str) -> None:
        self.by_prompt = word == texts.BY_PROMPT
        if self.by_prompt:
            self.slider.pack_forget()
            self.words.pack_forget()
            self.menu.pack(side="left")
        else:
            self.menu.pack_forget()
            self.slider.pack(side="left")
            self.words.pack(side="left", padx=look.px(12))
        self._show()

    def _choose_prompt(self, prompt: str) -> None:
        self.prompt = prompt
        self._show()

    def _slide(self, share: float) -> None:
        steps = self.index.steps
        if steps:
            place = round(share * (len(steps) - 1))
            self._follows = place == len(steps) - 1
            if steps[place] != self.step:
                self.step = steps[place]
                self._show(keep_place=True)

    def _through_time(self, by: int) -> None:
        steps = self.index.steps
        if self.step in steps:
            place = min(max(steps.index(self.step) + by, 0), len(steps) - 1)
            share = place / max(1, len(steps) - 1)
            self.slider.show(share)
            self._slide(share)

    def _open(self, sample: SampleFile) -> None:
        if self._viewer is not None and self._viewer.winfo_exists():
            self._viewer.destroy()
        self._viewer = Viewer(self, self.index, sample)
