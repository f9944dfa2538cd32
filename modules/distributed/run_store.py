"""What Tandem's ranks tell each other through torch's store, authenticated with the secret of the run.

torch's store believes everybody who reaches its port. With a secret, keys have a prefix and values an HMAC-SHA256 over
key and value, both derived from the secret: what a stranger writes is either never read, or refused. Counters cannot
carry a code; only the prefix protects them, which a client of the store may list. Deleting keys, or writing the same
value again, cannot be prevented.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from modules.config import TrainingError
from modules.files import FileFault, decode_json, printable, validate_record
from modules.run.format_duration import in_words
from modules.run.join.keys import STORE_SECRET
from modules.torch_compat import PrefixStore, Store

T = TypeVar("T")

logger = logging.getLogger("tandem")

_CODE_CHARS: Final = 64
_MAX_CHARS: Final = 8 << 20
_MAX_LOGGED: Final = 20
_ANNOUNCED: Final = "tandem-secret"
_NO_SECRET: Final = "none"
_ADVICE: Final = (
    "Another program writes into the store of this run: use a network that nobody else reaches, and another "
    "initial_port."
)


class StoreFault(TrainingError):
    """A value in the store that no rank of this run can have written."""

    kind = "network"

    def __init__(self, message: str, advice: str = _ADVICE) -> None:
        super().__init__(message, advice)


class RunStore:
    """A connection to the store that all ranks share; without a secret the values are as torch keeps them."""

    def __init__(self, store: Store, secret: str | None, *, prefix: str | None = None) -> None:
        self._store = store
        self._secret = secret
        self._key = b"" if secret is None else _derive(secret, "values")
        self.descriptions: tuple[bytes, ...] = ()  # what each rank said of itself, once all have joined
        derived = "" if secret is None else f"{_derive(secret, 'prefix').hex()}/"
        self._prefix = derived if prefix is None else prefix

    def within(self, name: str) -> RunStore:
        """The keys below `name`."""
        return RunStore(self._store, self._secret, prefix=f"{self._prefix}{name}/")

    def for_torch(self, name: str) -> Store:
        """The keys below `name` for torch itself, which has no authentication."""
        return PrefixStore(f"{self._prefix}{name}", self._store)

    def answering(self, limit_s: float) -> RunStore:
        """The same, with calls that raise RuntimeError if the store does not answer within `limit_s`: torch's own wait
        for a machine that was cut off until the system gives its connection up, which takes a quarter of an hour."""
        return RunStore(_Answering(self._store, limit_s), self._secret, prefix=self._prefix)  # type: ignore[arg-type]

    def clone(self) -> RunStore:
        """Another connection."""
        return RunStore(self._store.clone(), self._secret, prefix=self._prefix)  # type: ignore[attr-defined]

    def set(self, key: str, value: str) -> None:
        """Set `key`."""
        self._store.set(self._prefix + key, self._seal(key, value))

    def get(self, key: str) -> bytes:
        """The value of `key`, waiting for it as long as the store's timeout. Raises StoreFault if it is forged."""
        return self._open(key, self._store.get(self._prefix + key))

    def find(self, key: str) -> bytes | None:
        """The value of `key`, None if it is not set. Raises StoreFault if it is forged."""
        return self.get(key) if self.check([key]) else None

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all `keys` exist, whoever has set them."""
        return self._store.check([self._prefix + key for key in keys])

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Wait until all `keys` exist."""
        self._store.wait([self._prefix + key for key in keys], timeout)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of keys that exist. Raises StoreFault for the first that is forged."""
        values = self.authentic(keys)
        for value in values:
            if isinstance(value, StoreFault):
                raise value
        return [value for value in values if isinstance(value, bytes)]

    def authentic(self, keys: Sequence[str]) -> list[bytes | StoreFault]:
        """The values of keys that exist, with the fault of those that are forged."""
        found: list[bytes | StoreFault] = []
        if not keys:
            return found
        for key, sealed in zip(keys, self._store.multi_get([self._prefix + key for key in keys]), strict=True):
            try:
                found.append(self._open(key, sealed))
            except StoreFault as fault:
                found.append(fault)
        return found

    def set_if_absent(self, key: str, value: str) -> bytes:
        """Set `key` unless it exists; its value now. Raises StoreFault if that is forged."""
        return self._open(key, self._store.compare_set(self._prefix + key, "", self._seal(key, value)))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which has no code; its value now."""
        return self._store.add(self._prefix + key, amount)

    def announce_secret(self, rank: int) -> None:
        """Let every rank see whether this one has the same secret, which does not reveal it."""
        self._store.set(f"{_ANNOUNCED}/{rank}", self._announcement)

    def secret_difference(self, rank: int) -> str:
        """In words how the secret of `rank` differs from this rank's; "" if it does not, or is not known yet."""
        key = f"{_ANNOUNCED}/{rank}"
        theirs = self._store.get(key) if self._store.check([key]) else self._announcement.encode()
        if hmac.compare_digest(theirs, self._announcement.encode()):
            return ""
        if theirs == _NO_SECRET.encode():
            return f"has no {STORE_SECRET}, but this rank has one"
        return f"has another {STORE_SECRET}" if self._secret else f"has a {STORE_SECRET}, but this rank has none"

    @property
    def _announcement(self) -> str:
        return _NO_SECRET if self._secret is None else _derive(self._secret, "announcement").hex()

    def _seal(self, key: str, value: str) -> str:
        return value if self._secret is None else self._code(key, value.encode()).decode() + value

    def _open(self, key: str, sealed: bytes) -> bytes:
        if self._secret is None:
            return sealed
        code, value = sealed[:_CODE_CHARS], sealed[_CODE_CHARS:]
        if not hmac.compare_digest(code, self._code(key, value)):
            raise StoreFault(
                f"the value {printable(key, 100)!r} in the store was not written by a rank of this run: its "
                "authentication code is missing or wrong."
            )
        return value

    def _code(self, key: str, value: bytes) -> bytes:
        """The HMAC as hexadecimal digits; the length separates key and value."""
        name = (self._prefix + key).encode()
        return hmac.new(self._key, b"%d:%b%b" % (len(name), name, value), hashlib.sha256).hexdigest().encode()


