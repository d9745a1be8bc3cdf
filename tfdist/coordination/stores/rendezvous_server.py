"""The key-value store over HTTP in which the ranks of Horovod find each other through Gloo.

    with serve_store("10.0.0.1", 2222, sizes={"global": 2}, token=token) as port:
        ...

It has the requests of `horovod.runner.http.http_server`, whose clients are in Horovod's C++ code
(`horovod/common/gloo/http_store.cc`) and cannot prove who they are. So it accepts only what they
need: their scopes and keys, each key once, and values of a bounded size. Another user of the same
machine is not answered. Nothing is unpickled.

The scope `tfdist` is the store of `tfdist.coordination.stores.kv_store`, whose values have a code.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tfdist.coordination.seal import new_nonce
from tfdist.coordination.socket_owner import is_of_another_user
from tfdist.coordination.stores.kv_store import NONCE_KEY, SCOPE, unsealed
from tfdist.errors import log

_REQUEST_SECONDS = 3.0
# A value has about 140 bytes for each rank, or 60 for each variable of a model.
_VALUE_BYTES, _VALUE_BYTES_PER_RANK = 1 << 20, 256
_ALL_BYTES = 256 << 20
_KEY_LENGTH = 255
# Horovod adds the second part for each set of processes.
_SCOPE = re.compile(r"(.+?)(_process_set_hash_[0-9a-f]{1,16})?")
_GLOO_KEY = re.compile(r"(?:rank_)?([0-9]{1,9})")
# The job waits for the server's shutdown, which takes up to this time.
_SHUTDOWN_POLL_SECONDS = 0.05


class Store:
    """What the server stores; each method returns the answer: a status, or a value.

    Args:
      sizes: the number of ranks of each of Gloo's scopes.
      token: the job's token.
    """

    def __init__(self, sizes: Mapping[str, int], token: str = "") -> None:
        self._sizes = sizes
        self._token = token
        self._nonce = new_nonce()
        self._values: dict[tuple[str, str], bytes] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        ranks = max(sizes.values(), default=1)
        self.value_bytes = max(_VALUE_BYTES, _VALUE_BYTES_PER_RANK * ranks)

    def get(self, scope: str, key: str) -> HTTPStatus | bytes:
        """A value, or `NOT_FOUND`."""
        if (scope, key) == (SCOPE, NONCE_KEY):
            return self._nonce.encode()
        return self._values.get((scope, key), HTTPStatus.NOT_FOUND)

    def put(self, scope: str, key: str, value: bytes) -> HTTPStatus:
        """Stores a value of at most `value_bytes` once."""
        if scope == SCOPE:
            if len(key) > _KEY_LENGTH or unsealed(value, self._token, self._nonce, key) is None:
                return HTTPStatus.FORBIDDEN
        elif not self._is_of_gloo(scope, key):
            return HTTPStatus.FORBIDDEN
        with self._lock:
            if (scope, key) in self._values:
                is_same = self._values[scope, key] == value
                return HTTPStatus.OK if is_same else HTTPStatus.CONFLICT
            if self._bytes + len(value) > _ALL_BYTES:
                return HTTPStatus.INSUFFICIENT_STORAGE
            self._bytes += len(value)
            self._values[scope, key] = value
        return HTTPStatus.OK

    def _is_of_gloo(self, scope: str, key: str) -> bool:
        base, number = _SCOPE.fullmatch(scope), _GLOO_KEY.fullmatch(key)
        if base is None or number is None:
            return False
        return int(number[1]) < self._sizes.get(scope, self._sizes.get(base[1], 0))


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:
        self._answer(self.server.store.get)

    def do_PUT(self) -> None:
        self._answer(self._put)

    def do_DELETE(self) -> None:
        # A rank has met the others. The values of a job are small enough to stay.
        self._answer(lambda *_: HTTPStatus.OK)

    def log_message(self, format: str, *_: Any) -> None:
        pass

    def _put(self, scope: str, key: str) -> HTTPStatus:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,18}", length):
            return HTTPStatus.LENGTH_REQUIRED
        if int(length) > self.server.store.value_bytes:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        value = self.rfile.read(int(length))
        if len(value) < int(length):
            return HTTPStatus.BAD_REQUEST
        return self.server.store.put(scope, key, value)

    def _answer(self, answer: Callable[[str, str], HTTPStatus | bytes]) -> None:
        """Sends what a function returns for the scope and the key of the request."""
        result: HTTPStatus | bytes = HTTPStatus.BAD_REQUEST
        match self.path.split("/"):
            case ["", scope, key] if scope and key:
                result = answer(scope, key)
        status, value = (HTTPStatus.OK, result) if isinstance(result, bytes) else (result, b"")
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], store: Store) -> None:
        self.store = store
        super().__init__(address, _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return not is_of_another_user(client_address, request.getsockname())

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        # The other side has closed the connection, or was silent.
        if not isinstance(error, OSError):
            log(f"the rendezvous could not answer {client_address[0]}: {error!r}")


@contextmanager
def serve_store(host: str, port: int, sizes: Mapping[str, int], token: str) -> Iterator[int]:
    """Serves a store on `host` while the block runs; yields the port.

    Args:
      host: the address to listen on.
      port: the port; 0 for any free one.
      sizes: the number of ranks of each of Gloo's scopes.
      token: the job's token.

    Raises:
      OSError: the port cannot be bound.
    """
    server = _Server((host, port), Store(sizes, token))
    thread = threading.Thread(
        target=server.serve_forever, args=[_SHUTDOWN_POLL_SECONDS], name="rendezvous", daemon=True
    )
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
