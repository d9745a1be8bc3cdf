"""Other programs: clients of the startup barrier are ignored; listeners at an address are named."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import pytest

from tests.support.startup import (
    CLUSTER,
    SETTINGS,
    W0,
    W1,
    W2,
    FakeTask,
    Participants,
    config,
    dial,
    hello,
    outcomes_of,
    sends,
    server,
    workers,
)
from tfdist.cluster import Cluster
from tfdist.coordination.startup.origins import Origins
from tfdist.coordination.startup.protocol import (
    LIMIT,
    Challenge,
    Hello,
    OtherCluster,
    Report,
    Verdict,
    encode,
)
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"\x00\xff" * 1000,
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS,
        b"{" + b"x" * (3 * LIMIT),
        b"\x80\x04cos\nsystem\n(S'false'\ntR.",
        encode(Report(complete=True)),
        encode(Verdict("from another program")),
    ],
)
@pytest.mark.parametrize("stays", [True, False])
def test_other_clients_are_ignored(three: Cluster, words: bytes, stays: bool) -> None:
    participants = Participants()
    participants.start(config(three, W0))
    participants.start(config(three, W1))
    connections = [dial(three.address(W0)) for _ in range(20)]
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.sendall(words)
        if not stays:
            connection.close()
    participants.start(config(three, W2))
    assert [outcome.verdict for outcome in participants.outcomes()] == [""] * 3
    for connection in connections:
        connection.close()


def test_a_silent_client_is_disconnected(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdist.coordination.startup.participant._HANDSHAKE_SECONDS", 0.2)
    participants = Participants()
    participants.start(config(three, W0))
    with dial(three.address(W0)) as connection:
        assert connection.recv(1) == b""
    participants.start(config(three, W1))
    participants.start(config(three, W2))
    assert [outcome.verdict for outcome in participants.outcomes()] == [""] * 3


def test_a_slow_client_does_not_delay_the_barrier(three: Cluster) -> None:
    participants = Participants()
    participants.start(config(three, W0))
    done = threading.Event()
    connection = dial(three.address(W0))

    def drip() -> None:
        with contextlib.suppress(OSError), connection:
            while not done.wait(0.05):
                connection.sendall(b"{")

    dripping = threading.Thread(target=drip)
    dripping.start()
    participants.start(config(three, W1))
    participants.start(config(three, W2))
    assert [outcome.verdict for outcome in participants.outcomes()] == [""] * 3
    done.set()
    dripping.join()


def test_an_invalid_message_closes_only_its_connection(three: Cluster) -> None:
    participants = Participants()
    participants.start(config(three, W0))
    fake = FakeTask(three, W0, hello(three, W1))
    fake.socket.sendall(b"no message\n")
    while fake.file.readline():
        pass
    participants.start(config(three, W1))
    participants.start(config(three, W2))
    assert [outcome.verdict for outcome in participants.outcomes()] == [""] * 3


def has_ended(received: BinaryIO) -> bool:
    """Whether the other side has closed the connection, perhaps before it has read everything."""
    try:
        return received.readline() == b""
    except ConnectionResetError:
        return True


def test_a_stranger_learns_nothing(three: Cluster) -> None:
    """Not even with what another task has sent."""
    participants = Participants()
    participants.start(config(three, W0, token="a"))
    with dial(three.address(W0)) as connection, connection.makefile("rb") as received:
        connection.sendall(encode(Challenge("0" * 32)))
        challenge, proof = received.readline(), received.readline()
        connection.sendall(proof)
        assert has_ended(received)
    assert set(json.loads(challenge)) == {"protocol", "kind", "nonce"}
    assert set(json.loads(proof.partition(b" ")[2])) == {"protocol", "kind"}

    task = FakeTask(three, W0, hello(three, W1), token="a")
    task.send(Report(complete=True))
    for replayed in ([], task.sent):
        with dial(three.address(W0)) as connection, connection.makefile("rb") as received:
            connection.sendall(task.challenge)
            assert received.readline() != challenge
            assert received.readline() != proof
            connection.sendall(b"".join([*replayed, b"\n"]))
            assert has_ended(received)
    task.close()
    participants.start(config(three, W1, token="a"))
    participants.start(config(three, W2, token="a"))
    assert [outcome.verdict for outcome in participants.outcomes()] == [""] * 3


@pytest.mark.parametrize(
    ("origin", "admitted"),
    [
        ("10.0.0.2", True),
        ("::ffff:10.0.0.2", True),
        ("10.0.0.3", True),
        ("10.0.0.9", False),
        ("127.0.0.1", False),
        ("fe80::1%eth0", False),
    ],
)
@pytest.mark.parametrize("message", [hello(CLUSTER, W1), OtherCluster()])
def test_without_a_token_only_addresses_of_the_cluster_are_listened_to(
    origin: str, admitted: bool, message: Hello | OtherCluster
) -> None:
    lines: list[str] = []
    with ThreadPoolExecutor() as resolver:
        origins = Origins(CLUSTER, resolver, lines.append)
        for _ in range(2):
            assert asyncio.run(origins.admits((origin, 1, 0, 0), message)) is admitted
    assert [line.split(",")[0] for line in lines] == (
        [] if admitted else [f"ignoring a task at {origin}"]
    )


def test_two_jobs_with_tokens_do_not_disturb_each_other() -> None:
    """The second job has the address of the first job's worker 1."""
    with hold_ports(3) as ports:
        one = workers(ports[:2])
        other = Cluster(worker=(f"127.0.0.1:{ports[2]}", one.address(W1)))
        participants = Participants()
        participants.start(config(other, W0, token="b", timeout=3.0))
        participants.start(config(one, W1, token="a"))
        time.sleep(1.0)
        participants.start(config(one, W0, token="a"))
        stray, *rest = participants.outcomes()
    assert [outcome.verdict for outcome in rest] == ["", ""]
    assert stray.verdict


