"""The server of Horovod's rendezvous accepts what ranks need, from them, and nothing else."""

from __future__ import annotations

import contextlib
import http.client
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.coordination import socket_owner
from tfdist.coordination.socket_owner import is_of_another_user
from tfdist.coordination.stores import rendezvous_server
from tfdist.coordination.stores.kv_store import RendezvousStore
from tfdist.coordination.stores.rendezvous_server import Store, serve_store

pytestmark = pytest.mark.stacks("newest")

SIZES = {"global": 2, "local_10.0.0.1": 1, "cross_0": 2}
TOKEN = "token"


@pytest.fixture
def port() -> Iterator[int]:
    with serve_store("127.0.0.1", 0, SIZES, TOKEN) as port:
        yield port


def request(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_the_addresses_of_all_ranks_stay(port: int) -> None:
    assert request(port, "GET", "/global/0")[0] == 404
    for rank in "01":
        assert request(port, "PUT", f"/global/{rank}", b"address")[0] == 200
    for rank in "01":
        assert request(port, "DELETE", f"/global/{rank}")[0] == 200
        assert request(port, "GET", f"/global/{rank}") == (200, b"address")
    assert request(port, "PUT", "/global/0", b"another address")[0] == 409


def test_a_port_can_be_reused_but_not_served_twice_at_once(port: int) -> None:
    with pytest.raises(OSError, match="in use"), serve_store("127.0.0.1", port, SIZES, TOKEN):
        pass
    with serve_store("127.0.0.1", 0, SIZES, TOKEN) as other:
        pass
    with serve_store("127.0.0.1", other, SIZES, TOKEN) as again:
        assert again == other


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/global/rank_1", 200),
        ("/cross_0/0", 200),
        ("/global_process_set_hash_512d4d557435ff2d/1", 200),
        ("/global/2", 403),
        ("/global/rank_2", 403),
        ("/global/abc", 403),
        ("/local_10.0.0.2/0", 403),
        ("/workers/0", 403),
        ("/global_process_set_hash_/0", 403),
        ("/global/0/1", 400),
        ("//", 400),
        ("/global", 400),
        ("/tfdist/preempted", 403),
        ("/tfdist/nonce", 403),
    ],
)
def test_ranks_have_their_scopes_and_keys(port: int, path: str, status: int) -> None:
    assert request(port, "PUT", path, b"x")[0] == status


def test_a_key_is_written_once(port: int) -> None:
    for value, status in ((b"a", 200), (b"a", 200), (b"b", 409)):
        assert request(port, "PUT", "/global/0", value)[0] == status
    assert request(port, "GET", "/global/0") == (200, b"a")


def test_other_requests_are_refused(port: int) -> None:
    assert request(port, "HEAD", "/global/0")[0] == 501
    assert request(port, "POST", "/global/0", b"x")[0] == 501
    for length in ("", "-1", "1e3", "9" * 30, str(2 << 20)):
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            client.sendall(f"PUT /global/0 HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())
            status = 413 if length == str(2 << 20) else 411
            assert client.recv(64).split()[1] == str(status).encode()
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(b"PUT /global/0 HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(64).split()[1] == b"400"
    assert request(port, "GET", "/global/0")[0] == 404


def test_the_memory_of_the_server_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_server, "_ALL_BYTES", 100)
    store = Store({"global": 9})
    statuses = [store.put("global", str(rank), b"x" * 30).value for rank in range(5)]
    assert statuses == [200, 200, 200, 507, 507]


def test_a_peer_that_resets_its_connection_prints_nothing(
    port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    for words in (b"", b"GET /glob", b"PUT /global/0 HTTP/1.1\r\nContent-Length: 9\r\n\r\na"):
        client = socket.create_connection(("127.0.0.1", port), 10)
        client.sendall(words)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert request(port, "GET", "/global/0")[0] == 404
    assert capfd.readouterr() == ("", "")


def test_the_store_of_the_job_needs_its_token(port: int) -> None:
    store, stranger = (RendezvousStore("127.0.0.1", port, token) for token in (TOKEN, "a guess"))
    with pytest.raises(OSError, match="403"):
        stranger.put("worker:0", "step 3")
    assert store.get("worker:0", seconds=0.0) is None
    store.put("worker:0", "step 40")
    assert store.get("worker:0", seconds=0.0) == "step 40"
    assert stranger.get("worker:0", seconds=0.0) is None
    _, value = request(port, "GET", "/tfdist/worker:0")
    with serve_store("127.0.0.1", 0, SIZES, TOKEN) as other:
        # What an earlier server has stored is not accepted by a new one.
        assert request(other, "PUT", "/tfdist/worker:0", value)[0] == 403


class Attack:
    """Unpickling it creates a file: CVE-2024-10190 and CVE-2026-31234 of Horovod's own stores."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("path", ["/global/0", "/workers/0", "/runfunc/func", "/tfdist/a"])
def test_nothing_is_unpickled(port: int, path: str, tmp_path: Path) -> None:
    attack = pickle.dumps(Attack(tmp_path / "attacked"))
    request(port, "PUT", path, attack)
    request(port, "GET", path)
    with contextlib.suppress(OSError):
        RendezvousStore("127.0.0.1", port, TOKEN).get(path.rpartition("/")[2], seconds=0.0)
    assert not (tmp_path / "attacked").exists()
    pickle.loads(attack)
    assert (tmp_path / "attacked").exists()


@pytest.fixture(params=["asked", "listed"])
def sockets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether Linux is asked for one socket, or has no such protocol and lists all of them."""
    if request.param == "listed":
        monkeypatch.setattr(socket_owner, "_NETLINK_SOCK_DIAG", 31)


@pytest.mark.usefixtures("sockets")
@pytest.mark.skipif(os.getuid() != 0, reason="only root may start a process of another user")
def test_another_user_of_this_machine_is_not_answered(port: int) -> None:
    code = f"""
import encodings.idna, http.client, os
os.setuid(65534)
connection = http.client.HTTPConnection("127.0.0.1", {port}, timeout=10)
connection.request("PUT", "/global/0", b"x")
print(connection.getresponse().status)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    # How far the client has come when the server closes the connection.
    ends = ("closed connection", "reset by peer", "Broken pipe")
    assert any(end in done.stderr for end in ends), done.stderr
    assert request(port, "GET", "/global/0")[0] == 404


@pytest.mark.usefixtures("sockets")
@pytest.mark.parametrize(
    ("listens", "connects"), [("127.0.0.1", "127.0.0.1"), ("::", "::1"), ("::", "127.0.0.1")]
)
def test_the_other_end_of_a_connection_is_found(listens: str, connects: str) -> None:
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    dual = family == socket.AF_INET6
    with socket.create_server((listens, 0), family=family, dualstack_ipv6=dual) as server:
        with socket.create_connection((connects, server.getsockname()[1]), 10) as client:
            accepted, address = server.accept()
            with accepted:
                assert not is_of_another_user(address[:2], accepted.getsockname()[:2])
                ends = address[:2], accepted.getsockname()[:2]
                client.close()
                assert is_of_another_user(*ends)
        # No socket has this port.
        assert is_of_another_user((connects, 1), (connects, server.getsockname()[1]))
        assert not is_of_another_user(("192.0.2.1", 1), (connects, 2))


@settings(deadline=None)
@given(st.text(), st.text(), st.binary())
def test_requests_never_raise(scope: str, key: str, value: bytes) -> None:
    store = Store(SIZES, TOKEN)
    assert store.put(scope, key, value) in (200, 403)
    found = store.get(scope, key)
    assert isinstance(found, bytes) or found == 404
