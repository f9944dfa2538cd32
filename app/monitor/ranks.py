"""The page of processes: where the time of a step goes on each, and what its GPU does; only rows in sight are drawn."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app import look, texts
from app.bar import Bar
from app.controls import card, frame, text
from app.cut import cut
from app.monitor.page import Page
from app.monitor.rank_figures import PARTS, Gauge, RankFigures, rank_figures, sentences

ROW: Final = 54
_HEAD: Final = 34
_NAME: Final = 210
_GAUGE: Final = 122
_GAUGES: Final = ("utilization_percent", "memory_used_mib", "temperature_c", "power_w", "cpu_percent", "ram_used_mib")
_LEAST_SPLIT: Final = 200

PART_COLOURS: Final = {
    "data_s": look.SERIES[1],
    "computing": look.SERIES[0],
    "waiting": look.SERIES[3],
}


class RanksPage(Page):
    """A table drawn on a canvas."""

    def build(self) -> None:
        """Sentence and legend above, the table in a card."""
        self.figures: list[RankFigures] = []
        self._told = -1
        head = frame(self, look.WINDOW)
        head.pack(fill="x", padx=look.px(8), pady=(0, look.px(8)))
        self.sentence = text(head, "", on=look.WINDOW)
        self.sentence.pack(side="left")
        self.legend = tk.Canvas(head, height=look.px(18), borderwidth=0, highlightthickness=0)
        look.paint(self.legend, bg=look.WINDOW)
        self.legend.pack(side="right", fill="x", expand=True)
        self.legend.bind("<Configure>", lambda event: self._draw_legend())
        holder = card(self)
        holder.pack(fill="both", expand=True, padx=6, pady=(0, 6))
        self.table = tk.Canvas(holder, borderwidth=0, highlightthickness=0, takefocus=1)
        look.paint(self.table, bg=look.CARD)
        self.bar = Bar(holder, self._scroll)
        self.bar.pack(side="right", fill="y", padx=3, pady=6)
        self.table.pack(fill="both", expand=True, padx=look.px(4), pady=look.px(4))
        self._first = 0
        for sequence, rows in (
            ("<Button-4>", -1),
            ("<Button-5>", 1),
            ("<Up>", -1),
            ("<Down>", 1),
            ("<Prior>", -8),
            ("<Next>", 8),
        ):
            self.table.bind(sequence, lambda event, rows=rows: self._move(rows))  # type: ignore[misc]
        self.table.bind("<MouseWheel>", lambda event: self._move(-1 if event.delta > 0 else 1))
        self.table.bind("<Configure>", lambda event: self.draw())
        look.follow(self.table, "ranks", self.draw)

    def followed(self) -> None:
        """Another run."""
        self._told, self._first, self.figures = -1, 0, []
        self.draw()

    def refresh(self) -> None:
        """Draw again where the processes have told something new."""
        if self.run is None or self.run.view.ranks_count == self._told:
            return
        self._told = self.run.view.ranks_count
        self.figures = rank_figures(self.run.view)
        self.draw()

    def draw(self) -> None:
        """All rows in sight."""
        table = self.table
        table.delete("all")
        width, height = table.winfo_width(), table.winfo_height()
        self._say()
        if not self.figures:
            table.create_text(
                width / 2, height / 2, text=texts.NO_RANKS, fill=look.now(look.FAINT), font=look.tk_font("body")
            )
            self.bar.show(0, 1)
            return
        told = [name for name in _GAUGES if any(name in each.gauges for each in self.figures)]
        shown = told[: max(1, (width - look.px(_NAME + _LEAST_SPLIT)) // look.px(_GAUGE))]
        split = look.px(_NAME), max(look.px(_NAME) + look.px(120), width - look.px(_GAUGE) * len(shown) - look.px(14))
        self._draw_head(split, shown)
        room = max(1, (height - look.px(_HEAD)) // look.px(ROW))
        self._first = max(0, min(self._first, len(self.figures) - room))
        self.bar.show(self._first / len(self.figures), min(1.0, (self._first + room) / len(self.figures)))
        longest = max((each.step_s or 0.0 for each in self.figures), default=0.0)
        for place, each in enumerate(self.figures[self._first : self._first + room + 1]):
            top = look.px(_HEAD) + place * look.px(ROW)
            self._draw_row(each, top, split, shown, longest)

    def _draw_head(self, split: tuple[int, int], shown: list[str]) -> None:
        middle = look.px(_HEAD) / 2
        titles = [(look.px(14), texts.RANK_NAME), (split[0], texts.RANK_STEP)]
        titles += [(split[1] + n * look.px(_GAUGE), texts.RANK_GAUGES[name][0]) for n, name in enumerate(shown)]
        for x, title in titles:
            self._write(x, middle, title, look.MUTED, "small")
        y = look.px(_HEAD) - 1
        self.table.create_line(0, y, self.table.winfo_width(), y, fill=look.now(look.LINE))

    def _draw_row(self, each: RankFigures, top: int, split: tuple[int, int], shown: list[str], longest: float) -> None:
        upper, lower = top + look.px(19), top + look.px(37)
        mark = texts.RANK_SLOWEST.format(times=each.slowness) if each.is_straggler else ""
        self._write(look.px(14), upper, texts.RANK.format(rank=each.rank), look.WARN if mark else look.TEXT, "strong")
        where = (
            each.device if f"on {each.host}" in each.device else "  ·  ".join(filter(None, (each.host, each.device)))
        )
        self._write(look.px(14), lower, mark or cut(where, 30), look.WARN if mark else look.MUTED, "small")
        self._draw_parts(each, upper, split, longest)
        if each.step_s is not None:
            words = texts.RANK_STEP_TIME.format(now=_seconds(each.step_s), mean=_seconds(each.mean_step_s))
            if each.starvation >= 0.02:
                words += texts.RANK_DATA.format(share=each.starvation)
            self._write(split[0], lower, words, look.MUTED, "small")
        for place, name in enumerate(shown):
            gauge = each.gauges.get(name)
            if gauge is not None:
                self._draw_gauge(name, gauge, split[1] + place * look.px(_GAUGE), upper, lower)
        self.table.create_line(
            look.px(14),
            top + look.px(ROW),
            self.table.winfo_width() - look.px(8),
            top + look.px(ROW),
            fill=look.now(look.LINE),
        )

    def _draw_parts(self, each: RankFigures, y: int, split: tuple[int, int], longest: float) -> None:
        if not longest:
            return
        x, half = float(split[0]), look.px(5)
        scale = (split[1] - split[0] - look.px(24)) / longest
        for name in PARTS:
            seconds = each.parts.get(name, 0.0)
            if seconds > 0:
                end = x + seconds * scale
                colour = look.now(PART_COLOURS[name])
                self.table.create_rectangle(x, y - half, max(end, x + 1), y + half, fill=colour, width=0, tags=name)
                x = end

    def _draw_gauge(self, name: str, gauge: Gauge, x: int, upper: int, lower: int) -> None:
        _, form, unit, scale = texts.RANK_GAUGES[name]
        self._write(x, upper - look.px(5), form.format(gauge.now * scale) + unit, look.TEXT, "small")
        if gauge.fill is not None:
            y, wide = upper + look.px(7), look.px(_GAUGE - 30)
            colour = look.BAD if name == "temperature_c" and gauge.now >= 87 else look.ACCENT
            self.table.create_line(x, y, x + wide, y, width=look.px(4), fill=look.now(look.TROUGH), capstyle="round")
            if gauge.fill > 0:
                self.table.create_line(
                    x, y, x + wide * gauge.fill, y, width=look.px(4), fill=look.now(colour), capstyle="round"
                )
        summary = texts.RANK_SUMMARY.format(
            mean=form.format(gauge.mean * scale), most=form.format(gauge.highest * scale)
        )
        self._write(x, lower + look.px(3), summary, look.FAINT, "small")

    def _say(self) -> None:
        found = sentences(self.figures)
        words = [texts.RANK_SENTENCES[kind].format(rank=self._called(rank), value=value) for kind, rank, value in found]
        if not words and self.figures:
            words = [texts.RANKS_EVEN if len(self.figures) > 1 else texts.RANK_ALONE]
        self.sentence.configure(text="  ".join(words))
        look.paint(self.sentence, fg=look.WARN if found else look.MUTED)
        self._draw_legend()

    def _called(self, rank: int) -> str:
        host = self.figures[rank].host
        return texts.RANK_ON.format(rank=rank, host=host) if host else texts.RANK.format(rank=rank)

    def _draw_legend(self) -> None:
        legend = self.legend
        legend.delete("all")
        x, middle = legend.winfo_width() - look.px(8), look.px(9)
        present = [name for name in PARTS if any(name in each.parts for each in self.figures)]
        for name in reversed(present):
            label = legend.create_text(
                x,
                middle,
                anchor="e",
                text=texts.RANK_APPLYING if name == "waiting" and len(self.figures) == 1 else texts.RANK_PARTS[name],
                fill=look.now(look.MUTED),
                font=look.tk_font("small"),
            )
            x = legend.bbox(label)[0] - look.px(7)
            half = look.px(4)
            legend.create_rectangle(
                x - 2 * half, middle - half, x, middle + half, fill=look.now(PART_COLOURS[name]), width=0
            )
            x -= look.px(26)

    def _write(self, x: float, y: float, words: str, colour: look.Colour, font: look.FontName) -> None:
        self.table.create_text(x, y, anchor="w", text=words, fill=look.now(colour), font=look.tk_font(font))

    def _move(self, rows: int) -> None:
        self._first += rows
        self.draw()

    def _scroll(self, how: str, amount: str, unit: str = "") -> None:
        if how == "moveto":
            self._first = round(float(amount) * len(self.figures))
        else:
            self._first += int(float(amount)) * (8 if unit == "pages" else 1)
        self.draw()


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"
