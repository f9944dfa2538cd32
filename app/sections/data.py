"""The pictures: folders, captions, size, cache and loading."""

from __future__ import annotations

from pathlib import PurePath

from app import look, texts
from app.controls import Segments
from app.form.build import Card
from app.form.item_list import Kind
from app.form.item_row import Item
from app.form.words import as_text
from app.pictures.catalogue import Folder
from app.pictures.pages import PicturePages
from app.pictures.thumbnails import Thumbnails
from app.sections.form_section import FormSection


class Section(FormSection):
    """Concepts and what holds for all of them."""

    name = "data"
    declared_in = ("Data",)
    item_cards = (
        Card(
            texts.CARD_THIS_CONCEPT,
            ("path", "name", "enabled", "kind", "repeats", "prior", "loss_weight", "include_subfolders"),
            1,
        ),
        Card(
            texts.CARD_ITS_CAPTIONS,
            (
                "caption_source",
                "prompt_prefix",
                "tag_shuffle",
                "tag_delimiter",
                "keep_tags",
                "tag_dropout",
            ),
            1,
        ),
        Card(texts.CARD_ITS_VARIATIONS, ("horizontal_flip", "crop_jitter", "image_variations", "mask_suffix"), 1),
    )
    cards = (
        Card(
            texts.CARD_ALL_PICTURES, ("resolution", "aspect_ratio_bucketing", "validation_split", "caption_dropout"), 0
        ),
        Card(texts.CARD_MASKS, ("masked_training", "unmasked_weight"), 0),
        Card(texts.CARD_CACHE, ("cache_dir", "cache_only", "cache_batch_size"), 0),
        Card(
            texts.CARD_LOADING,
            ("loader_workers", "prefetch_factor", "persistent_workers", "pin_memory", "drop_last"),
            0,
        ),
    )

    def build(self) -> None:
        """The form, and beside it pages about the pictures themselves, which are made when they are first wanted."""
        self.thumbnails = Thumbnails()
        self.pages: PicturePages | None = None
        kind = Kind("concepts", "enabled", self._describe, self.thumbnails)
        self.list = self.add_list(kind, self.item_cards)
        super().build()
        self.page = "folders"
        self.tabs = Segments(self.head, list(texts.PICTURE_TABS.values()), self._chosen_tab)
        self.tabs.set(texts.PICTURE_TABS["folders"])
        self.tabs.pack(side="right")

    def show(self) -> None:
        if self.pages is None:
            self.pages = PicturePages(self, self.state, self.thumbnails, self._counted)
            self.pages.bind("<<ShowPictures>>", lambda event: self.turn_to("pictures"))
        super().show()
        self.pages.look_for_changes()

    def refresh(self) -> None:
        super().refresh()
        if self.pages is not None:
            self.pages.look_for_changes()

    def hide(self) -> None:
        if self.pages is not None:
            self.pages.close()
        super().hide()

    def destroy(self) -> None:
        """End the threads of the thumbnails."""
        self.thumbnails.close()
        super().destroy()

    def jump_to(self, path: str) -> None:
        self.turn_to("folders")
        super().jump_to(path)

    def turn_to(self, page: str) -> None:
        """Show one of texts.PICTURE_TABS."""
        if page == self.page or self.pages is None:
            return
        self.page = page
        self.tabs.set(texts.PICTURE_TABS[page])
        self.pages.close()
        if page == "folders":
            self.pages.pack_forget()
            self.scroll.pack(fill="both", expand=True, padx=(look.px(16), look.px(4)))
        else:
            self.scroll.pack_forget()
            self.pages.pack(fill="both", expand=True, padx=look.px(24), pady=(0, look.px(16)))
            self.pages.open(page)

    def _chosen_tab(self, title: str) -> None:
        self.turn_to(next(page for page, words in texts.PICTURE_TABS.items() if words == title))

    def _counted(self) -> None:
        """The folders were read, as far as they are: the list says how many pictures and problems they hold."""
        self.list.refresh()

    def _describe(self, concept: dict[str, object]) -> Item:
        """A concept in the list."""
        path = str(concept.get("path") or "")
        title = str(concept.get("name") or "") or PurePath(path).name or texts.LIST_UNNAMED["concepts"]
        folder = self.pages.folder_of(concept) if self.pages is not None else None
        kind, repeats = concept.get("kind"), concept.get("repeats")
        details = [
            _count(folder),
            "" if repeats in (1, 1.0, "1") else texts.REPEATS.format(repeats=as_text(repeats)),
            texts.CONCEPT_KINDS.get(str(kind), str(kind)),
        ]
        cover = folder.pictures[0].file if folder is not None and folder.pictures else None
        return Item(title, "  ·  ".join(filter(None, details)), path, cover)


def _count(folder: Folder | None) -> str:
    """How many pictures a folder holds, and what is wrong with it; empty before it was read."""
    if folder is None:
        return ""
    if folder.error:
        return texts.FOLDER_UNREADABLE
    problems = texts.FOLDER_PROBLEMS.format(count=folder.problems) if folder.problems else ""
    return f"{texts.FOLDER_PICTURES.format(count=len(folder.pictures))}{problems}"
