"""A local Hugging Face hub: the API that huggingface_hub uses, with the failures of the real one.

Repositories are folders: OWNER/NAME/REVISION/files; `HubServer.asked` has the requests.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.ports import free_port

TOKEN = "hf_right"


@dataclass
class Repository:
    """One model: its branches and tags, each a folder of files, and how the hub responds."""

    revisions: dict[str, Path]
    gated: bool = False
    private: bool = False
    lost: str = ""  # a file that is listed but missing
    breaks: dict[str, int] = field(default_factory=dict)  # file -> how often its download is interrupted
    hold: dict[str, threading.Event] = field(default_factory=dict)  # file -> its second half waits for this
    silent: bool = False  # accepts requests and never answers

    def commit(self, revision: str) -> str:
        """The same files are the same commit."""
        hasher = hashlib.sha1()
        for name, content in sorted(self.files(revision).items()):
            hasher.update(f"{name} {hashlib.sha1(content).hexdigest()}\n".encode())
        return hasher.hexdigest()

    def files(self, revision: str) -> dict[str, bytes]:
        """The content of all files by name."""
        folder = self.revisions[revision]
        return {f.relative_to(folder).as_posix(): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}

    def find(self, revision: str) -> str | None:
        """The branch or tag that a revision or a commit is."""
        return next((name for name in self.revisions if revision in (name, self.commit(name))), None)


class HubServer:
    """Serves `repositories` at `endpoint` while the block is entered."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[tuple[str, str]] = []  # (method, path), in the order of arrival
        self.halfway = threading.Event()  # a held file has sent its first half
        self.closing = threading.Event()
        hub = self

        class Handler(_Handler):
            server_of = hub

        self._server = _Server((host, free_port()), Handler)
        self.endpoint = f"http://{host}:{self._server.server_port}"

    def add(self, name: str, folder: Path, **behaviour: object) -> Repository:
        """A repository whose main branch is `folder`."""
        repository = Repository({"main": folder}, **behaviour)  # type: ignore[arg-type]
        self.repositories[name] = repository
        return repository

    def downloaded(self, name: str) -> list[str]:
        """The files of a repository that were asked for by GET, once for each time."""
        start = f"/{name}/resolve/"
        return [
            path[len(start) :].partition("/")[2] for how, path in self.asked if how == "GET" and path.startswith(start)
        ]

    def calls(self, name: str) -> int:
        """How often anything at all was asked of a repository."""
        return sum(name in path for _, path in self.asked)

    def serve(self) -> None:
        """Until `close`."""
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        """Answer nothing more."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # a download opens 8 connections at once, and the system drops those above this: 5 by default
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked is gone, which the tests do on purpose."""


@contextmanager
def hub_server(host: str = "127.0.0.1") -> Iterator[HubServer]:
    """A hub without repositories."""
    hub = HubServer(host)
    thread = threading.Thread(target=hub.serve, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: HubServer

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Kept in `asked` instead."""

    def _answer(self) -> None:
        hub, path = self.server_of, unquote(urlsplit(self.path).path)
        hub.asked.append((self.command, path))
        words = path.removeprefix("/api/models").split("/")[1:]
        name, rest = "/".join(words[:2]), words[2:]
        repository = hub.repositories.get(name)
        if repository is not None and repository.silent:
            hub.closing.wait()
            self.close_connection = True
            return
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token != TOKEN:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and not token):
            self._refuse(404 if token else 401, "RepoNotFound" if token else "", "Repository not found")
        elif (found := repository.find(rest[1] if rest else "main")) is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {rest[1]}")
        elif path.startswith("/api/"):
            self._describe(name, repository, found)
        elif repository.gated:
            self._refuse(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted")
        else:
            self._file(repository, found, "/".join(rest[2:]))

    def _describe(self, name: str, repository: Repository, revision: str) -> None:
        files = repository.files(revision).items()
        siblings = [{"rfilename": n, "size": len(c), "blobId": hashlib.sha1(c).hexdigest()} for n, c in files]
        info = {"id": name, "sha": repository.commit(revision), "siblings": siblings, "gated": repository.gated}
        self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _file(self, repository: Repository, revision: str, name: str) -> None:
        content = repository.files(revision).get(name)
        if content is None or name == repository.lost:
            self._refuse(404, "EntryNotFound", f"{name} does not exist")
            return
        headers = {
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": repository.commit(revision),
            "Accept-Ranges": "bytes",
        }
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(206 if start else 200, content[start:], headers, self._between(repository, name))

    def _between(self, repository: Repository, name: str) -> Callable[[], bool] | None:
        """What happens in the middle of a file: True where the connection breaks."""
        if self.command == "GET" and repository.breaks.get(name, 0) > 0:
            repository.breaks[name] -= 1
            return lambda: True
        held = repository.hold.get(name)
        if self.command == "GET" and held is not None:

            def wait() -> bool:
                self.server_of.halfway.set()
                while not held.wait(0.05):
                    if self.server_of.closing.is_set():
                        return True
                return False

            return wait
        return None

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
        self._send(status, json.dumps({"error": message}).encode(), headers)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], between: Callable[[], bool] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        middle = len(body) // 2 if between is not None and status == 200 else 0
        try:
            self.wfile.write(body[:middle])
            self.wfile.flush()
            if between is not None and between():
                self.close_connection = True
                return
            self.wfile.write(body[middle:])
        except OSError:  # whoever asked is gone
            self.close_connection = True
