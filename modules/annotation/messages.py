"""What scripts/annotate.py prints with `--events`: one JSON object per line on standard output.

`caption`, `tag` and `mask` print, in this order,

- `{"note": "..."}`: a sentence that a person should see; at any time,
- `{"loading": "MODEL"}`, and while it is downloaded `{"downloading": [DONE, TOTAL]}`, in bytes; not if there is nothing
  to ask it,
- `{"proposals": "PATH"}`: the folder of the proposals, for `apply` and `undo`; not if there is no image to ask about,
- `{"total": N, "kept": K}`: N images come now, K have a proposal from an interrupted start,
- for each image `{"image": "relative/path", "text": "..."}`, or with `"mask": "PATH of a proposed PNG"` in place of the
  text, or with `"error": "why there is none"`,
- `{"finished": N}`: this many images have a proposal; then, without `--review` and if there are any, what `apply`
  prints.

`apply` prints `{"image": ..., "error": "..."}` for each proposal that is not written, then
`{"written": N, "unchanged": K}`; `undo` the same with the file in place of the image, then `{"undone": N, "left": K}`.
`list` prints a line for each set: `{"proposals": "PATH", "task": ..., "folder": ..., "model": ..., "state": "proposed"
or "written", "made": seconds since 1970, "images": number of proposals}`. Whatever fails ends with
`{"failed": "one sentence", "advice": "what to try"}` and an exit code.

The program may be ended at any time: what is proposed is on disk before it is printed, and the same command goes on.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from modules.files import Record

MOST_CHARACTERS = 20_000  # of a proposed text; a caption file has at most 1 MiB


class Message(Record):
    """One line of the events; what it does not say is None."""

    note: str | None = None
    proposals: str | None = None
    task: str | None = None
    folder: str | None = None
    model: str | None = None
    state: str | None = None
    made: float | None = None
    images: int | None = None
    loading: str | None = None
    downloading: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    total: int | None = None
    kept: int | None = None
    image: str | None = None
    text: str | None = None
    mask: str | None = None
    error: str | None = None
    finished: int | None = None
    written: int | None = None
    unchanged: int | None = None
    undone: int | None = None
    left: int | None = None
    failed: str | None = None
    advice: str | None = None
