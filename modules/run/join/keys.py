"""Keys that two machines of a run derive from the join token, which itself is never sent."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

# The secret of the processes of one start, in their environment; nothing prints it.
STORE_SECRET: Final = "TANDEM_STORE_SECRET"  # the name of a variable


def derive_key(token: str, purpose: str, nonce: str) -> str:
    """64 hex digits: HMAC-SHA256 under the token, for one purpose ("store", "fingerprints") and a nonce sent openly."""
    return hmac.new(token.encode(), f"tandem key|{purpose}|{nonce}".encode(), hashlib.sha256).hexdigest()
