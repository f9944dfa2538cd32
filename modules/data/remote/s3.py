"""Objects below a prefix on S3, or a server like it, by s3fs (the extra `remote-data`)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from modules.data.remote.remote_file import Changed, RemoteFile
from modules.files import FileFault
from modules.files.addresses import Address

_PIECE: Final = 8 << 20  # bytes
_PIECE_S: Final = 600.0  # how long one may take
_TIMEOUT_S: Final = 30
_KEYS: Final = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, and AWS_ENDPOINT_URL for other servers"


class S3Source:
    """Keys are taken as boto3 finds them (AWS_ACCESS_KEY_ID, AWS_PROFILE, ~/.aws, the machine's role); without any, the
    bucket is read as anybody may."""

    def __init__(self, address: Address) -> None:
        if find_spec("s3fs") is None:
            raise FileFault('needs s3fs: .venv/bin/python -m pip install "tandem[remote-data]"')
        self._address = address
        self._fs: Any = None

    def files(self) -> Iterator[RemoteFile]:
        bucket = self._address.host
        for path in self._address.paths:
            found = self._call(partial(_found, place=f"{bucket}/{path}".rstrip("/")))
            for key, each in found.items():
                inside = key.removeprefix(f"{bucket}/")
                if key.endswith("/") or not (not path or inside == path or inside.startswith(f"{path}/")):
                    continue  # a mark of a folder
                name = inside[len(self._address.base) :].lstrip("/")
                yield RemoteFile(name, key, int(each["size"]), str(each.get("ETag", "")))

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        for at in range(start, file.size, _PIECE):
            yield self._call(partial(_piece, file=file, at=at, end=min(at + _PIECE, file.size)))

    def _call(self, ask: Callable[[Any], Any]) -> Any:
        """What `ask` gets of s3fs, its errors as ours."""
        try:
            return ask(self._system())
        except (Changed, FileFault):
            raise
        except FileNotFoundError:
            raise FileFault(f"does not exist (bucket {self._address.host!r}), or is not for you; set {_KEYS}") from None
        except PermissionError:
            raise FileFault(f"is not for you: the server refuses it; set {_KEYS}") from None
        except OSError as error:
            raise OSError(f"the server answers {type(error).__name__}: {str(error)[:200]}") from None
        except Exception as error:  # noqa: BLE001  # botocore's have no class of their own in s3fs
            raise OSError(f"the server does not answer ({type(error).__name__})") from None

    def _system(self) -> Any:
        import s3fs

        retries = {"max_attempts": 3}
        limits = {"connect_timeout": _TIMEOUT_S, "read_timeout": _TIMEOUT_S, "retries": retries}
        if self._fs is None:
            self._fs = s3fs.S3FileSystem(anon=not _has_keys(), use_listings_cache=False, config_kwargs=limits)
        return self._fs


def _found(fs: Any, place: str) -> Any:
    return fs.find(place, detail=True, maxdepth=None)


def _piece(fs: Any, file: RemoteFile, at: int, end: int) -> bytes:
    """The bytes from `at` to `end`. Raises Changed if the object is another one, besides the errors of s3fs."""
    from fsspec.asyn import sync

    bucket, _, key = file.place.partition("/")
    match = {"IfMatch": file.tag} if file.tag else {}
    try:
        answer = fs.call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={at}-{end - 1}", **match)
    except OSError as error:
        if error.errno == errno.EINVAL:  # the ETag or the range does not fit
            raise Changed from None
        raise
    try:
        is_part = answer.get("ContentRange") == f"bytes {at}-{end - 1}/{file.size}"
        if not is_part or (file.tag and answer.get("ETag") != file.tag):
            raise Changed
        return bytes(sync(fs.loop, answer["Body"].read, timeout=_PIECE_S))
    finally:
        answer["Body"].close()


def _has_keys() -> bool:
    from botocore.session import Session

    try:
        return Session().get_credentials() is not None
    except Exception:  # noqa: BLE001  # a profile that is not there, a file that cannot be read
        return True  # which the first request explains
