"""Machine 0, as a joining machine sees it: its messages, what it asks for, and how either side ends the connection."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from modules.config import ConfigError, DataError, TandemError
from modules.config.trusted_code import CodeNotTrusted
from modules.files import printable
from modules.run.join.allowed_paths import FOR_MACHINE_0, Ask, PathMissing, PathNotAllowed
from modules.run.join.channel import ChannelClosed, Message
from modules.run.join.fingerprint import Listing, digest, keyed_listing, keyed_names
from modules.run.join.join_line import JoinLine
from modules.run.join.keys import derive_key
from modules.run.join.members import JoinError
from modules.run.join.session import Session, StopRequested

# For machine 0, whose own --trust_code would not help.
_CODE_NOT_ALLOWED: Final = (
    "nobody has allowed the family's Python file to run on that machine; once it has been read there, join again with "
    "--trust_code"
)
_ERROR_OF_KIND: Final[dict[str, type[TandemError]]] = {"config": ConfigError, "data": DataError}


class MachineZero:
    """The session with machine 0 until the start."""

    def __init__(self, session: Session, join_line: JoinLine, echo: Callable[[str], None]) -> None:
        self.name = "machine 0"
        self._session = session
        self._join_line = join_line
        self._echo = echo
        self._key = ""
        self._listings: list[Listing] = []

    def introduce(self, host: str, nonce: str) -> None:
        """Its host name, and the nonce of this connection's fingerprints."""
        self.name = f"{printable(host, 100)} (machine 0)"
        self._key = derive_key(self._join_line.token, "fingerprints", nonce)

    def send_ready(self, processes: int, listings: list[Listing]) -> None:
        """This machine has checked what it can: machine 0 compares the digests of its files."""
        self._listings = listings
        self.send("ready", processes=processes, digests=[digest(listing, self._key) for listing in listings])

    def send(self, kind: str, /, **content: object) -> None:
        """Send a message. If machine 0 has gone, `expect` raises why: what it sent last can still be received."""
        with suppress(ChannelClosed):
            self._session.send(kind, **content)

    def announced(self, ask: Ask | None) -> Ask | None:
        """`ask`, with machine 0 being told that a question waits for its answer, but not which."""
        if ask is None:
            return None

        def announce(described: str) -> bool:
            self.send("asking")
            answer = ask(described)
            self.send("answered")
            return answer

        return announce

    def expect(self, *kinds: str) -> Message:
        """The next message of these kinds. Raises TandemError if machine 0 rejects this machine or disconnects."""
        while True:
            try:
                message = self._session.expect(*kinds, "rejected", "request_listings", "closed")
                if message["type"] == "request_listings":
                    self._session.send("listings", listings=self._keyed_listings(message.get("which")))
                    continue
            except ChannelClosed as end:
                reason = f": {end}" if str(end) else ""
                raise JoinError(
                    f"the connection to {self.name} at {self._join_line} was lost{reason}",
                    "Check its output, and run this line again when it waits for machines",
                ) from end
            if message["type"] == "rejected":
                self._report_files(message.get("only_there"))
                error = _ERROR_OF_KIND.get(str(message.get("kind")), JoinError)
                reason, advice = printable(message.get("message"), 4000), printable(message.get("advice"), 4000)
                raise error(f"machine 0 rejected this machine: {reason}", advice)
            if message["type"] == "closed":
                outcome = message.get("outcome") or "the run is complete, or was stopped"
                raise JoinError(f"{self.name} has ended: {printable(outcome, 4000, lines=True)}")
            return message

    def leave(self, error: BaseException) -> None:
        """Disconnect, with the reason."""
        reason = f"it was stopped by {error.by}" if isinstance(error, StopRequested) else str(error)
        if isinstance(error, (PathNotAllowed, PathMissing)):
            reason = FOR_MACHINE_0
        if isinstance(error, CodeNotTrusted):
            reason = _CODE_NOT_ALLOWED
        self.send("leave", reason=reason)
        self._session.close()

    def _keyed_listings(self, which: object) -> list[Listing]:
        """The listings that machine 0 asks for, as HMACs."""
        numbers = which if isinstance(which, list) else []
        known = [each for each in numbers if type(each) is int and 0 <= each < len(self._listings)]
        return [keyed_listing(self._listings[number], self._key) for number in dict.fromkeys(known)]

    def _report_files(self, hidden: object) -> None:
        """Name the files that only this machine has, of which machine 0 knows only HMACs."""
        wanted = set(map(str, hidden)) if isinstance(hidden, list) else set()
        names = {code: name for listing in self._listings for name, code in keyed_names(listing, self._key).items()}
        if found := [printable(names[code], 200) for code in sorted(wanted & names.keys())]:
            self._echo(f"Only on this machine: {', '.join(found)}")
