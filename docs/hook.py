"""What mkdocs asks while it builds the manual: pages that stand in the project's root, and links that leave docs/."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")  # where GitHub and people look for them
LEAVING = re.compile(r"\[([^]]+)\]\(\.\./([^)#]+)(#[^)]+)?\)")

log = logging.getLogger("mkdocs.hooks")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root; in them, docs/ is where they are now."""
    for name in ROOT_PAGES:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """A link to a page of the root leads to it in the manual; one to code, which the manual lacks, becomes its text."""

    def replaced(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2], link[3] or ""
        if not (ROOT / path).exists():
            log.warning("%s: a link leads to %s, which does not exist", page.file.src_uri, path)
        return f"[{text}]({path}{anchor})" if path in ROOT_PAGES else text

    return LEAVING.sub(replaced, markdown)
