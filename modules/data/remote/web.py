"""Files of web servers, and of data sets on the Hugging Face hub, which are listed by it and served as others are."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import quote, urlsplit

from modules import __version__
from modules.data.remote.remote_file import Changed, RemoteFile, retried
from modules.files import FileFault
from modules.files.addresses import Address

TIMEOUT_S: Final = 30.0
_PIECE: Final = 1 << 20  # bytes
_AT_ONCE: Final = 8  # questions about files
_WINDOW: Final = 64  # questions that wait
_LEAST: Final = 1000  # bytes a second
_SLOW_S: Final = 30.0  # how long a server may send fewer
_LONGEST_SIZE: Final = 19  # digits
_AGENT: Final = {"User-Agent": f"tandem/{__version__}", "Accept-Encoding": "identity"}
_PARTIAL, _NOT_ALLOWED, _BAD_RANGE = 206, (405, 501), 416
_BUSY: Final = (408, 425, 429)  # try again
_SECRET: Final = "Authorization"  # the name of a header


class WebSource:
    """The files that an address of a web server names."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def files(self) -> Iterator[RemoteFile]:
        paths = self._address.paths
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for first in range(0, len(paths), _WINDOW):
                yield from pool.map(self._described, paths[first : first + _WINDOW])

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        return _read(file, start, {})

    def _described(self, path: str) -> RemoteFile:
        url = f"{self._address.scheme}://{self._address.host}/{quote(path)}"
        try:
            headers = retried(lambda: _ask(url, {}, "HEAD"))
        except _Refused as refused:
            if refused.status not in _NOT_ALLOWED:
                raise
            headers = retried(lambda: _ask(url, {}, "GET"))
        return _of_headers(headers, path[len(self._address.base) :].lstrip("/"), url)


