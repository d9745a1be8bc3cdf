"""The client of Horovod's key-value store, with a server like that of `horovodrun`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tfdist.coordination.stores.kv_store import KeyValueStore, RendezvousStore

pytestmark = pytest.mark.stacks("newest")


class Handler(BaseHTTPRequestHandler):
    values: dict[str, bytes]

    def do_PUT(self) -> None:
        self.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        value = self.values.get(self.path)
        self.send_response(404 if value is None else 200)
        self.end_headers()
        self.wfile.write(value or b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store() -> Iterator[KeyValueStore]:
    Handler.values = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield RendezvousStore("127.0.0.1", server.server_address[1], "token")
        server.shutdown()
        thread.join()


def test_a_stored_key_can_be_read(store: KeyValueStore) -> None:
    store.put("worker:1", "step 40")
    assert store.get("worker:1", seconds=0.0) == "step 40"


def test_reading_a_missing_key_waits(store: KeyValueStore) -> None:
    begin = time.monotonic()
    assert store.get("worker:1", seconds=0.2) is None
    assert time.monotonic() - begin >= 0.2
    late = threading.Timer(0.2, store.put, ["worker:1", "step 40"])
    late.start()
    assert store.get("worker:1", seconds=60.0) == "step 40"
    late.join()


def test_the_value_of_a_stranger_counts_as_none(store: KeyValueStore) -> None:
    store.put("worker:1", "step 40")
    sealed = Handler.values["/tfdist/worker:1"]
    for forged in (b"step 41", sealed.replace(b"40", b"41"), b"", b"\xff \xff"):
        Handler.values["/tfdist/worker:1"] = forged
        assert store.get("worker:1", seconds=0.0) is None
    Handler.values["/tfdist/worker:0"] = sealed
    assert store.get("worker:0", seconds=0.0) is None


def test_an_unreachable_server_is_an_error() -> None:
    gone = RendezvousStore("127.0.0.1", 1, "token")
    with pytest.raises(OSError, match="refused"):
        gone.get("worker:1", seconds=5.0)
