"""Posts JSON to a URL. Imported when needed: Python's HTTP client takes a tenth of a second."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from threading import Thread
from typing import IO, Final
from urllib.error import HTTPError, URLError

_TIMEOUT_S: Final = 15.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The answer could name another host, or one without encryption."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def post_json(url: str, facts: Mapping[str, object], limit_s: float = 2 * _TIMEOUT_S) -> None:
    """Raises OSError, also after `limit_s`; its text has nothing of the URL, which may be a secret."""
    failed: list[OSError] = []

    def post() -> None:
        try:
            _post(url, facts)
        except OSError as error:
            failed.append(error)

    # the timeout of urllib is one of each byte: a server that sends one now and then would never let the run end
    thread = Thread(target=post, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise OSError(0, f"the server did not answer within {limit_s:g} s")
    if failed:
        raise failed[0]


def _post(url: str, facts: Mapping[str, object]) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "Tandem"}
    request = urllib.request.Request(url, json.dumps(facts).encode(), headers, method="POST")
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=_TIMEOUT_S) as answer:
            answer.read(1)
    except HTTPError as error:
        error.close()
        raise OSError(0, f"the server answered {error.code}") from None
    except URLError as error:
        cause = error.reason
        said = (cause.strerror or type(cause).__name__) if isinstance(cause, OSError) else type(error).__name__
        raise OSError(0, said) from None
    except (HTTPException, ValueError) as error:  # whose text may quote the URL
        raise OSError(0, type(error).__name__) from None
