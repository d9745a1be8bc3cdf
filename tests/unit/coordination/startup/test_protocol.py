"""The messages of the startup barrier, and lines that are not valid messages."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.startup import PS, W1, hello
from tfdist.cluster import Cluster
from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.protocol import (
    LIMIT,
    Description,
    OtherCluster,
    Reach,
    Report,
    Status,
    Verdict,
    decode,
    encode,
)

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]


CLUSTER = Cluster(worker=("a:1", "b:1"), ps=("c:1",))
HELLO = hello(CLUSTER, W1)
DESCRIPTION = Description(CLUSTER)
REPORT = Report({PS: Reach(protocol.UNREACHABLE, "no route to host")}, complete=True)
VERDICT = Verdict("worker:1 → ps:0", ("  a  b", "  c"))


@pytest.mark.parametrize(
    "message", [HELLO, DESCRIPTION, REPORT, Report(gives_up=True), Status("ps:0 → a"), VERDICT]
)
def test_a_message_is_one_line_and_can_be_decoded(message: protocol.Message) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line, CLUSTER) == message


def changed(message: protocol.Message, **changes: Any) -> bytes:
    return json.dumps({**json.loads(encode(message)), **changes}).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        encode(HELLO)[:-1],
        b"[" * 200_000 + b"\n",
        b"9" * 10_000 + b"\n",
        changed(HELLO, protocol="tfdist/1"),
        changed(HELLO, kind="Found"),
        changed(HELLO, kind=["Hello"]),
        changed(HELLO, task="evaluator:0"),
        changed(HELLO, task="worker:-1"),
        changed(HELLO, task="worker:1\n"),
        changed(HELLO, task=1),
        changed(HELLO, task="worker:2"),
        changed(HELLO, host="\x1b[2J"),
        changed(HELLO, host="h" * 5000),
        changed(HELLO, pid="7"),
        changed(HELLO, pid=True),
        changed(HELLO, cluster={"worker": ["a:1", "b:1"]}),
        changed(HELLO, report_port=1 << 16),
        changed(DESCRIPTION, cluster={"worker": ["no port"]}),
        changed(DESCRIPTION, cluster={"evaluator": ["a:1"]}),
        changed(DESCRIPTION, cluster=[]),
        changed(DESCRIPTION, cluster="{"),
        changed(HELLO, versions=["python"]),
        changed(HELLO, versions={"python": 3}),
        changed(HELLO, strategy="s" * LIMIT),
        changed(REPORT, reach={"worker:0": "refused"}),
        changed(REPORT, reach=[["worker:0", "refused"]]),
        changed(Status(""), waiting=["worker:0"]),
        changed(VERDICT, details="a line"),
        changed(VERDICT, details=["\x1b[2J"]),
        changed(Verdict(""), text="two\nlines"),
        changed(Verdict(""), text="x" * 5000),
    ],
)
def test_invalid_lines_are_not_messages(line: bytes) -> None:
    assert decode(line, CLUSTER) is None


def test_a_hello_of_another_cluster_is_known_as_such() -> None:
    assert decode(encode(HELLO), Cluster(worker=("a:1",))) == OtherCluster()
    assert decode(encode(HELLO)) == OtherCluster()


@settings(deadline=None)
@given(st.binary(), st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_decoding_never_raises(line: bytes, value: Any) -> None:
    assert decode(line) is None
    assert decode(line + b"\n") is None
    for name in json.loads(encode(HELLO)):
        decode(changed(HELLO, **{name: value}), CLUSTER)
    for name in json.loads(encode(REPORT)):
        decode(changed(REPORT, **{name: value}))


def test_the_versions_include_the_packages_of_the_strategy() -> None:
    assert set(protocol.versions(["horovod"])) - {"horovod"} == set(protocol.versions())
    assert protocol.versions()["python"] == ".".join(map(str, sys.version_info[:2]))


def test_the_versions_include_the_content_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "träin\n.py"
    described = []
    for text in ("1", "2"):
        script.write_text(text)
        described.append(protocol.versions(script=str(script)))
        assert decode(encode(dataclasses.replace(HELLO, versions=described[-1])), CLUSTER)
    assert [found["the script 'tr\\xe4in\\n.py'"].split()[0] for found in described] == ["1"] * 2
    assert described[0] != described[1]
    assert protocol.versions(script="-c") == protocol.versions()