def test_another_job_at_an_address_is_named(three: Cluster) -> None:
    found, other = outcomes_of(
        config(three, W0, token="a", timeout=2.0), config(three, W1, token="b", timeout=4.0)
    )
    assert (
        f"worker:1 is not at its address {three.address(W1)}: another job answers (its "
        "TFDIST_JOB_TOKEN differs)."
    ) in found.verdict
    # It waits longer, so that worker:0 may have exited.
    assert other.verdict.startswith("worker:0 ")


def test_a_check_and_a_training_do_not_pass_together(three: Cluster) -> None:
    first, second = outcomes_of(
        config(three, W0, timeout=2.0), config(three, W1, timeout=3.0, purpose="check")
    )
    assert "worker:1 is not at its address" in first.verdict
    assert "`tfdist check`" in first.verdict
    assert second.verdict


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "another program answers (SSH-2.0-OpenSSH_9.2p1)"),
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "another program answers (HTTP/1.0 400 Bad Request)"),
        (b"\xff\x1b[2J" * 20, "another program answers"),
        (b"{}\n", "another program answers"),
        (b"{" + b"x" * (2 * LIMIT), "another program answers (an endless line)"),
        (b"{", "connected, but nothing answers"),
        (b"", "connected, but nothing answers"),
        (SETTINGS, "a TensorFlow server is running"),
    ],
)
def test_another_listener_at_an_address_is_named(
    three: Cluster, words: bytes, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdist.coordination.startup.participant._HANDSHAKE_SECONDS", 0.5)
    with server(three.address(W1), sends(words)):
        (outcome,) = outcomes_of(config(three, W0, timeout=1.5))
    assert f"worker:0 → worker:1 {three.address(W1)} {answer}" in outcome.details
    assert "worker:1 is" in outcome.verdict


def test_a_host_name_that_does_not_resolve_is_named() -> None:
    with hold_ports(1) as (port,):
        cluster = Cluster(worker=(f"127.0.0.1:{port}", "no-such-host.invalid:1"))
        (outcome,) = outcomes_of(config(cluster, W0, timeout=3.0))
    assert outcome.verdict == (
        "worker:1 has a host name that does not resolve: no-such-host.invalid:1."
    )