class HubSource:
    """The files of a data set on the hub; a token is taken as huggingface_hub finds it (HF_TOKEN, `hf auth login`)."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def files(self) -> Iterator[RemoteFile]:
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.errors import HfHubHTTPError

        name, _, revision = self._address.host.partition("@")
        wanted, base = self._address.paths, self._address.base

        def ask() -> Any:
            try:
                return HfApi(token=get_token()).dataset_info(
                    name, revision=revision, files_metadata=True, timeout=TIMEOUT_S
                )
            except HfHubHTTPError as error:
                status = getattr(error.response, "status_code", 0)
                if status >= 500 or status in _BUSY:
                    raise OSError(f"the hub answers HTTP {status}") from None
                raise FileFault(f"is not on the hub, or not for you (HTTP {status}); HF_TOKEN holds a token") from None
            except Exception as error:  # noqa: BLE001  # also those of httpx, which is not a dependency of ours
                raise OSError(f"the hub does not answer ({type(error).__name__})") from None

        info = retried(ask)
        for each in info.siblings or ():
            if each.size is None or not any(_is_below(each.rfilename, path) for path in wanted):
                continue
            below = each.rfilename[len(base) :].lstrip("/")
            tag = str(each.lfs.sha256 if each.lfs else each.blob_id or "")
            yield RemoteFile(below, self._url(name, info.sha or revision, each.rfilename), each.size, tag, digest=tag)

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        from huggingface_hub import get_token

        token = get_token()
        return _read(file, start, {_SECRET: f"Bearer {token}"} if token else {}, of_commit=True)

    def _url(self, name: str, commit: str, path: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(name, path, repo_type="dataset", revision=commit)


class _Refused(FileFault):
    def __init__(self, url: str, status: int) -> None:
        super().__init__(f"cannot be downloaded: the server answers HTTP {status} for {_shown(url)}")
        self.status = status


class _Redirects(urllib.request.HTTPRedirectHandler):
    """To http and https alone, never from https to http, and without the token on another host."""

    max_redirections = 5

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if after.scheme not in ("https", before.scheme):
            fp.close()
            raise FileFault(f"is redirected to an address that is refused ({after.scheme}://)")
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None:
            found.method = req.get_method()
            if after.netloc != before.netloc:
                found.remove_header(_SECRET)
        return found


def _web_only() -> urllib.request.OpenerDirector:
    """No file:, ftp: or data:, as urlopen has."""
    opener = urllib.request.OpenerDirector()
    for kind in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        _Redirects,
    ):
        opener.add_handler(kind())
    return opener


_opener = _web_only()


def _ask(url: str, headers: Mapping[str, str], method: str) -> Any:
    with _open(url, headers, method) as answer:
        return answer.headers


def _open(url: str, headers: Mapping[str, str], method: str = "GET") -> Any:
    request = urllib.request.Request(url, headers={**_AGENT, **headers}, method=method)
    try:
        return _opener.open(request, timeout=TIMEOUT_S)
    except FileFault:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        if 300 <= error.code < 400:
            raise FileFault(f"is redirected in a circle, or to an address that is refused, by {_shown(url)}") from None
        if (error.code >= 500 and error.code not in _NOT_ALLOWED) or error.code in _BUSY:
            raise OSError(f"the server answers HTTP {error.code}") from None
        raise _Refused(url, error.code) from None
    except urllib.error.URLError as error:
        raise OSError(f"{urlsplit(url).hostname} does not answer ({error.reason})") from None
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{urlsplit(url).hostname} does not answer as a web server ({type(error).__name__})") from None


def _of_headers(headers: Any, name: str, url: str) -> RemoteFile:
    _check_plain(headers, url)
    size = headers.get("Content-Length", "")
    if not size.isascii() or not size.isdigit() or len(size) > _LONGEST_SIZE:
        raise FileFault(f"cannot be downloaded: the server does not tell the size of {_shown(url)}")
    return RemoteFile(name, url, int(size), headers.get("ETag") or headers.get("Last-Modified") or "")


def _check_plain(headers: Any, url: str) -> None:
    if (coding := headers.get("Content-Encoding", "identity").strip().lower()) not in ("", "identity"):
        raise FileFault(f"cannot be downloaded: the server compresses {_shown(url)} ({coding[:20]})")


def _read(file: RemoteFile, start: int, headers: Mapping[str, str], *, of_commit: bool = False) -> Iterator[bytes]:
    """`of_commit`: the address alone says which content it is."""
    resume = {"Range": f"bytes={start}-"} if start else {}
    if start and not of_commit:
        if not file.tag or file.tag.startswith("W/"):
            raise Changed
        resume["If-Range"] = file.tag
    try:
        answer = _open(file.place, {**headers, **resume})
    except _Refused as refused:
        if refused.status == _BAD_RANGE:
            raise Changed from None
        raise
    with answer:
        _check_answer(answer, file, start, of_commit=of_commit)
        began, came = time.monotonic(), 0
        try:
            while piece := answer.read1(_PIECE):
                yield piece
                came += len(piece)
                if (elapsed := time.monotonic() - began) >= _SLOW_S:
                    if came < _LEAST * elapsed:
                        raise OSError(f"the server sends less than {_LEAST} bytes a second")
                    began, came = time.monotonic(), 0
        except http.client.HTTPException as error:
            raise OSError(f"the connection was cut off ({type(error).__name__})") from None


def _check_answer(answer: Any, file: RemoteFile, start: int, *, of_commit: bool) -> None:
    """Raises Changed or FileFault unless what follows are the bytes of this file from `start` on."""
    headers = answer.headers
    _check_plain(headers, file.place)
    if start:
        is_rest = headers.get("Content-Range", "").strip() == f"bytes {start}-{file.size - 1}/{file.size}"
        is_other = not of_commit and headers.get("ETag", file.tag) != file.tag
        if answer.status != _PARTIAL or not is_rest or is_other:
            raise Changed  # the whole file: a server without ranges, or the file is another one
        return
    tag = headers.get("ETag") or headers.get("Last-Modified") or ""
    is_other = not of_commit and file.tag not in ("", tag)
    if answer.status == _PARTIAL or headers.get("Content-Length", "") != str(file.size) or is_other:
        raise FileFault("changes while it is downloaded; try again")


def _is_below(name: str, path: str) -> bool:
    return not path or name == path or name.startswith(f"{path}/")


def _shown(url: str) -> str:
    """Without what a redirect has added to it."""
    return url.partition("?")[0]
