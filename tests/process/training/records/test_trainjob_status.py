"""The status of a TrainJob, as an HTTPS server receives it that stands for Kubeflow Trainer."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import PROGRAM, Tasks, directories, run_by_hand
from tfdist.coordination.liveness.activity import Activity
from tfdist.training.records import trainjob_status

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(200)]


@dataclass
class Controller:
    """What the server was sent, and the environment of the pods."""

    environ: dict[str, str]
    sent: list[dict[str, Any]] = field(default_factory=list)
    code: int = 200


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    token, certificate, key = (tmp_path / name for name in ("token", "ca.crt", "key"))
    token.write_text("secret\n")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", str(key), "-out", str(certificate), "-subj", "/CN=trainer"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Authorization"] == "Bearer secret"
            content = self.rfile.read(int(self.headers["Content-Length"]))
            found.sent.append(json.loads(content)["trainerStatus"])
            self.send_response(found.code)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        environ = {
            trainjob_status.URL_VARIABLE: f"https://127.0.0.1:{server.server_port}/status",
            trainjob_status.CERTIFICATE_VARIABLE: str(certificate),
            trainjob_status.TOKEN_VARIABLE: str(token),
        }
        found = Controller(environ)
        threading.Thread(target=server.serve_forever).start()
        yield found
        server.shutdown()


def test_the_chief_reports_its_progress(controller: Controller, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tfdist", "run", "--workers=2", PROGRAM, "--rest=0.4"]
    command += ["--epochs=4", *directories(tmp_path)]
    job: Tasks = {"tfdist": (command, controller.environ)}
    ended = run_by_hand(tmp_path / "logs", job, deadline=150)["tfdist"]
    assert ended.code == 0, ended.output
    first, *_, last = controller.sent
    assert "progressPercentage" not in first, "it is not known before the first epoch"
    found = [each["progressPercentage"] for each in controller.sent if "progressPercentage" in each]
    assert found == sorted(found) and found[-1] == 100
    assert last["estimatedRemainingSeconds"] == 0
    assert {"loss", "epoch", "seen"} <= {each["name"] for each in last["metrics"]}
    assert {each["value"] for each in last["metrics"] if each["name"] == "epoch"} == {"4"}
    times = [each["lastUpdatedTime"] for each in controller.sent]
    assert times == sorted(times) and len(times) <= 8


def test_the_seconds_that_are_left(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    record, now = Activity("worker:0"), [100.0]
    monkeypatch.setattr("tfdist.training.records.trainjob_status.time.monotonic", lambda: now[0])
    reports = trainjob_status._Reports(controller.environ, record)
    record.describe(epoch=1, epochs=3, resumed=30, goal=100, loss=0.5)
    record.made(10)
    reports.send()
    now[0] += 5.0
    record.made(20)
    reports.send()
    reports.send()
    one, other = controller.sent
    assert (one["progressPercentage"], other["progressPercentage"]) == (40, 50)
    assert "estimatedRemainingSeconds" not in one and other["estimatedRemainingSeconds"] == 25
    assert other["metrics"] == [{"name": "epoch", "value": "1"}, {"name": "loss", "value": "0.5"}]


def test_a_failure_is_said_once(controller: Controller, capsys: pytest.CaptureFixture[str]) -> None:
    record = Activity("worker:0")
    reports = trainjob_status._Reports(controller.environ, record)
    controller.code = 403
    for _ in range(2):
        reports.send()
    assert len(controller.sent) == 2, "it is tried again"
    Path(controller.environ[trainjob_status.TOKEN_VARIABLE]).unlink()
    reports.send()
    assert capsys.readouterr().err.count("did not take the status of the TrainJob") == 1
