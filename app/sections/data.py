"""The pictures: folders, captions, size, cache and loading."""

from __future__ import annotations

from pathlib import PurePath

from app import look, texts
from app.controls import Segments
from app.form.build import Card
from app.pictures.pages import PicturePages
from app.sections.list_section import ListSection, unnamed


class Section(ListSection):
    """Concepts and what holds for all of them."""

    name = "data"
    declared_in = ("Data",)
    list_path = "concepts"
    list_title = "Concepts"
    item_cards = (
        Card("This concept", ("path", "name", "enabled", "kind", "repeats", "loss_weight", "include_subfolders"), 1),
        Card(
            "Its captions",
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
        Card("Its variations", ("horizontal_flip", "crop_jitter", "image_variations", "mask_suffix"), 1),
    )
    cards = (
        Card("All pictures", ("resolution", "aspect_ratio_bucketing", "validation_split", "caption_dropout"), 0),
        Card("Masks", ("masked_training", "unmasked_weight"), 0),
        Card("Cache", ("cache_dir", "cache_only"), 0),
        Card(
            "Loading",
            ("loader_workers", "prefetch_factor", "persistent_workers", "pin_memory", "drop_last"),
            0,
        ),
    )

    def build(self) -> None:
        """The form, and beside it pages about the pictures themselves, which are made when they are first wanted."""
        super().build()
        self.page = "folders"
        self.pages: PicturePages | None = None
        self.tabs = Segments(self.head, list(texts.PICTURE_TABS.values()), self._chosen_tab)
        self.tabs.set(texts.PICTURE_TABS["folders"])
        self.tabs.pack(side="right")

    def show(self) -> None:
        if self.pages is None:
            self.pages = PicturePages(self, self.state, self._counted)
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
        """The folders were read, as far as they are: the list and the tab say how many pictures and problems."""
        self.list.refresh()

    def describe(self, item: dict[str, object]) -> tuple[str, str]:
        path = str(item.get("path") or "")
        title = str(item.get("name") or "") or PurePath(path).name or unnamed("concepts")
        kind = "" if item.get("kind") == "train" else f"{item.get('kind')}  ·  "
        repeats = item.get("repeats")
        times = "" if repeats in (1, 1.0, "1") else texts.REPEATS.format(repeats=repeats)
        return title, f"{kind}{times}{self._count(item)}{path}"

    def _count(self, item: dict[str, object]) -> str:
        if self.pages is None or item not in self.list.items:
            return ""
        folder = self.pages.catalogue.folders.get(self.list.items.index(item))
        if folder is None:
            return ""
        if folder.error:
            return f"{texts.FOLDER_UNREADABLE}  ·  "
        problems = texts.FOLDER_PROBLEMS.format(count=folder.problems) if folder.problems else ""
        return f"{texts.FOLDER_PICTURES.format(count=len(folder.pictures))}{problems}  ·  "