class _Answering:
    """The methods of a store, each called in a thread that is waited for up to a limit."""

    def __init__(self, store: Store, limit_s: float) -> None:
        self._store, self._limit_s = store, limit_s

    def __getattr__(self, name: str) -> Callable[..., object]:
        return partial(self._call, getattr(self._store, name))

    def _call(self, method: Callable[..., object], *arguments: object) -> object:
        answers: list[object] = []
        errors: list[Exception] = []

        def call() -> None:
            try:
                answers.append(method(*arguments))
            except Exception as error:  # noqa: BLE001  # passed on to the caller
                errors.append(error)

        thread = threading.Thread(target=call, name="store", daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if errors:
            raise errors[0]
        if not answers:
            raise RuntimeError(f"the store has not answered for {in_words(self._limit_s)}")
        return answers[0]


class FaultLog:
    """Logs each fault that is ignored once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def ignore(self, fault: StoreFault) -> None:
        """Log `fault` unless it was logged before."""
        if fault.message not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(fault.message)
            logger.warning("Ignored: %s", fault.message)


def parse_value(kind: type[T], text: str | bytes, what: str) -> T:
    """The JSON value that another rank sent as a record or dataclass. Raises StoreFault with `what` it is."""
    try:
        if len(text) > _MAX_CHARS:
            raise FileFault(f"is longer than {_MAX_CHARS >> 20} MiB")
        return validate_record(kind, decode_json(text))
    except FileFault as fault:
        raise StoreFault(f"{what} in the store {fault}.") from None


def _derive(secret: str, purpose: str) -> bytes:
    return hmac.new(secret.encode(), f"tandem store|{purpose}".encode(), hashlib.sha256).digest()
