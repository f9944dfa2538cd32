"""One picture large, with its captions to edit; they are written when one moves on."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageTk

from app import look, texts
from app.controls import Button, TextBox, frame, text
from app.pictures.captions import CaptionChange, apply, caption_file, read_caption, write_caption
from app.pictures.catalogue import Picture
from app.pictures.thumbnails import Thumbnails

PREVIEW = 320
_WORDS, _WORDS_LOW = 250, 180  # of the room's height for everything but the picture
_LOW = 380


class CaptionEditor(tk.Frame):
    """`changed` is told of every caption that was written, `failed` of those that could not be."""

    def __init__(
        self,
        parent: tk.Misc,
        thumbnails: Thumbnails,
        changed: Callable[[Picture], object],
        failed: Callable[[str], object],
        why_fixed: Callable[[Picture], str],
    ) -> None:
        super().__init__(parent)
        look.paint(self, bg=look.CARD)
        self._thumbnails, self._changed, self._failed, self._why_fixed = thumbnails, changed, failed, why_fixed
        self._picture: Picture | None = None
        self._photo: ImageTk.PhotoImage | None = None
        self._history: list[tuple[Picture, CaptionChange]] = []
        self._build()

    def _build(self) -> None:
        self._side = look.px(PREVIEW)
        self._canvas = look.paint(tk.Canvas(self, highlightthickness=0), bg=look.CARD)
        self._canvas.pack(pady=(0, look.px(look.UNIT)))
        self._name = text(self, font="strong", wrap=PREVIEW)
        self._name.pack(fill="x")
        self._facts = text(self, font="small", colour=look.MUTED)
        self._facts.pack(fill="x")
        self._fault = text(self, font="small", colour=look.WARN, wrap=PREVIEW)
        below = frame(self)
        below.pack(side="bottom", fill="x")
        self._hint = text(below, font="small", colour=look.MUTED, wrap=PREVIEW)
        self._hint.pack(fill="x", pady=look.px(look.UNIT / 2))
        self._undo = Button(below, texts.CAPTION_UNDO, self.undo, on=look.CARD)
        self._undo.configure(state="disabled")
        self._undo.pack(anchor="w")
        self.text = TextBox(self, lambda _: None, width=PREVIEW, height=48)
        self.text.pack(fill="both", expand=True, pady=(look.px(look.UNIT), 0))
        self.text.text.configure(undo=True)
        self.text.text.bind("<FocusOut>", lambda _: self.save(), add="+")
        self.text.text.bind("<Control-Return>", lambda _: self._stop_at(self.save))
        self.text.text.bind("<Escape>", lambda _: self._stop_at(self._show_text))

    def _stop_at(self, work: Callable[[], None]) -> str:
        """Do the work; the window's own shortcut does not see the key."""
        work()
        return "break"

    def fit(self, width: int, height: int) -> None:
        """Take a third of the room there is, in pixels, and no more than the picture is worth.

        Where the room is low, the line of help goes first, then the picture becomes small: captions are what it is for.
        """
        wide = max(look.px(160), min(look.px(PREVIEW), width // 3))
        is_low = height < look.px(_LOW)
        side = max(look.px(64), min(wide, height - look.px(_WORDS_LOW if is_low else _WORDS)))
        if (side, wide) == (self._side, self._canvas.winfo_reqwidth()):
            return
        self._side = side
        self._canvas.configure(width=wide, height=side)
        self.text.configure(width=wide)
        for words in (self._name, self._fault, self._hint):
            words.configure(wraplength=wide)
        if is_low:
            self._hint.pack_forget()
        elif not self._hint.winfo_manager():
            self._hint.pack(fill="x", pady=look.px(look.UNIT / 2), before=self._undo)
        self._draw()

    def show(self, picture: Picture | None, faults: list[str]) -> None:
        """Save what was edited, then show another picture and what is wrong with it."""
        self.save()
        self._picture = picture
        self._name.configure(text=picture.file.name if picture else "")
        self._facts.configure(text=_facts(picture) if picture else "")
        self._fault.configure(text="\n".join(faults))
        if faults:
            self._fault.pack(fill="x", after=self._facts)
        else:
            self._fault.pack_forget()
        self._show_text()
        self._draw()

    def focus_text(self) -> None:
        """Begin to type."""
        self.text.focus_set()
        self.text.text.mark_set("insert", "end")

    def save(self) -> None:
        """Write the caption where it was changed."""
        picture = self._picture
        if picture is None or self._why_fixed(picture):
            return
        written = self.text.get().strip()
        if written == picture.caption.strip():
            return
        try:
            change = write_caption(picture.file, written)
        except (OSError, UnicodeDecodeError) as error:
            self._failed(texts.CAPTION_NOT_WRITTEN.format(file=caption_file(picture.file), reason=_reason(error)))
            return
        self.note(picture, change)
        self._hint.configure(text=texts.CAPTION_WRITTEN.format(file=change.file.name))

    def note(self, picture: Picture, change: CaptionChange) -> None:
        """A caption was written, here or by search and replace: it can be taken back."""
        self._take_over(picture, change.after)
        self._history.append((picture, change))
        self._undo.configure(state="normal")

    def undo(self) -> None:
        """Take back the last caption written."""
        if not self._history:
            return
        picture, change = self._history.pop()
        try:
            apply(change.reverse())
        except OSError as error:
            self._failed(texts.CAPTION_NOT_WRITTEN.format(file=change.file, reason=_reason(error)))
            return
        self._take_over(picture, change.before)
        self._undo.configure(state="normal" if self._history else "disabled")
        if picture is self._picture:
            self._show_text()

    def _take_over(self, picture: Picture, text: str | None) -> None:
        lines = [line.strip() for line in (text or "").splitlines()]
        picture.caption = "\n".join(line for line in lines if line)
        picture.caption_state = "missing" if text is None else "found" if picture.caption else "empty"
        self._changed(picture)

    def _show_text(self) -> None:
        picture = self._picture
        reason = self._why_fixed(picture) if picture else ""
        self.text.show(picture.caption if picture is not None else "")
        self.text.text.edit_reset()
        self.text.enable(picture is not None and not reason)
        self._hint.configure(text=reason or (texts.CAPTION_HINT if picture else ""))

    def _draw(self) -> None:
        """Decoded small in a thread; a first look is the thumbnail that the grid has already."""
        self._canvas.delete("all")
        picture = self._picture
        if picture is None:
            return
        side = self._side
        small = self._thumbnails.get(picture.file, side) or self._thumbnails.get(picture.file)
        if small is not None:
            scale = side / max(small.size)
            size = max(1, round(small.width * scale)), max(1, round(small.height * scale))
            self._photo = ImageTk.PhotoImage(small.resize(size, Image.Resampling.BILINEAR), master=self)
            self._canvas.create_image(self._canvas.winfo_reqwidth() // 2, side // 2, image=self._photo)
        if self._thumbnails.get(picture.file, side) is None and not self._thumbnails.is_broken(picture.file, side):
            self.after(80, lambda: self._draw_again(picture.file))

    def _draw_again(self, file: Path) -> None:
        ready: list[Path] = []
        self._thumbnails.poll(ready.append)
        if self._picture is not None and self._picture.file == file:
            self._draw()


def _facts(picture: Picture) -> str:
    width, height = picture.bucket_size
    size = texts.PICTURE_SIZE.format(width=picture.width, height=picture.height)
    return texts.PICTURE_FACTS.format(size=size, bucket=texts.PICTURE_SIZE.format(width=width, height=height))


def why_fixed(picture: Picture, source: str) -> str:
    """Why a picture's captions cannot be edited here; empty where they can: `source` is its concept's setting."""
    if source in ("file_name", "folder_name", "metadata", "none"):
        return texts.CAPTION_FIXED[source]
    if source == "auto" and picture.caption and _text(picture) is None:
        return texts.CAPTION_FIXED["auto"]
    return ""


def _text(picture: Picture) -> str | None:
    try:
        return read_caption(picture.file)
    except (OSError, UnicodeDecodeError):
        return None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else texts.NOT_UTF8
