"""A web server of a folder, in a thread: with ranges or without, and one that misbehaves as a test wants."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

Server = TypeVar("Server", bound=ThreadingHTTPServer)


class FolderServer(ThreadingHTTPServer):
    """`requests` are (method, path, range); `cut_after` bytes an answer ends, `redirects` are by path."""

    daemon_threads = True

    def __init__(
        self, folder: Path, *, ranges: bool = True, handler: type[BaseHTTPRequestHandler] | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.folder, self.ranges = folder, ranges
        self.requests: list[tuple[str, str, str]] = []
        self.tokens: list[str] = []
        self.cut_after = 0
        self.redirects: dict[str, str] = {}
        self.refusals: dict[str, int] = {}  # the status for a path
        self.headers: dict[str, str] = {}  # in the place of right ones, of what is got
        self.release: threading.Event | None = None  # what is cut off stays open until then
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Answers with the files of the folder, and as the hub for data sets."""

    server: FolderServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        self.server.requests.append((self.command, path, self.headers.get("Range", "")))
        self.server.tokens.append(self.headers.get("Authorization", ""))
        if target := self.server.redirects.get(path):
            self._head(302, {"Location": target, "Content-Length": "0"})
            return
        if status := self.server.refusals.get(path):
            self._head(status, {"Content-Length": "0"})
            return
        if path.startswith("/api/datasets/"):
            self._listing(path)
            return
        file = self.server.folder / path.partition("/resolve/")[2].partition("/")[2] if "/resolve/" in path else None
        file = file or self.server.folder / path.lstrip("/")
        if not file.is_file():
            self._head(404, {"Content-Length": "0"})
            return
        data, start = file.read_bytes(), 0
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        given = self.headers.get("Range", "")
        if self.server.ranges and given and self.headers.get("If-Range", tag) == tag:
            start = int(given.removeprefix("bytes=").partition("-")[0])
        length = len(data) - start
        ranged = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        own = self.server.headers if with_body else {}
        self._head(206 if start else 200, {"Content-Length": str(length), "ETag": tag, **ranged, **own})
        if with_body:
            end = start + self.server.cut_after if self.server.cut_after else len(data)
            self.wfile.write(data[start:end])
            self.close_connection = end < len(data)
            if self.close_connection and self.server.release:
                self.wfile.flush()
                self.server.release.wait(60)

    def _listing(self, path: str) -> None:
        """As the hub answers for a data set of any name."""
        files = [file for file in sorted(self.server.folder.rglob("*")) if file.is_file()]
        listed = [
            {
                "rfilename": file.relative_to(self.server.folder).as_posix(),
                "size": file.stat().st_size,
                "blobId": digest,
            }
            for file in files
            for data in [file.read_bytes()]
            for digest in [hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()]
        ]
        name = "/".join(path.split("/")[3:5])
        answer = json.dumps({"id": name, "sha": "c" * 40, "siblings": listed, "private": False}).encode()
        self._head(200, {"Content-Length": str(len(answer)), "Content-Type": "application/json"})
        self.wfile.write(answer)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def serving(folder: Path, *, ranges: bool = True) -> Iterator[FolderServer]:
    """A server of the folder for the block."""
    with running(FolderServer(folder, ranges=ranges)) as server:
        yield server


@contextmanager
def running(started: Server) -> Iterator[Server]:
    """The server, in a thread for the block."""
    with started as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
