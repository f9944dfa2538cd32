"""A plot on the screen: drawn when asked, with the value under the pointer, zoom and pan."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable, Sequence
from typing import Final

from PIL import ImageTk

from app import look, texts
from app.controls import frame, text
from app.monitor.chart import Chart, Line, number_words, unit_for
from app.monitor.points import Axis, nearest

_ZOOM: Final = 1.3
_CLICK_PX: Final = 4

Range = tuple[float, float] | None


class Plot(tk.Frame):
    """Title and last value above, the chart below. Drag: zoom in; wheel: zoom; right drag: pan; double click: all."""

    def __init__(
        self, parent: tk.Misc, title: str, ranged: Callable[[Range], object], *, log_scale: bool = False
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        look.paint(self, bg=look.CARD)
        self.title = title
        self.chart = Chart(log_scale=log_scale)
        self.lines: Sequence[Line] = ()
        self.axis: Axis = "steps"
        self.span = 0.0
        self.wanted: Range = None
        self.is_due = True
        self.drawn_at = 0.0
        self._ranged = ranged
        self._picture: ImageTk.PhotoImage | None = None
        self._drag: tuple[int, Range, bool] | None = None  # where it began, the range then, whether it pans
        head = frame(self)
        head.pack(fill="x", padx=look.px(14), pady=(look.px(10), 0))
        text(head, title, "strong").pack(side="left")
        self._value = text(head, "", "small", colour=look.MUTED)
        self._value.pack(side="right")
        self.surface = tk.Canvas(self, borderwidth=0, highlightthickness=0, width=120, height=80, takefocus=1)
        look.paint(self.surface, bg=look.CARD)
        self.surface.pack(fill="both", expand=True, padx=look.px(6), pady=(0, look.px(6)))
        self._image = self.surface.create_image(0, 0, anchor="nw")
        self._empty = self.surface.create_text(0, 0, text=texts.NO_CURVE, state="hidden")
        look.follow(self.surface, "chart", self._recolour)
        self._listen()

    def show(self, lines: Sequence[Line], axis: Axis, span: float, wanted: Range) -> None:
        """What to draw; it is drawn at the next `draw`."""
        self.lines, self.axis, self.span, self.wanted = lines, axis, span, wanted
        self.is_due = True

    def say(self, value: str) -> None:
        """The last value, beside the title."""
        if self._value.cget("text") != value:
            self._value.configure(text=value)

    def draw(self) -> None:
        """Draw what is due."""
        width, height = self.surface.winfo_width(), self.surface.winfo_height()
        self.is_due = False
        self.drawn_at = time.monotonic()
        if width < 40 or height < 40:
            return
        self.chart.show(self.lines, self.axis, self.span, self.wanted, width, height)
        picture = self.chart.render()
        if self._picture is None or (self._picture.width(), self._picture.height()) != picture.size:
            self._picture = ImageTk.PhotoImage(picture)
            self.surface.itemconfigure(self._image, image=str(self._picture))
        else:
            self._picture.paste(picture)
        self._draw_legend(width)
        is_empty = not any(len(line.points) for line in self.lines)
        self.surface.itemconfigure(self._image, state="hidden" if is_empty else "normal")
        self.surface.coords(self._empty, width / 2, height / 2)
        self.surface.itemconfigure(
            self._empty,
            state="normal" if is_empty else "hidden",
            fill=look.now(look.FAINT),
            font=look.tk_font("body"),
            text=texts.NO_CURVE,
        )

    def _draw_legend(self, width: int) -> None:
        """Which colour is which line, where there are several."""
        surface = self.surface
        surface.delete("legend")
        if len(self.lines) < 2:
            return
        x, y = width - look.px(18), self.chart.frame()[1] + look.px(12)
        for line in reversed(self.lines):
            label = surface.create_text(
                x, y, anchor="e", text=line.name, fill=look.now(look.MUTED), font=look.tk_font("small"), tags="legend"
            )
            x = surface.bbox(label)[0] - look.px(6)
            thick = look.px(3)
            surface.create_line(x - look.px(12), y, x, y, width=thick, fill=look.now(line.colour), tags="legend")
            x -= look.px(12 + 18)

    def words_at(self, x: float) -> str:
        """What the lines say at a place along the x axis."""
        parts: list[str] = []
        for line in self.lines:
            place = nearest(line.points, x)
            if place < 0:
                continue
            if not parts:
                parts.append(self._where(line, place))
            words = number_words(float(line.points.mean[place]))
            xs, averages = self.chart.smooth.get(line.name, ((), ()))
            if len(xs):
                beside = min(len(xs) - 1, int(xs.searchsorted(line.points.x[place])))  # type: ignore[union-attr]
                words += texts.SMOOTHED_VALUE.format(value=number_words(float(averages[beside])))
            parts.append(f"{line.name} {words}")
        return "\n".join(parts)

    def _where(self, line: Line, place: int) -> str:
        clock = time.strftime("%d %b %H:%M:%S", time.localtime(float(line.points.times[place])))
        words = texts.AT_STEP.format(step=f"{line.points.steps[place]:,.0f}", clock=clock)
        if self.axis == "time":
            divisor, unit = unit_for(self.chart.range[1])
            words = f"{line.points.x[place] / divisor:.4g} {unit}, {words}"
        return words

    def _recolour(self) -> None:
        self.chart.recolour()
        self.is_due = True

    # The pointer and the keys

    def _listen(self) -> None:
        surface = self.surface
        surface.bind("<Configure>", lambda event: setattr(self, "is_due", True))
        surface.bind("<Motion>", lambda event: self._hover(event.x, event.y))
        surface.bind("<Leave>", lambda event: surface.delete("hover"))
        surface.bind("<Button-1>", lambda event: self._begin(event.x, pans=bool(int(event.state) & 1)))
        for button in (2, 3):
            surface.bind(f"<Button-{button}>", lambda event: self._begin(event.x, pans=True))
            surface.bind(f"<B{button}-Motion>", lambda event: self._move(event.x))
            surface.bind(f"<ButtonRelease-{button}>", lambda event: self._end(event.x))
        surface.bind("<B1-Motion>", lambda event: self._move(event.x))
        surface.bind("<ButtonRelease-1>", lambda event: self._end(event.x))
        surface.bind("<Double-Button-1>", lambda event: self._ranged(None))
        surface.bind("<Button-4>", lambda event: self._zoom(event.x, 1 / _ZOOM))
        surface.bind("<Button-5>", lambda event: self._zoom(event.x, _ZOOM))
        surface.bind("<MouseWheel>", lambda event: self._zoom(event.x, 1 / _ZOOM if event.delta > 0 else _ZOOM))
        for key, factor in (
            ("<plus>", 1 / _ZOOM),
            ("<KP_Add>", 1 / _ZOOM),
            ("<minus>", _ZOOM),
            ("<KP_Subtract>", _ZOOM),
        ):
            surface.bind(key, lambda event, factor=factor: self._zoom(surface.winfo_width() // 2, factor))  # type: ignore[misc]
        surface.bind("<Left>", lambda event: self._shift(-0.15))
        surface.bind("<Right>", lambda event: self._shift(0.15))
        surface.bind("<Home>", lambda event: self._ranged(None))
        surface.bind("<FocusIn>", lambda event: self._ring(True))
        surface.bind("<FocusOut>", lambda event: self._ring(False))

    def _ring(self, focused: bool) -> None:
        self.surface.configure(highlightthickness=1 if focused else 0, highlightcolor=look.now(look.ACCENT))

    def _hover(self, x: int, y: int) -> None:
        surface = self.surface
        surface.delete("hover")
        if self._drag is not None or not any(len(line.points) for line in self.lines) or self._picture is None:
            return
        left, top, right, bottom = self.chart.frame()
        if not (left <= x <= right and top <= y <= bottom):
            return
        words = self.words_at(self.chart.place_of(x))
        place = nearest(self.lines[0].points, self.chart.place_of(x))
        across = x if place < 0 else self.chart.pixel_of(float(self.lines[0].points.x[place]), 1.0)[0]
        surface.create_line(across, top, across, bottom, fill=look.now(look.FAINT), tags="hover", dash=(2, 2))
        on_left = across > (left + right) / 2
        beside = across + (-1 if on_left else 1) * look.px(14)
        label = surface.create_text(
            beside, top + look.px(10), anchor="ne" if on_left else "nw", text=words,
            fill=look.now(look.ON_TOOLTIP), font=look.tk_font("small"), tags="hover",
        )  # fmt: skip
        box = surface.bbox(label)
        room = look.px(7)
        back = surface.create_rectangle(
            box[0] - room,
            box[1] - room,
            box[2] + room,
            box[3] + room,
            fill=look.now(look.TOOLTIP),
            width=0,
            tags="hover",
        )
        surface.tag_raise(label, back)

    def _begin(self, x: int, *, pans: bool) -> None:
        self.surface.focus_set()
        self._drag = (x, self.chart.range, pans)
        self.surface.delete("hover")

    def _move(self, x: int) -> None:
        if self._drag is None:
            return
        start, former, pans = self._drag
        if pans and former is not None:
            width = former[1] - former[0]
            left, _, right, _ = self.chart.frame()
            by = (start - x) / (right - left) * width
            self._ranged((former[0] + by, former[1] + by))
            return
        _, top, _, bottom = self.chart.frame()
        self.surface.delete("span")
        self.surface.create_rectangle(
            start,
            top,
            x,
            bottom,
            fill=look.now(look.ACCENT),
            stipple="gray12",
            outline=look.now(look.ACCENT),
            tags="span",
        )

    def _end(self, x: int) -> None:
        self.surface.delete("span")
        drag, self._drag = self._drag, None
        if drag is None or drag[2] or abs(x - drag[0]) < look.px(_CLICK_PX):
            return
        low, high = sorted((self.chart.place_of(drag[0]), self.chart.place_of(x)))
        self._ranged((low, high))

    def _zoom(self, x: int, factor: float) -> str:
        if self._picture is not None:
            low, high = self.chart.range
            middle = self.chart.place_of(x)
            self._ranged((middle - (middle - low) * factor, middle + (high - middle) * factor))
        return "break"

    def _shift(self, share: float) -> str:
        low, high = self.chart.range
        by = (high - low) * share
        self._ranged((low + by, high + by))
        return "break"
