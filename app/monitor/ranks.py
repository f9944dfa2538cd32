"""The Processes page: step time breakdown and GPU metrics of each process; only visible rows are drawn."""

from __future__ import annotations

import tkinter as tk
from dataclasses import dataclass
from typing import Final, Literal

from app.monitor.page import Page
from app.monitor.rank_stats import Gauge, RankStats, findings, rank_stats
from app.widgets import theme
from app.widgets.bar import Bar
from app.widgets.buttons import card, frame, text, wrap_within
from app.widgets.ellipsis import fit, fit_parts
from app.widgets.scrollbar import Scrollbar
from app.widgets.tooltip import Tooltip

ROW: Final = 54
_HEAD: Final = 34
_NAME: Final = 210
_GAUGE: Final = 122
_BAR: Final = 4
_MIN_PARTS_WIDTH: Final = 260
_NONE: Final = -1  # in place of the count of the statistics that are shown
_EDGES: Final = 14, 8  # left and right of the lines, in unscaled pixels
# Parts of a step in order: title and colour.
PARTS: Final = {
    "data_s": ("waiting for data", theme.SERIES[1]),
    "computing": ("computing", theme.SERIES[0]),
    "forward_s": ("forward", theme.SERIES[0]),
    "backward_s": ("backward", theme.SERIES[2]),
    "sync_s": ("waiting for other processes", theme.SERIES[3]),
    "optimizer_s": ("optimizer step", theme.SERIES[4]),
    "logging_s": ("logging", theme.SERIES[5]),
    "waiting": ("gradient sync and optimizer step", theme.SERIES[3]),
}


