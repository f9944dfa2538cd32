"""A plot on the screen, with hover values, zoom and pan."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable, Sequence
from typing import Final

from PIL import ImageTk

from app.monitor.chart import Chart, PlotLine, format_number, time_unit
from app.monitor.legend import Legend
from app.monitor.points import Axis, nearest
from app.widgets import theme
from app.widgets.buttons import frame, text
from modules.files import printable

_ZOOM: Final = 1.3
_CLICK_PX: Final = 4
INSET: Final = 4  # unscaled pixels from the edge of a card, whose corners are round

Range = tuple[float, float] | None


class Plot(tk.Frame):
    """Title and last value above the chart. Drag or wheel: zoom; right drag: pan; double click: show all."""

    def __init__(
        self,
        parent: tk.Misc,
        title: str,
        on_zoom: Callable[[Range], object],
        *,
        log_scale: bool = False,
        clips: bool = False,
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self.title = title
        self.chart = Chart(log_scale=log_scale, clips=clips)
        self.lines: Sequence[PlotLine] = ()
        self.axis: Axis = "steps"
        self.span = 0.0
        self.x_range: Range = None
        self.is_due = True
        self.drawn_at = 0.0
        self._on_zoom = on_zoom
        self._photo: ImageTk.PhotoImage | None = None
        self._drag: tuple[int, Range, bool] | None = None  # start pixel, range at the start, whether it pans
        head = frame(self)
        head.pack(fill="x", padx=theme.px(14), pady=(theme.px(10), 0))
        text(head, title, "strong").pack(side="left")
        self._value = text(head, "", "small", colour=theme.MUTED)
        self._value.pack(side="right")
        self.legend = Legend(self)
        self.legend.pack(fill="x", padx=theme.px(14))
        self.surface = tk.Canvas(self, borderwidth=0, highlightthickness=0, width=120, height=80, takefocus=1)
        theme.paint(self.surface, bg=theme.CARD)
        self.show_chart(True)
        self._image_item = self.surface.create_image(0, 0, anchor="nw")
        self._empty = self.surface.create_text(0, 0, text="No data yet", state="hidden")
        theme.follow(self.surface, "chart", self._recolour)
        self._listen()

    def show(self, lines: Sequence[PlotLine], axis: Axis, span: float, x_range: Range) -> None:
        """Set what the next `draw` shows."""
        self.lines, self.axis, self.span, self.x_range = lines, axis, span, x_range
        self.legend.show([(line.name, line.colour) for line in lines])
        self.is_due = True

    @property
    def is_empty(self) -> bool:
        """Whether no line is seen."""
        return str(self.surface.itemconfigure(self._image_item)["state"][-1]) == "hidden"  # type: ignore[index]

    def clear(self) -> None:
        """Show nothing, at once: what is drawn is of another run."""
        self.show((), self.axis, self.span, None)
        self.show_value("")
        self.surface.delete("hover")
        self.surface.itemconfigure(self._image_item, state="hidden")

    def show_chart(self, shown: bool) -> None:
        """Show the chart below the title, or the title with the last value alone."""
        if not shown:
            self.surface.pack_forget()
        elif not self.surface.winfo_manager():
            self.surface.pack(fill="both", expand=True, padx=theme.px(6), pady=(0, theme.px(6)))

    def show_value(self, value: str) -> None:
        """Show the last value next to the title."""
        if self._value.cget("text") != value:
            self._value.configure(text=value)

    def draw(self) -> None:
        """Render the chart."""
        width, height = self.surface.winfo_width(), self.surface.winfo_height()
        self.is_due = False
        self.drawn_at = time.monotonic()
        if width < 40 or height < 40 or not self.surface.winfo_manager():
            return
        self.chart.show(self.lines, self.axis, self.span, self.x_range, width, height)
        image = self.chart.render()
        if self._photo is None or (self._photo.width(), self._photo.height()) != image.size:
            self._photo = ImageTk.PhotoImage(image)
            self.surface.itemconfigure(self._image_item, image=str(self._photo))
        else:
            self._photo.paste(image)
        is_empty = not any(len(line.points) for line in self.lines)
        self.surface.itemconfigure(self._image_item, state="hidden" if is_empty else "normal")
        self.surface.coords(self._empty, width / 2, height / 2)
        self.surface.itemconfigure(
            self._empty,
            state="normal" if is_empty else "hidden",
            fill=theme.resolve(theme.FAINT),
            font=theme.tk_font("body"),
            text="No data yet",
        )

    def label_at(self, x: float) -> str:
        """Step, time and the value of each line at x."""
        labels: list[str] = []
        for line in self.lines:
            index = nearest(line.points, x)
            if index < 0:
                continue
            if not labels:
                labels.append(self._position(line, index))
            content = format_number(float(line.points.mean[index]))
            xs, averages = self.chart.smooth.get(line.name, ((), ()))
            if len(xs):
                nearest_x = min(len(xs) - 1, int(xs.searchsorted(line.points.x[index])))  # type: ignore[union-attr]
                content += f"  (smoothed {format_number(float(averages[nearest_x]))})"
            labels.append(f"{printable(line.name, mask=False)} {content}")
        return "\n".join(labels)

    def _position(self, line: PlotLine, index: int) -> str:
        clock = time.strftime("%d %b %H:%M:%S", time.localtime(float(line.points.times[index])))
        content = f"step {line.points.steps[index]:,.0f}  ({clock})"
        if self.axis == "time":
            divisor, unit = time_unit(self.chart.range[1])
            content = f"{line.points.x[index] / divisor:.4g} {unit}, {content}"
        return content

    def _recolour(self) -> None:
        self.chart.recolour()
        self.is_due = True

    # Mouse and keyboard

    def _listen(self) -> None:
        surface = self.surface
        surface.bind("<Configure>", lambda event: setattr(self, "is_due", True))
        surface.bind("<Motion>", lambda event: self._hover(event.x, event.y))
        surface.bind("<Leave>", lambda event: surface.delete("hover"))
        surface.bind("<Button-1>", lambda event: self._start_drag(event.x, pans=bool(int(event.state) & 1)))
        for button in (2, 3):
            surface.bind(f"<Button-{button}>", lambda event: self._start_drag(event.x, pans=True))
            surface.bind(f"<B{button}-Motion>", lambda event: self._drag_to(event.x))
            surface.bind(f"<ButtonRelease-{button}>", lambda event: self._end_drag(event.x))
        surface.bind("<B1-Motion>", lambda event: self._drag_to(event.x))
        surface.bind("<ButtonRelease-1>", lambda event: self._end_drag(event.x))
        surface.bind("<Double-Button-1>", lambda event: self._on_zoom(None))
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
        surface.bind("<Left>", lambda event: self._pan(-0.15))
        surface.bind("<Right>", lambda event: self._pan(0.15))
        surface.bind("<Home>", lambda event: self._on_zoom(None))
        surface.bind("<FocusIn>", lambda event: self._show_focus(True))
        surface.bind("<FocusOut>", lambda event: self._show_focus(False))

    def _show_focus(self, focused: bool) -> None:
        self.surface.configure(highlightthickness=1 if focused else 0, highlightcolor=theme.resolve(theme.ACCENT))

    def _hover(self, x: int, y: int) -> None:
        surface = self.surface
        surface.delete("hover")
        if self._drag is not None or not any(len(line.points) for line in self.lines) or self._photo is None:
            return
        left, top, right, bottom = self.chart.frame()
        if not (left <= x <= right and top <= y <= bottom):
            return
        content = self.label_at(self.chart.data_x(x))
        index = nearest(self.lines[0].points, self.chart.data_x(x))
        across = x if index < 0 else self.chart.pixel_at(float(self.lines[0].points.x[index]), 1.0)[0]
        surface.create_line(across, top, across, bottom, fill=theme.resolve(theme.FAINT), tags="hover", dash=(2, 2))
        on_left = across > (left + right) / 2
        offset_x = across + (-1 if on_left else 1) * theme.px(14)
        label = surface.create_text(
            offset_x, top + theme.px(10), anchor="ne" if on_left else "nw", text=content,
            fill=theme.resolve(theme.ON_TOOLTIP), font=theme.tk_font("small"), tags="hover",
        )  # fmt: skip
        box = surface.bbox(label)
        padding = theme.px(7)
        back = surface.create_rectangle(
            box[0] - padding,
            box[1] - padding,
            box[2] + padding,
            box[3] + padding,
            fill=theme.resolve(theme.TOOLTIP),
            width=0,
            tags="hover",
        )
        surface.tag_raise(label, back)

    def _start_drag(self, x: int, *, pans: bool) -> None:
        self.surface.focus_set()
        self._drag = (x, self.chart.range, pans)
        self.surface.delete("hover")

    def _drag_to(self, x: int) -> None:
        if self._drag is None:
            return
        start, previous, pans = self._drag
        if pans and previous is not None:
            width = previous[1] - previous[0]
            left, _, right, _ = self.chart.frame()
            by = (start - x) / (right - left) * width
            self._on_zoom((previous[0] + by, previous[1] + by))
            return
        _, top, _, bottom = self.chart.frame()
        self.surface.delete("span")
        self.surface.create_rectangle(
            start,
            top,
            x,
            bottom,
            fill=theme.resolve(theme.ACCENT),
            stipple="gray12",
            outline=theme.resolve(theme.ACCENT),
            tags="span",
        )

    def _end_drag(self, x: int) -> None:
        self.surface.delete("span")
        drag, self._drag = self._drag, None
        if drag is None or drag[2] or abs(x - drag[0]) < theme.px(_CLICK_PX):
            return
        low, high = sorted((self.chart.data_x(drag[0]), self.chart.data_x(x)))
        self._on_zoom((low, high))

    def _zoom(self, x: int, factor: float) -> str:
        if self._photo is not None:
            low, high = self.chart.range
            middle = self.chart.data_x(x)
            self._on_zoom((middle - (middle - low) * factor, middle + (high - middle) * factor))
        return "break"

    def _pan(self, share: float) -> str:
        low, high = self.chart.range
        by = (high - low) * share
        self._on_zoom((low + by, high + by))
        return "break"
