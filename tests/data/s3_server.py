"""A server of buckets in a thread, which are folders: as much of S3 as reading needs, in small pages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.data.web_server import FolderServer, Handler, running

_PAGE = 2  # objects in an answer


class BucketServer(FolderServer):
    """`folder` has a folder for each bucket. Those below it are listed, too, as empty objects that consoles make."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, handler=_BucketHandler)
        self.signed: list[bool] = []  # whether each request was
        self.changes: dict[str, bytes] = {}  # what an object becomes once a part of it is sent


class _BucketHandler(Handler):
    server: BucketServer

    def _answer(self, *, with_body: bool) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        self.server.requests.append((self.command, f"{bucket}/{key}", self.headers.get("Range", "")))
        self.server.signed.append("Authorization" in self.headers)
        asked = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if status := self.server.refusals.get(f"{bucket}/{key}"):
            self._fail(status, "AccessDenied" if status == 403 else "SlowDown")
        elif not (self.server.folder / bucket).is_dir():
            self._fail(404, "NoSuchBucket")
        elif not key:
            self._list(bucket, asked)
        else:
            self._object(self.server.folder / bucket / key, with_body=with_body)

    def _list(self, bucket: str, asked: dict[str, str]) -> None:
        folder, prefix = self.server.folder / bucket, asked.get("prefix", "")
        files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        marks = {f"{name.rpartition('/')[0]}/" for name in files if "/" in name}
        keys = sorted(key for key in {*files, *marks} if key.startswith(prefix))
        keys = [key for key in keys if key > asked.get("continuation-token", "")]
        page, more = keys[:_PAGE], len(keys) > _PAGE
        encoding = "<EncodingType>url</EncodingType>" if asked.get("encoding-type") == "url" else ""
        contents = "".join(
            f"<Contents><Key>{escape(quote(key) if encoding else key)}</Key>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{escape(_tag(_data(folder / key)))}</ETag>"
            f"<Size>{len(_data(folder / key))}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        self._send(
            200,
            f"<ListBucketResult><Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount><MaxKeys>{_PAGE}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{encoding}{token}{contents}</ListBucketResult>",
        )

    def _object(self, file: Path, *, with_body: bool) -> None:
        if not file.is_file():
            self._fail(404, "NoSuchKey")
            return
        data, tag = file.read_bytes(), _tag(file.read_bytes())
        if self.headers.get("If-Match", tag) != tag:
            self._fail(412, "PreconditionFailed")
            return
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        headers = {"Content-Length": str(len(part)), "ETag": tag, "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        self._head(206 if "Range" in self.headers else 200, headers)
        if with_body:
            cut, self.server.cut_after = self.server.cut_after, 0  # once
            self.wfile.write(part[:cut] if cut else part)
            self.close_connection = bool(cut)
            if (changed := self.server.changes.pop(file.name, None)) is not None:
                file.write_bytes(changed)

    def _fail(self, status: int, code: str) -> None:
        self._send(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")

    def _send(self, status: int, xml: str) -> None:
        data = f'<?xml version="1.0" encoding="UTF-8"?>{xml}'.encode()
        self._head(status, {"Content-Length": str(len(data)), "Content-Type": "application/xml"})
        if self.command != "HEAD":
            self.wfile.write(data)


def _data(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def serving_buckets(folder: Path) -> Iterator[BucketServer]:
    """A server of the buckets in the folder for the block."""
    with running(BucketServer(folder)) as server:
        yield server
