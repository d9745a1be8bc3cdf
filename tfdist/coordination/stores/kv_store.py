"""The key-value store that the training tasks of a job share.

    store = RendezvousStore("10.0.0.1", 2222, token)    # after rank 0 has started to serve
    store.put("worker:1", "step 40")
    store.get("worker:0", seconds=5.0)           # the value, or None after 5 seconds

Preemption and local SGD exchange short messages in it. Under Horovod, a value has a code, which
proves that its writer knows the job's token. It is valid for its key and this server, which has
chosen a nonce; `horovodrun` has a server without one. The implementation over TensorFlow's
coordination service is `tfdist.upstream.tf_coordination.CoordinationServiceStore`.
"""

from __future__ import annotations

import hmac
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Protocol

from tfdist.coordination.seal import proof

#: The scope of the store in the server of Horovod's rendezvous, and the key of the server's nonce.
SCOPE, NONCE_KEY = "tfdist", "nonce"

_REQUEST_SECONDS = 5.0
# Between two reads of a key that is not there yet, at first and in the end.
_FIRST_POLL_SECONDS, _POLL_SECONDS = 0.02, 0.5
# The store is a task of the job: requests to it must not go through a proxy.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class KeyValueStore(Protocol):
    """A store of short strings, shared by the training tasks of a job."""

    def put(self, key: str, value: str) -> None:
        """Stores `value`. A key is written once, or again with the same value."""

    def get(self, key: str, seconds: float) -> str | None:
        """Waits up to `seconds` for the key; returns its value, or None if it is not set."""


class RendezvousStore:
    """The key-value store of Horovod's rendezvous server, over HTTP.

    Args:
      host: where rank 0, or the launcher, serves the rendezvous.
      port: the port there.
      token: the job's token.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{port}/{SCOPE}"
        self._token = token

    def put(self, key: str, value: str) -> None:
        data = sealed(value, self._token, self._nonce(), key)
        request = urllib.request.Request(f"{self._url}/{key}", data, method="PUT")
        _opener.open(request, timeout=_REQUEST_SECONDS).close()

    def get(self, key: str, seconds: float) -> str | None:
        deadline = time.monotonic() + seconds
        pause = _FIRST_POLL_SECONDS
        while True:
            stored = self._read(key)
            # A value of a stranger counts as none.
            if stored is not None:
                value = unsealed(stored, self._token, self._nonce(), key)
                if value is not None:
                    return value
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            # The server has no request that waits for a key.
            time.sleep(min(pause, left))
            pause = min(2 * pause, _POLL_SECONDS)

    def _nonce(self) -> str:
        return (self._read(NONCE_KEY) or b"").decode("ascii", "replace")

    def _read(self, key: str) -> bytes | None:
        try:
            with _opener.open(f"{self._url}/{key}", timeout=_REQUEST_SECONDS) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
        return None


def sealed(value: str, token: str, nonce: str, key: str) -> bytes:
    """A value and its code, as they are stored."""
    return proof(token, f"{key} {value}", nonce) + b" " + value.encode()


def unsealed(stored: bytes, token: str, nonce: str, key: str) -> str | None:
    """The value; None if its code is wrong."""
    value = stored.partition(b" ")[2].decode(errors="replace")
    return value if hmac.compare_digest(stored, sealed(value, token, nonce, key)) else None
