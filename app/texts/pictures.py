"""The pictures of the Data section."""

from __future__ import annotations

from typing import Final

PICTURE_TABS: Final = {
    "folders": "Folders and settings",
    "pictures": "Pictures",
    "tags": "Tags",
    "buckets": "Sizes",
    "problems": "Problems",
}
PROBLEMS_COUNT: Final = "  {count:,} problems."
CONCEPT_KINDS: Final = {"train": "", "validation": "for validation", "test": "for the test"}
REPEATS: Final = "{repeats} \N{MULTIPLICATION SIGN} an epoch"
FOLDER_PICTURES: Final = "{count:,} pictures"
FOLDER_PROBLEMS: Final = ", {count:,} problems"
FOLDER_UNREADABLE: Final = "cannot be read"
PICTURES_UNREADABLE: Final = "The pictures cannot be read."
PICTURES_READING: Final = "Reading the folders …"
PICTURES_TOTAL: Final = "{pictures} pictures, {captioned} with a caption."
NO_PICTURES: Final = "No pictures to show."
NO_FOLDERS: Final = "No folder of pictures yet: add one under “Folders and settings”."
FILTER_PICTURES: Final = "Filter by name or caption"
PICTURE_FILTERS: Final = {
    "all": "All pictures",
    "caption": "Without a caption",
    "duplicate": "Duplicates",
    "tiny": "Too small",
}
PICTURES_SHOWN: Final = "{shown:,} of {total:,}"
REPLACE: Final = "Search and replace"
REPLACE_SEARCH: Final = "Search"
REPLACE_WITH: Final = "Replace with"
WHOLE_WORDS: Final = "whole words"
MATCH_CASE: Final = "match case"
REPLACE_COUNT: Final = "Replace in {count:,} captions"
REPLACE_NONE: Final = "Nothing to replace"
REPLACED: Final = "{count:,} captions replaced"
CAPTION_HINT: Final = "One caption a line. Written when you move on; Ctrl+Enter writes at once, Esc takes back."
CAPTION_WRITTEN: Final = "{file} is written."
CAPTION_NOT_WRITTEN: Final = "{file} cannot be written: {reason}."
CAPTION_UNDO: Final = "Take back"
CAPTION_FIXED: Final = {
    "auto": "This caption comes from the folder's metadata or from the file name. Choose “txt” as the folder's "
    "source to write captions here.",
    "file_name": "The file's name is its caption, as the folder's settings say.",
    "folder_name": "The folder's name is the caption, as its settings say.",
    "metadata": "The captions are in the folder's metadata file; edit that one.",
    "none": "The folder's settings say that its pictures have no captions.",
}
NOT_UTF8: Final = "it is not UTF-8 text"
TAG: Final = "Tag"
TAG_COUNT: Final = "Captions"
TAG_HINT: Final = "Enter or a double click shows the pictures with the tag."
PROBLEM: Final = "What is wrong"
PROBLEM_KIND: Final = "Kind"
PROBLEM_FILE: Final = "File"
PROBLEM_KINDS: Final = {"broken": "unreadable", "caption": "caption", "tiny": "too small", "duplicate": "duplicate"}
PROBLEM_HINT: Final = "Enter or a double click shows the picture."
NO_PROBLEMS: Final = "Nothing is wrong with the pictures."
BUCKET_HINT: Final = "So many pictures are trained in each size."
PICTURES_AGAIN: Final = "Read again"
PICTURE_SIZE: Final = "{width} \N{MULTIPLICATION SIGN} {height}"
PICTURE_FACTS: Final = "{size} pixels, trained as {bucket}"
