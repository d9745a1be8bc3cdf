"""Who is told what a task does."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.coordination.liveness.activity import Activity
from tfdist.coordination.liveness.endpoint import Endpoint, ask
from tfdist.coordination.liveness.task_report import TaskReport
from tfdist.coordination.seal import new_nonce

pytestmark = pytest.mark.stacks("newest")

HOST = "127.0.0.1"


def report() -> TaskReport:
    return TaskReport(Activity("worker:1", "job").record, "train.py:40 in slow", "Thread …\n")


@pytest.fixture
def told() -> list[TaskReport]:
    return []


@pytest.fixture
def endpoint(told: list[TaskReport]) -> Endpoint:
    def tell() -> TaskReport:
        told.append(report())
        return told[-1]

    return Endpoint("secret", [], tell)


def test_a_task_with_the_token_is_answered(endpoint: Endpoint, told: list[TaskReport]) -> None:
    assert ask(HOST, endpoint.port, "secret") == told[0]


@pytest.mark.parametrize("token", ["", "other"])
def test_a_task_without_the_token_is_not(
    endpoint: Endpoint, told: list[TaskReport], token: str
) -> None:
    with pytest.raises(ValueError, match="does not know the token of this job"):
        ask(HOST, endpoint.port, token)
    assert told == []


@pytest.mark.parametrize(
    "data", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b"a" * 32 + b"\nx report\n"]
)
def test_a_stranger_is_told_nothing(
    endpoint: Endpoint, told: list[TaskReport], data: bytes
) -> None:
    with socket.create_connection((HOST, endpoint.port)) as stranger:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: stranger.recv(1 << 16), b""))
    # At most a nonce, and a proof that is worth nothing elsewhere.
    assert b"{" not in received and told == []
    assert ask(HOST, endpoint.port, "secret") == told[0]


def test_strangers_that_say_nothing_do_not_start_threads_without_end(endpoint: Endpoint) -> None:
    strangers = [socket.create_connection((HOST, endpoint.port)) for _ in range(50)]

    def answering() -> int:
        return sum(thread.name == "report" for thread in threading.enumerate())

    deadline = time.monotonic() + 4
    while answering() < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    # More would have started in this time.
    time.sleep(0.2)
    assert answering() == 8
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize(("hosts", "is_answered"), [([HOST], True), (["192.0.2.1"], False)])
def test_without_a_token_the_machines_of_the_cluster_are_answered(
    hosts: list[str], is_answered: bool
) -> None:
    port = Endpoint("", hosts, report).port
    if is_answered:
        assert ask(HOST, port, "").own_code == "train.py:40 in slow"
    else:
        with pytest.raises((OSError, ValueError)):
            ask(HOST, port, "")


def test_a_proof_of_another_connection_is_refused() -> None:
    """A stranger that listens in place of a task and repeats what the task has said."""
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(f"{new_nonce()}\n{'0' * 32} proof\n".encode())

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ValueError, match="does not know the token"):
            ask(HOST, port, "secret")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.data())
def test_any_bytes_are_a_report_or_a_value_error(data: st.DataObject) -> None:
    content = json.loads(report().encode())
    place = data.draw(st.sampled_from([content, content["record"]["state"]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)
    line = data.draw(st.sampled_from([json.dumps(content).encode(), b"[" * 100_000]) | st.binary())
    try:
        decoded = TaskReport.decode(line)
    except ValueError:
        return
    for text in (decoded.own_code, decoded.record.state.task, decoded.record.state.output):
        assert text.replace("\n", "").isprintable()