class RanksPage(Page):
    """A table drawn on a canvas."""

    def build(self) -> None:
        """Summary and legend above, the table in a card."""
        self.stats: list[RankStats] = []
        self._shown_count = _NONE
        self._head = head = frame(self, theme.WINDOW)
        head.pack(fill="x", padx=theme.px(6), pady=(0, theme.px(8)))
        self.summary = text(head, "", bg=theme.WINDOW)
        self.summary.pack(side="left")
        wrap_within(self.summary, head)
        self.legend = tk.Canvas(head, width=1, height=theme.px(18), borderwidth=0, highlightthickness=0)
        theme.paint(self.legend, bg=theme.WINDOW)
        self.legend.pack(side="right", fill="x", expand=True, before=self.summary)
        self.legend.bind("<Configure>", lambda event: self._draw_legend())
        holder = card(self)
        holder.pack(fill="both", expand=True, padx=6, pady=(0, 6))
        self.table = tk.Canvas(holder, borderwidth=0, highlightthickness=0, takefocus=1)
        theme.paint(self.table, bg=theme.CARD)
        self.bar = Scrollbar(holder, self._scroll)
        self.bar.pack(side="right", fill="y", padx=3, pady=6)
        self.table.pack(fill="both", expand=True, padx=theme.px(4), pady=theme.px(4))
        self.others = text(holder, "", "small", colour=theme.ACCENT_TEXT)  # leads to the figures that have no room
        self.others.configure(cursor="hand2")
        self.others.bind("<Button-1>", lambda event: self._turn(1))
        self._first = 0
        self._first_gauge = 0
        self._gauges_shown = 1
        self._bars: list[Bar] = []
        self._heads: list[tuple[int, str]] = []  # left edge and explanation of each figure
        self._explained = ""
        self.table.bind("<Motion>", self._explain)
        self.table.bind("<Leave>", lambda event: self._hide_help())
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
        for key, by in (("<Left>", -1), ("<Right>", 1)):
            self.table.bind(key, lambda event, by=by: self._turn(by))  # type: ignore[misc]
        self.table.bind("<Configure>", lambda event: self.draw())
        theme.follow(self.table, "ranks", self.draw)

    def run_changed(self) -> None:
        """Clear the table for another run."""
        self._shown_count, self._first, self.stats = _NONE, 0, []
        self.draw()

    def refresh(self) -> None:
        """Redraw if there are new process statistics; those of an earlier start are not shown."""
        if self.run is None:
            return
        count = _NONE if self.run.shows_earlier_start else self.run.view.ranks_count
        if count == self._shown_count:
            return
        self._shown_count = count
        self.stats = [] if count == _NONE else rank_stats(self.run.view)
        self.draw()

    def draw(self) -> None:
        """Draw the visible rows."""
        table = self.table
        table.delete("all")
        self._bars = []
        width, height = table.winfo_width(), table.winfo_height()
        self._show_summary()
        if not self.stats:
            table.create_text(
                width / 2,
                height / 2,
                text="Process statistics appear here once training has started.",
                fill=theme.resolve(theme.FAINT),
                font=theme.tk_font("body"),
            )
            self.bar.show(0, 1)
            self.others.pack_forget()
            return
        available = [name for name in FIGURES if any(name in each.gauges for each in self.stats)]
        shown = self._choose_gauges(available, max(1, (width - theme.px(_NAME + _MIN_PARTS_WIDTH)) // theme.px(_GAUGE)))
        split = (
            theme.px(_NAME),
            max(theme.px(_NAME) + theme.px(120), width - theme.px(_GAUGE) * len(shown) - theme.px(14)),
        )
        self._draw_head(split, shown)
        rows = max(1, (height - theme.px(_HEAD)) // theme.px(ROW))
        self._first = max(0, min(self._first, len(self.stats) - rows))
        self.bar.show(self._first / len(self.stats), min(1.0, (self._first + rows) / len(self.stats)))
        longest = max((each.step_s or 0.0 for each in self.stats), default=0.0)
        for index, each in enumerate(self.stats[self._first : self._first + rows + 1]):
            top = theme.px(_HEAD) + index * theme.px(ROW)
            self._draw_row(each, top, split, shown, longest)

    def _choose_gauges(self, available: list[str], room: int) -> list[str]:
        """Those that are shown of all; a line below the table leads to the others."""
        self._gauges_shown = room
        if self._first_gauge >= len(available):
            self._first_gauge = 0
        first = min(self._first_gauge, max(0, len(available) - room))  # the last ones fill the width, too
        if len(available) > room:
            said = f"Figures {first + 1} to {first + room} of {len(available)}: show others (← →)"
            self.others.configure(text=said)
            self.others.pack(side="bottom", anchor="e", padx=theme.px(14), pady=(0, theme.px(6)), before=self.table)
        else:
            self.others.pack_forget()
        return available[first : first + room]

    def _turn(self, by: int) -> None:
        """Show the next figures, after the last ones the first."""
        self._first_gauge = max(0, self._first_gauge + by * self._gauges_shown)
        self.draw()

    def _draw_head(self, split: tuple[int, int], shown: list[str]) -> None:
        middle = theme.px(_HEAD) / 2
        titles = [(theme.px(14), "Process"), (split[0], "Step time breakdown")]
        titles += [(split[1] + n * theme.px(_GAUGE), FIGURES[name].title) for n, name in enumerate(shown)]
        for x, title in titles:
            self._write(x, middle, title, theme.MUTED, "small")
        self._heads = [(split[1] + n * theme.px(_GAUGE), FIGURES[name].help) for n, name in enumerate(shown)]
        self._draw_line(theme.px(_HEAD) - 1)

    def _explain(self, event: tk.Event[tk.Canvas]) -> None:
        """Explain the heading under the pointer, if it needs that."""
        over = [(x, said) for x, said in self._heads if x <= event.x < x + theme.px(_GAUGE)]
        left, said = over[0] if over and event.y < theme.px(_HEAD) and self.stats else (0, "")
        if said == self._explained:
            return
        self._hide_help()
        if said:
            self._explained = said
            Tooltip.of(self.table).rest(self.table, said, (left, 0, theme.px(_HEAD)))

    def _hide_help(self) -> None:
        if self._explained:
            self._explained = ""
            Tooltip.of(self.table).hide()

    def _draw_row(self, each: RankStats, top: int, split: tuple[int, int], shown: list[str], longest: float) -> None:
        upper, lower = top + theme.px(19), top + theme.px(37)
        mark = f"slowest: {each.slowness:.1f} × median" if each.is_straggler else ""
        self._write(theme.px(14), upper, f"Rank {each.rank}", theme.WARN if mark else theme.TEXT, "strong")
        device = each.device.removeprefix("NVIDIA ")  # which leaves room for its model
        location = device if f"on {each.host}" in device else "  ·  ".join(filter(None, (each.host, device)))
        room = theme.px(_NAME - _EDGES[0] - 10)
        below = mark or fit(self.table, location, theme.tk_font("small"), room)
        self._write(theme.px(14), lower, below, theme.WARN if mark else theme.MUTED, "small")
        self._draw_breakdown(each, upper, split, longest)
        if each.step_s is not None:
            wait = f"{100 * each.data_wait_share:.0f} % waiting for data" if each.data_wait_share >= 0.02 else ""
            said = (f"{_seconds(each.step_s)} per step", wait, each.held_back, f"mean {_seconds(each.mean_step_s)}")
            room = split[1] - split[0] - theme.px(10)
            label = fit_parts(self.table, list(filter(None, said)), theme.tk_font("small"), room)
            self._write(split[0], lower, label, theme.MUTED, "small")
        for index, name in enumerate(shown):
            gauge = each.gauges.get(name)
            if gauge is not None:
                self._draw_gauge(name, gauge, split[1] + index * theme.px(_GAUGE), upper, lower)
        self._draw_line(top + theme.px(ROW))

    def _draw_line(self, y: int) -> None:
        left, right = map(theme.px, _EDGES)
        self.table.create_line(left, y, self.table.winfo_width() - right, y, fill=theme.resolve(theme.LINE))

    def _draw_breakdown(self, each: RankStats, y: int, split: tuple[int, int], longest: float) -> None:
        if not longest:
            return
        x, half = float(split[0]), theme.px(5)
        scale = (split[1] - split[0] - theme.px(24)) / longest
        for name, (_, colour) in PARTS.items():
            seconds = each.parts.get(name, 0.0)
            if seconds > 0:
                end = x + seconds * scale
                fill = theme.resolve(colour)
                self.table.create_rectangle(x, y - half, max(end, x + 1), y + half, fill=fill, width=0, tags=name)
                x = end

    def _draw_gauge(self, name: str, gauge: Gauge, x: int, upper: int, lower: int) -> None:
        figure = FIGURES[name]
        self._write(x, upper - theme.px(5), figure.text(gauge.now) + figure.unit, theme.TEXT, "small")
        if gauge.fill is not None:
            wide, top = theme.px(_GAUGE - 26), upper + theme.px(5)
            self._draw_bar(x, x + wide, top, theme.TROUGH)
            if gauge.fill > 0:
                is_hot = name == "temperature_c" and gauge.now >= 87
                self._draw_bar(x, x + round(wide * gauge.fill), top, theme.BAD if is_hot else theme.ACCENT)
        summary = f"avg {figure.text(gauge.mean)}  max {figure.text(gauge.maximum)}"
        self._write(x, lower + theme.px(3), summary, theme.FAINT, "small")

    def _draw_bar(self, start: int, end: int, top: int, colour: theme.Colour) -> None:
        bar = Bar(self.table, theme.px(_BAR))
        bar.colour(theme.resolve(colour))
        bar.place(start, end, top)
        self._bars.append(bar)  # Tk itself keeps no reference to their ends

    def _show_summary(self) -> None:
        found = findings(self.stats)
        lines = [self._describe(*finding) for finding in found]
        if not lines and self.stats:
            lines = ["All processes run at about the same speed." if len(self.stats) > 1 else "One process."]
        self.summary.configure(text="  ".join(lines))
        theme.paint(self.summary, fg=theme.WARN if found else theme.MUTED)
        self._draw_legend()

    def _describe(self, kind: str, rank: int, value: float) -> str:
        host = self.stats[rank].host
        name = f"Rank {rank} on {host}" if host else f"Rank {rank}"
        if kind == "straggler":
            return f"{name} is the slowest: its steps, without waits, take {value:.1f} times the median; others wait."
        return f"{name} waits for data {100 * value:.0f} % of the time; try more “Data loader workers”."

    def _draw_legend(self) -> None:
        legend = self.legend
        legend.delete("all")
        x, middle = legend.winfo_width(), theme.px(9)
        present = [name for name in PARTS if any(name in each.parts for each in self.stats)]
        for name in reversed(present):
            title, colour = PARTS[name]
            label = legend.create_text(
                x,
                middle,
                anchor="e",
                text="optimizer step" if name == "waiting" and len(self.stats) == 1 else title,
                fill=theme.resolve(theme.MUTED),
                font=theme.tk_font("small"),
            )
            x = legend.bbox(label)[0] - theme.px(7)
            half = theme.px(4)
            legend.create_rectangle(x - 2 * half, middle - half, x, middle + half, fill=theme.resolve(colour), width=0)
            x -= theme.px(26)
        self._place_legend(legend.winfo_width() - int(x))

    def _place_legend(self, width: int) -> None:
        """Beside the summary, or below it if one line is too short for both."""
        fits = self.summary.winfo_reqwidth() + width <= self._head.winfo_width()
        side: Literal["right", "bottom"] = "right" if fits else "bottom"
        if self.legend.pack_info()["side"] != side:
            self.legend.pack(side=side, fill="x", expand=fits, before=self.summary)

    def _write(self, x: float, y: float, label: str, colour: theme.Colour, font: theme.FontName) -> None:
        self.table.create_text(x, y, anchor="w", text=label, fill=theme.resolve(colour), font=theme.tk_font(font))

    def _move(self, rows: int) -> None:
        self._first += rows
        self.draw()

    def _scroll(self, how: str, amount: str, unit: str = "") -> None:
        if how == "moveto":
            self._first = round(float(amount) * len(self.stats))
        else:
            self._first += int(float(amount)) * (8 if unit == "pages" else 1)
        self.draw()


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"


@dataclass(frozen=True)
class Figure:
    """A metric of a process. `factor` leads from what is measured to `unit`; `help` is for its heading."""

    title: str
    form: str
    unit: str
    factor: float = 1.0
    help: str = ""

    def text(self, value: float) -> str:
        """A value without its unit."""
        return self.form.format(value * self.factor)


FIGURES: Final = {
    "samples": Figure(
        "Share of step",
        "{:.0f}",
        " samples",
        help="The samples of a step that this process computes; see “Load balancing”.",
    ),
    "utilization_percent": Figure("GPU load", "{:.0f}", " %"),
    "memory_used_mib": Figure("GPU memory", "{:.1f}", " GiB", 1 / 1024),
    "temperature_c": Figure("Temperature", "{:.0f}", " °C"),
    "power_w": Figure("Power", "{:.0f}", " W"),
    "peak_percent": Figure(
        "Of peak FLOPs",
        "{:.0f}",
        " %",
        help="How much of its speed the device uses: the floating-point operations (FLOPs) per second that training "
        "needs, of the most that the device did in a test before the first step.",
    ),
    "sm_clock_mhz": Figure("GPU clock", "{:.0f}", " MHz"),
    "reserved_mib": Figure(
        "Reserved by torch",
        "{:.1f}",
        " GiB",
        1 / 1024,
        help="GPU memory that torch has taken, in use or kept ready.",
    ),
    "cpu_percent": Figure("CPU load", "{:.0f}", " %"),
    "ram_used_mib": Figure("RAM", "{:.1f}", " GiB", 1 / 1024),
    "process_cpu_percent": Figure("CPU of process", "{:.0f}", " %", help="100 % is one core."),
    "process_ram_mib": Figure("RAM of process", "{:.1f}", " GiB", 1 / 1024),
    "disk_read_mb_s": Figure("Disk read", "{:.1f}", " MB/s"),
    "network_sent_mb_s": Figure("Network sent", "{:.1f}", " MB/s"),
    "memory_efficiency_percent": Figure(
        "Memory efficiency",
        "{:.0f}",
        " %",
        help="The GPU memory in use at its peak, of what torch has reserved; the rest is cached or fragmented.",
    ),
}
