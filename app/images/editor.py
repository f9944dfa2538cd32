"""Caption editor with a preview of the image, its references and mask; captions are saved when the selection or focus
moves on."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from PIL import Image, ImageTk

from app.images.captions import CaptionFiles, Changes, read_caption, take_back, write_caption
from app.images.grid import frame_image
from app.images.image_index import IndexedImage
from app.images.thumbnails import SIDE, Thumbnails
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, TextBox, frame, text
from app.widgets.later import later
from modules.config.sections.concept import CaptionLines
from modules.files import FileFault, check_changeable, printable

PREVIEW = 320
_LEAST_SIDE: Final = 96  # of the image, in unscaled pixels, before the hint gives way to it
_SMALLEST_SIDE: Final = 48
_PAINT: Final = "Masks say which part of an image is trained; they are used with masked training."
_MOST_REFERENCES: Final = 3  # that the preview has room for


_HINTS: Final[dict[CaptionLines, str]] = {
    "random": "One caption per line.",
    "first": "The first line of the file; the others are not used, and stay.",
    "whole": "The whole file is one caption.",
}
_SAVING: Final = "Saved when you leave the field; Ctrl+Enter saves immediately, Esc reverts."
_READ_ONLY_REASONS: Final = {
    "auto": "This caption comes from a file with captions of many images, a record (NAME.json), another folder or the "
    "file name. To edit captions here, set the folder's caption source to “txt”.",
    "file_name": "The folder's settings use the file name as the caption.",
    "folder_name": "The folder's settings use the folder name as the caption.",
    "metadata": "The captions come from the folder's metadata file; edit them there.",
    "none": "The folder's settings disable captions.",
}


class CaptionEditor(tk.Frame):
    """`changed` is called with the images whose captions were written, `failed` with the reason if one could not be."""

    def __init__(
        self,
        parent: tk.Misc,
        thumbnails: Thumbnails,
        changed: Callable[[Sequence[IndexedImage]], object],
        failed: Callable[[str], object],
        caption_files: Callable[[IndexedImage], CaptionFiles],
        paint_mask: Callable[[IndexedImage], object],
        state: AppState,
    ) -> None:
        super().__init__(parent)
        theme.paint(self, bg=theme.CARD)
        self._state, self._history = state, state.written_captions
        self.is_undoing = False
        self._thumbnails, self._changed, self._failed = thumbnails, changed, failed
        self._caption_files, self._paint_mask = caption_files, paint_mask
        self._image: IndexedImage | None = None
        self._files = CaptionFiles()  # which the caption in the box was read from
        self._photos: list[ImageTk.PhotoImage] = []  # that Tk shows and does not keep
        self._build()

    def _build(self) -> None:
        self._side = theme.px(PREVIEW)
        self._room = 0, 0  # pixels
        self._canvas = theme.paint(tk.Canvas(self, highlightthickness=0), bg=theme.CARD)
        self._canvas.pack(pady=(0, theme.px(theme.UNIT)))
        self._name = text(self, font="strong", wrap=PREVIEW)
        self._name.pack(fill="x")
        self._details = text(self, font="small", colour=theme.MUTED, wrap=PREVIEW)
        self._details.pack(fill="x")
        self._problem = text(self, font="small", colour=theme.WARN, wrap=PREVIEW)
        below = frame(self)
        below.pack(side="bottom", fill="x")
        self._hint = text(below, font="small", colour=theme.MUTED, wrap=PREVIEW)
        self._hint.pack(fill="x", pady=theme.px(theme.UNIT / 2))
        self._buttons = frame(below)
        self._buttons.pack(fill="x", pady=(theme.px(theme.UNIT / 2), 0))
        self._undo = Button(self._buttons, "Undo", self.undo, bg=theme.CARD)
        self.show_undo()
        self._undo.pack(side="left")
        self.mask_button = Button(self._buttons, "Paint the mask…", self._paint, bg=theme.CARD, tooltip=_PAINT)
        self.text = TextBox(self, lambda _: None, width=PREVIEW, height=48)
        self.text.pack(fill="both", expand=True, pady=(theme.px(theme.UNIT), 0))
        self.text.text.configure(undo=True)
        self.text.text.bind("<FocusOut>", lambda _: self.save(), add="+")
        self.text.text.bind("<Control-Return>", lambda _: self._run_and_break(self.save))
        self.text.text.bind("<Escape>", lambda _: self._run_and_break(self._show_text))

    def _run_and_break(self, work: Callable[[], None]) -> str:
        """Run it and keep the key event from the window's shortcuts."""
        work()
        return "break"

    def fit(self, width: int, height: int) -> None:
        """Adapt to the available size in pixels, taking a third of the width at most."""
        self._room = width, height
        self._fit()

    def _fit(self) -> None:
        """The image gets the height that the texts leave; if that is low, without the hint, and if even lower the image
        is left out: captions matter most."""
        width, height = self._room
        if not height:
            return
        wide = max(theme.px(160), min(theme.px(PREVIEW), width // 3))
        for label in (self._name, self._details, self._problem, self._hint):
            label.configure(wraplength=wide)
        self.text.configure(width=wide)
        texts = [
            self._name,
            self._details,
            self.text,
            self._buttons,
            *([self._problem] * bool(self._problem.cget("text"))),
        ]
        rest = height - sum(each.winfo_reqheight() for each in texts) - 3 * theme.px(theme.UNIT)
        with_hint = rest - self._hint.winfo_reqheight() - theme.px(theme.UNIT)
        is_low = with_hint < theme.px(_LEAST_SIDE)
        if is_low:
            self._hint.pack_forget()
        elif not self._hint.winfo_manager():
            self._hint.pack(fill="x", pady=theme.px(theme.UNIT / 2), before=self._buttons)
        side = min(wide, rest if is_low else with_hint)
        if side < theme.px(_SMALLEST_SIDE):
            self._canvas.pack_forget()
            return
        if not self._canvas.winfo_manager():
            self._canvas.pack(pady=(0, theme.px(theme.UNIT)), before=self._name)
        if (side, wide) != (self._side, self._canvas.winfo_reqwidth()):
            self._side = side
            self._canvas.configure(width=wide, height=side)
            self._draw()

    def show(self, image: IndexedImage | None, problems: list[str]) -> None:
        """Save the current caption, then show another image and its problems."""
        self.save()
        self._image = image
        if image is not None and image.mask is not None:
            self._thumbnails.forget(image.mask)  # another program may have written it
        self._show_mask_button()
        self._name.configure(text=printable(image.file.name, mask=False) if image else "")
        self._show_details(image, problems)
        self._show_text()
        self._draw()

    def update_details(self, image: IndexedImage, problems: list[str]) -> None:
        """The folders were read again: show what is known of the image now; a caption being typed stays."""
        former = self._image
        if former is None or former.file != image.file:
            return
        former.references, former.mask = image.references, image.mask
        is_typed = self.text.get().strip() != former.caption.strip()
        if self._caption_files(image) != self._files or not is_typed or former.caption == image.caption:
            self._image = image
            if self._caption_files(image) != self._files or former.caption != image.caption:
                self._show_text()
        self._show_details(image, problems)
        self._show_mask_button()
        self._draw()

    def _show_mask_button(self) -> None:
        """Masks are looked for with masked_training alone."""
        if self._image is not None and self._state.draft.get("masked_training"):
            self.mask_button.pack(side="right")
        else:
            self.mask_button.pack_forget()

    def _paint(self) -> None:
        self.save()
        if self._image is not None:
            self._paint_mask(self._image)

    def _show_details(self, image: IndexedImage | None, problems: list[str]) -> None:
        self._details.configure(text=_details(image) if image else "")
        self._problem.configure(text="\n".join(problems))
        if problems:
            self._problem.pack(fill="x", after=self._details)
        else:
            self._problem.pack_forget()
        self._fit()

    def focus_text(self) -> None:
        """Move the keyboard focus to the caption."""
        self.text.focus_set()
        self.text.text.mark_set("insert", "end")

    def save(self) -> None:
        """Write the caption if it was changed."""
        image = self._image
        if image is None:
            return
        files = self._files
        if read_only_reason(image, files):
            return
        written = self.text.get().strip()
        if written == image.caption.strip():
            return
        try:
            change = write_caption(image.file, written, files)
        except (OSError, FileFault) as error:
            self._failed(f"{files.file(image.file)} cannot be written: {_reason(error)}.")
            return
        self.record([(image, change)])
        self._hint.configure(text=f"{printable(change.file.name, mask=False)} saved.")

    def record(self, changes: Changes) -> None:
        """Add captions that were written together to the undo history, and show that of the image here."""
        shown = self._image
        is_typed = shown is not None and self.text.get().strip() != shown.caption.strip()
        if changes:
            self._history.append(changes)
        one_of_each = {image.concept: image for image, _ in changes}
        files = {concept: self._caption_files(image) for concept, image in one_of_each.items()}
        for image, change in changes:
            _set_caption(image, change.after, files[image.concept])
        if not is_typed and any(image is shown for image, _ in changes):
            self._show_text()  # else the former caption would be taken for a typed one
        self.show_undo()
        self._changed([image for image, _ in changes])

    def undo(self) -> None:
        """Undo what was written last: a caption, or all of a replacement."""
        if not self._history or self.is_undoing:
            return
        written = self._history.pop()
        self.is_undoing = True
        self.show_undo()
        self._state.background.run(lambda: take_back(written), lambda found: self._undone(written, *found))

    def _undone(self, written: Changes, done: Changes, fault: str) -> None:
        self.is_undoing = False
        if left := written[: len(written) - len(done)]:
            self._history.append(left)
        if not self.winfo_exists():
            self._state.notify("captions")
            return
        files = {image.concept: self._caption_files(image) for image, _ in done}
        shown, images = self._image, []
        for image, change in done:
            if shown is not None and shown.file == image.file:
                image = shown  # which may have been read again since
            if change.file == files[image.concept].file(image.file):
                _set_caption(image, change.before, files[image.concept])
                images.append(image)
        self.show_undo()
        self._changed(images)
        if any(image is shown for image in images):
            self._show_text()
        if fault:
            self._failed(fault)

    def show_undo(self) -> None:
        """Show whether there is anything to undo."""
        self._undo.configure(state="normal" if self._history and not self.is_undoing else "disabled")

    def _show_text(self) -> None:
        image = self._image
        self._files = files = self._caption_files(image) if image else CaptionFiles()
        reason = read_only_reason(image, files) if image else ""
        self.text.show(image.caption if image is not None else "")
        self.text.text.edit_reset()
        self.text.enable(image is not None and not reason)
        self._hint.configure(text=reason or (f"{_HINTS[files.lines]} {_SAVING}" if image else ""))
        self._fit()

    def _draw(self) -> None:
        """Draw the preview, or the grid's thumbnails until those of it are ready: the image's references, the image and
        its mask, each in a cell of the same size."""
        self._canvas.delete("all")
        image = self._image
        if image is None:
            return
        self._photos.clear()
        before = image.references[:_MOST_REFERENCES]
        files = [*before, image.file, *([image.mask] if image.mask else [])]
        gap = theme.px(2 * theme.UNIT)
        columns, width, height = self._cells(image, len(files), gap)
        for number, file in enumerate(files):
            row, column = divmod(number, columns)
            x, y = column * (width + gap) + width // 2, row * (height + gap) + height // 2
            is_alpha = image.has_alpha_mask and number == len(files) - 1
            self._draw_picture(file, (x, y), (width, height), is_alpha)
            if number == len(before) > 0:
                sign, arrow = ("→", (x - (width + gap) // 2, y)) if column else ("↓", (x, y - (height + gap) // 2))
                self._canvas.create_text(*arrow, text=sign, fill=theme.resolve(theme.MUTED), font=theme.tk_font("body"))
        is_ready = [self._thumbnails.is_done(file, self._side) for file in files]
        if image.has_alpha_mask:
            is_ready[-1] = self._thumbnails.is_done(image.file, self._side, alpha=True)
        if not all(is_ready):
            later(self, 80, lambda: self._retry_draw(image.file))

    def _cells(self, image: IndexedImage, count: int, gap: int) -> tuple[int, int, int]:
        """(columns, width, height) of the cells in which `count` pictures of the image's shape are largest."""
        found = []
        for columns in range(1, count + 1):
            rows = -(-count // columns)
            width = (self._canvas.winfo_reqwidth() - gap * (columns - 1)) // columns
            height = (self._side - gap * (rows - 1)) // rows
            found.append((min(width / image.width, height / image.height), columns, width, height))
        return max(found)[1:]

    def _draw_picture(self, file: Path, middle: tuple[int, int], room: tuple[int, int], alpha: bool) -> None:
        """As large as `room` (width, height in pixels) allows; nothing if there is no thumbnail yet."""
        sides = (self._side,) if alpha else (self._side, SIDE)  # of the transparency there is none in the grid
        small = next((each for side in sides if (each := self._thumbnails.get(file, side, alpha=alpha))), None)
        if small is None:
            return
        scale = min(room[0] / small.width, room[1] / small.height)
        size = max(1, round(small.width * scale)), max(1, round(small.height * scale))
        photo = ImageTk.PhotoImage(small.resize(size, Image.Resampling.BILINEAR), master=self)
        self._photos.append(photo)
        self._canvas.create_image(*middle, image=photo, tags="picture")
        frame_image(self._canvas, middle, photo)

    def _retry_draw(self, file: Path) -> None:
        ready: list[Path] = []
        self._thumbnails.poll(ready.append)
        if self._image is not None and self._image.file == file:
            self._draw()


def _set_caption(image: IndexedImage, text: str | None, files: CaptionFiles) -> None:
    image.caption = files.caption(text or "")
    image.caption_state = "missing" if text is None else "found" if image.caption else "empty"


def _details(image: IndexedImage) -> str:
    width, height = image.bucket_size
    size = f"{image.width} × {image.height} pixels, trained at {width} × {height}"
    if image.seconds:
        clip = f"a clip of {image.frames} frames" if image.frames > 1 else "one frame"
        lasts = f"Video of {image.seconds:.3g} s"
        size = f"{lasts}, {image.width} × {image.height} pixels, trained as {clip} of {width} × {height}"
    made_from = ", ".join(printable(each.name, mask=False) for each in image.references)
    return f"{size}\nFrom {made_from}" if made_from else size


def read_only_reason(image: IndexedImage, files: CaptionFiles) -> str:
    """Why the captions of an image cannot be edited here; empty if they can. `files` are its concept's settings."""
    source = files.source
    try:
        check_changeable(image.file)
    except OSError as error:
        return f"The caption cannot be edited: {error.strerror}."
    if source in ("file_name", "folder_name", "metadata", "none"):
        return _READ_ONLY_REASONS[source]
    if source != "auto" or not image.caption:
        return ""
    file = files.file(image.file)
    try:
        return _READ_ONLY_REASONS["auto"] if read_caption(file) is None else ""
    except FileFault as fault:
        return f"{printable(file.name)} {fault}, so it cannot be edited here."
    except OSError:
        return _READ_ONLY_REASONS["auto"]


def _reason(error: OSError | FileFault) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"it {error}"
