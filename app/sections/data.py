"""The images: folders, captions, size, cache and loading."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path, PurePath
from typing import Final

from app.form.cards import Card
from app.form.item_list import ItemListSpec
from app.form.item_row import ItemContent
from app.form.setting_text import format_value
from app.images.findings import Findings, FoundConcept, data_of
from app.images.image_index import ConceptFolder, count_problems, sum_problems
from app.images.pages import ImagePages
from app.images.thumbnails import Thumbnails
from app.sections.form_section import FormSection
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Segments, card, text, wrap_within
from app.windows.chooser import choose_path
from modules.config import Option
from modules.facts import all_facts
from modules.files.shard_paths import SHARD_SUFFIXES

TABS: Final = {
    "folders": "Folders and settings",
    "images": "Images",
    "tags": "Tags",
    "buckets": "Sizes",
    "problems": "Problems",
}
_KINDS: Final = {"train": "", "validation": "for validation", "test": "for testing"}

# The settings that also apply to data sets that a family brings itself.
_OF_OWN_DATA: Final = frozenset(
    (
        *("validation_split", "validation_batch_size", "validation_workers"),
        *("loader_workers", "prefetch_factor", "persistent_workers", "pin_memory", "drop_last"),
    )
)

_OF_EDITS: Final = ("references", "reference_resolution", "reference_dropout")  # for families that edit images
_OF_VIDEOS: Final = ("frames", "fps", "clips")  # for families that train on videos

ALL_IMAGES: Final = "All images"
EMPTY = "No images yet.\nAdd a folder of images: a concept, with captions and repeats of its own."


class Section(FormSection):
    """The list of concepts and the settings for all of them."""

    name = "data"
    declared_in = ("Data",)
    items = "concepts"
    item_cards = (
        Card(
            "This concept",
            (
                *("path", "name", "enabled", "kind", "repeats", "prior", "loss_weight"),
                *("include_subfolders", "folder_repeats", "resolutions", "min_size"),
            ),
            1,
        ),
        Card(
            "Captions",
            (
                "caption_source",
                "caption_lines",
                "caption_extension",
                "caption_column",
                *("prompt_prefix", "caption_dropout", "wildcards"),
                *("tag_shuffle", "tag_delimiter", "keep_tags", "keep_separator"),
                *("tag_dropout", "kept_tags", "dropped_tags"),
            ),
            1,
        ),
        Card("Reference images", ("references",), 1),
        Card(
            "Augmentation",
            (
                *("horizontal_flip", "crop_jitter", "random_rotate", "fixed_rotate", "color_jitter"),
                *("random_brightness", "fixed_brightness", "random_contrast", "fixed_contrast"),
                *("random_saturation", "fixed_saturation", "random_hue", "fixed_hue"),
                *("image_variations", "mask_suffix", "alpha_mask"),
            ),
            1,
        ),
    )
    cards = (
        Card(
            ALL_IMAGES,
            (
                *("resolution", "aspect_ratio_bucketing", "no_upscale", "bucket_step", "largest_aspect"),
                *("fewer_buckets", "validation_split", "caption_dropout"),
            ),
            0,
        ),
        Card("Videos", _OF_VIDEOS, 0),
        Card("Masks", ("masked_training", "unmasked_weight", "normalize_masked_area_loss"), 0),
        Card("References", ("reference_resolution", "reference_dropout"), 0),
        Card(
            "Cache",
            ("cache_dir", "cache_limit", "cache_latents", "cache_precision", "cache_only", "cache_batch_size"),
            0,
        ),
        Card(
            "Data loading",
            (
                *("loader_workers", "prefetch_factor", "persistent_workers", "pin_memory", "drop_last"),
                *("validation_batch_size", "validation_workers", "rescan"),
            ),
            0,
        ),
    )

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, state)
        state.subscribe("family", self._changed, self)

    def build(self) -> None:
        """Build the form; the pages about the images are built when first shown."""
        self.thumbnails = Thumbnails()
        self.pages: ImagePages | None = None
        kind = ItemListSpec(
            self.items,
            "enabled",
            "Concepts",
            "Add a folder",
            EMPTY,
            self._describe,
            self.thumbnails,
            choose=self._choose_folder,
        )
        self.custom_dataset = card(self.scroll.inside)
        self._origin = text(self.custom_dataset, "", colour=theme.MUTED)
        wrap_within(self._origin, self.custom_dataset)
        self._origin.pack(padx=theme.px(16), pady=theme.px(16), anchor="w")
        self.columns.add(self.custom_dataset, 0)
        self.list = self.add_list(kind)
        self.findings = Findings(self.list.frame, self.state, self._suggest)
        super().build()
        self._for_all = next(block for block in self.blocks if block.heading.cget("text") == ALL_IMAGES)
        self.page = "folders"
        self.tabs = Segments(self.head, list(TABS.values()), self._chosen_tab)
        self.tabs.set(TABS["folders"])
        self.tabs.pack(side="right")

    def show(self) -> None:
        if self.pages is None:
            self.pages = ImagePages(self, self.state, self.thumbnails, self._counted)
            self.pages.bind("<<ShowImages>>", lambda event: self.turn_to("images"))
        super().show()
        self.pages.reload_if_changed()
        self.look_outside()
        saved = self.state.pages.get(self.name, "")
        self.turn_to(saved if saved in TABS else self.page)

    def look_outside(self) -> None:
        """Another program may have removed images."""
        if self.pages is not None:
            self.pages.look_outside()

    def hide(self) -> None:
        if self.pages is not None:
            self.pages.close()
        super().hide()

    def destroy(self) -> None:
        """End the threads of the thumbnails."""
        self.thumbnails.close()
        super().destroy()

    @property
    def brings_data(self) -> bool:
        """Whether the chosen family has data sets of its own."""
        declaration = self.state.family.declaration
        return declaration is not None and declaration.brings_data

    @property
    def _edits(self) -> bool:
        """Whether the chosen family takes reference images, or some are set although it does not."""
        facts = all_facts().get(self.state.family.name)
        given = any(str(each.get("references") or "").strip() for each in self.list.items)
        return given or (facts is not None and facts.references is not None)

    @property
    def _moves(self) -> bool:
        """Whether the chosen family trains on videos."""
        facts = all_facts().get(self.state.family.name)
        return facts is not None and facts.clips is not None

    @property
    def _is_read(self) -> bool:
        """Whether all folders have been read as they are set now."""
        return self.pages is not None and self.pages.is_complete

    def refresh(self) -> None:
        """Without the pages about images, if there are none."""
        if self.brings_data:
            self.turn_to("folders")
            self.tabs.pack_forget()
        else:
            self.tabs.pack(side="right")
        super().refresh()
        if self.pages is not None:
            self.pages.reload_if_changed()
            self._show_findings()

    def arrange(self) -> None:
        """With data sets of its own: where they come from, what applies to them, and concepts that are left over."""
        hidden = set[str]() if self.brings_data else {str(self.custom_dataset)}
        if self.brings_data and not self.list.items:
            hidden.add(str(self.list.frame))
        self._for_all.heading.configure(text="All samples" if self.brings_data else ALL_IMAGES)
        name = PurePath(self.state.family.name).name
        self._origin.configure(
            text=f"The data comes from build_data in {name}; folders of images are not used." * self.brings_data
        )
        hidden |= self.empty_cards()
        self.columns.arrange(lambda frame: str(frame) not in hidden)

    def wants(self, option: Option) -> bool:
        if option.name in _OF_EDITS and not self._edits and option.path not in self._forced:
            return False
        if option.path in _OF_VIDEOS and not self._moves and option.path not in self._forced:
            return False
        return super().wants(option) and (
            not self.brings_data
            or option.path in _OF_OWN_DATA
            or option.path in self._forced
            or option.path.startswith("concepts.")
        )

    def jump_to(self, path: str) -> None:
        self.turn_to("folders")
        super().jump_to(path)

    def turn_to(self, page: str) -> None:
        """Show one of TABS."""
        if page == self.page or self.pages is None:
            return
        self.page = page
        self.state.set_page(self.name, page)
        self.tabs.set(TABS[page])
        self.pages.close()
        if page == "folders":
            self.pages.pack_forget()
            self.scroll.pack(fill="both", expand=True, padx=(theme.px(16), theme.px(4)))
        else:
            self.scroll.pack_forget()
            self.pages.pack(fill="both", expand=True, padx=theme.px(24), pady=(0, theme.px(16)))
            self.pages.open(page)

    def _chosen_tab(self, title: str) -> None:
        self.turn_to(next(page for page, tab in TABS.items() if tab == title))

    def _choose_folder(self) -> dict[str, object] | None:
        """Starts beside the folder that was added last, unless that is one of Tandem's own: data/demo."""
        folders = [Path(str(concept.get("path") or "")) for concept in self.list.items]
        start = folders[-1].parent if folders and folders[-1].is_absolute() else Path()
        chosen = choose_path(self, "any", "Folder of images, or archive", start, SHARD_SUFFIXES)
        return {"path": chosen} if chosen else None

    def _counted(self) -> None:
        """Update the counts of images and problems, in the list and at the tab."""
        self.list.refresh()
        self._show_findings()
        count = len(self.pages.image_index.problems) if self.pages is not None else 0
        title = TABS["problems"]
        self.tabs.relabel(title, f"{title} ({count:,})" if count else title)

    def _found(self) -> list[FoundConcept]:
        """The concepts whose folders have been read to the end."""
        if self.pages is None:
            return []
        found = [(number, each, self.pages.concept_folder(each)) for number, each in enumerate(self.list.items)]
        return [(number, each, folder) for number, each, folder in found if folder is not None and folder.is_read]

    def _show_findings(self) -> None:
        if self.pages is not None:
            found = self._found()
            is_reading = len(found) < len(self.list.items) and not self.pages.is_complete
            self.findings.refresh(found, self.pages.size_step, is_reading=is_reading)

    def _suggest(self) -> None:
        from app.windows.suggested_settings import SuggestedSettings

        config = self.state.draft.config
        if config is None:
            self.state.notify("invalid")
            return
        SuggestedSettings(self, self.state, config, data_of(self._found())).show()

    def _describe(self, concept: dict[str, object]) -> ItemContent:
        """The text and cover of a concept in the list."""
        path = str(concept.get("path") or "")
        title = str(concept.get("name") or "") or PurePath(path).name or "no folder chosen"
        folder = self.pages.concept_folder(concept) if self.pages is not None else None
        kind, repeats = concept.get("kind"), concept.get("repeats")
        details = [
            _count(folder, self._is_read),
            "" if repeats in (1, 1.0, "1") else f"{format_value(repeats)}× per epoch",
            _KINDS.get(str(kind), str(kind)),
        ]
        problems = {} if folder is None else folder.problems
        whole, short = (
            "  ·  ".join(filter(None, [*details, said])) for said in (count_problems(problems), sum_problems(problems))
        )
        cover = folder.images[0].file if folder is not None and folder.images else None
        lacks_images = folder is not None and not folder.images and self._is_read
        return ItemContent(title, whole, short, path, cover, warns=lacks_images)


def _count(folder: ConceptFolder | None, is_read: bool) -> str:
    """The number of images of a folder; empty before it was read."""
    if folder is None:
        return ""
    if folder.error:
        return "cannot be read"
    count = len(folder.images)
    return "no images" if is_read and not count else f"{count:,} image{'s' * (count != 1)}"
