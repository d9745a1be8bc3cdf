"""`--profile_steps`: one session with a profile of each task."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tests.support.processes import PROGRAM, directories, run_by_hand
from tfdist.config.flags import JobFlags
from tfdist.errors import UsageError

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(240)]


def events(path: Path) -> list[str]:
    """The names of all events of a profile."""
    profile = xplane_pb2.XSpace()
    profile.ParseFromString(path.read_bytes())
    return [
        plane.event_metadata[event.metadata_id].name
        for plane in profile.planes
        for line in plane.lines
        for event in line.events
    ]


def profiles(tmp_path: Path, steps: str, flags: list[str], *script: str) -> dict[str, list[str]]:
    """Trains; by task, the names of all events."""
    (tmp_path / "result").mkdir()
    command = [sys.executable, "-m", "tfdist", "run", *flags, f"--profile_steps={steps}"]
    command += [*script, *directories(tmp_path)]
    ended = run_by_hand(tmp_path, {"tfdist": (command, {})}, deadline=200)["tfdist"]
    assert ended.code == 0, ended.output
    first, _, last = steps.partition(":")
    assert ended.output.count(f"tfdist: profiled the steps {first} to {last}: ") == 1
    logs = tmp_path / "output" / "logs" / "train"
    session = logs / "plugins" / "profile" / f"steps_{first}_{last}"
    return {path.name.removesuffix(".xplane.pb"): events(path) for path in session.iterdir()}


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_all_tasks_are_profiled_at_the_same_steps(strategy: str, tmp_path: Path) -> None:
    flags = [f"--strategy={strategy}", "--workers=2"]
    found = profiles(tmp_path, "4:8", flags, "-m", "tfdist.tools.selftest.script")
    assert set(found) == {"worker_0", "worker_1"}
    for task, names in found.items():
        assert names.count("train") == 4, (task, sorted(set(names)))


def test_tasks_that_serve_are_profiled_by_the_chief(tmp_path: Path) -> None:
    flags = ["--strategy=parameter_server", "--workers=2", "--ps=1", "--chief"]
    found = profiles(tmp_path, "50:350", flags, PROGRAM, "--examples=1500")
    assert set(found) == {"chief_0", "ps_0", "worker_0", "worker_1"}
    assert all(found.values()), {task: len(names) for task, names in found.items()}


def test_a_training_without_these_steps_says_so(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    command = [sys.executable, "-m", "tfdist", "run", "--profile_steps=100:110"]
    command += ["-m", "tfdist.tools.selftest.script", *directories(tmp_path)]
    ended = run_by_hand(tmp_path, {"tfdist": (command, {})}, deadline=200)["tfdist"]
    assert ended.code == 0, ended.output
    assert "--profile_steps: this training has made none of the steps 100 to 110" in ended.output


@pytest.mark.parametrize("text", ["100", "110:100", "5:5", "-1:4", "a:b", "1:2:3"])
def test_other_texts_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError, match="two numbers of updates from 0") as raised:
        JobFlags.of(profile_steps=text)
    assert (raised.value.field, raised.value.received) == ("--profile_steps", text)
