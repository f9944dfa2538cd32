"""kohya's caption files, and their tags."""

from __future__ import annotations

from modules.importers.readers import boolean, integer, number, text
from modules.importers.rules import Assignment, ChangedValue, Values


def extension(values: Values) -> str:
    """sd-scripts adds a missing dot (config_util.py, train_util.py: DreamBoothSubset); its default is .caption."""
    return f".{str(values.get('caption_extension') or 'caption').strip().lstrip('.')}"


def lines(values: Values) -> list[Assignment]:
    """Without wildcards sd-scripts takes the first line of a caption file (train_util.py, read_caption)."""
    if boolean(values["enable_wildcard"]):
        return [Assignment("caption_lines", "random"), Assignment("wildcards", True)]
    return [Assignment("caption_lines", "first")]


def separator(value: object) -> object:
    """library/train_util.py, process_caption joins the tags with ", " after splitting them."""
    found = text(value)
    if found.strip() == ",":
        return found
    return ChangedValue(
        found, "kohya joins the tags with a comma after shuffling or dropping some, Tandem with its separator"
    )


def keep_tags(values: Values) -> list[Assignment]:
    """library/train_util.py, process_caption: prefix and caption are split into tags together; a prefix that does not
    end with the separator is one tag with the caption's first tag.
    """
    kept = integer(values["keep_tokens"])
    prefix = text(values["caption_prefix"] or "").strip()
    if not prefix or not (boolean(values["shuffle_caption"]) or number(values["caption_tag_dropout_rate"])):
        return [Assignment("keep_tags", kept)]
    tags = [tag.strip() for tag in prefix.split(text(values["caption_separator"] or ","))]
    needed = len(tags) - 1 if not tags[-1] else len(tags)
    why = (
        "" if kept >= needed else "the tags of caption_prefix are shuffled and dropped like others there; here it stays"
    )
    return [Assignment("keep_tags", max(0, kept - (len(tags) - 1)), why)]
