"""`--profile_steps`: one session with a profile of each task."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tests.support.processes import directories, run_by_hand
from tfdist.errors import UsageError
from tfdist.flags import JobFlags

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(240)]


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


@pytest.mark.parametrize(
    ("strategy", "flags", "tasks"),
    [
        ("multi_worker_mirrored", ["--workers=2"], ["worker_0", "worker_1"]),
        ("horovod", ["--workers=2"], ["worker_0", "worker_1"]),
        (
            "parameter_server",
            ["--workers=2", "--ps=1", "--chief"],
            ["chief_0", "ps_0", "worker_0", "worker_1"],
        ),
    ],
)
def test_all_tasks_are_profiled_at_the_same_steps(
    strategy: str, flags: list[str], tasks: list[str], tmp_path: Path
) -> None:
    (tmp_path / "result").mkdir()
    command = [sys.executable, "-m", "tfdist", "run", f"--strategy={strategy}", *flags]
    command += ["--profile_steps=4:8", "-m", "tfdist.trial.job", *directories(tmp_path)]
    ended = run_by_hand(tmp_path, {"tfdist": (command, {})}, deadline=200)["tfdist"]
    assert ended.code == 0, ended.output
    assert ended.output.count("tfdist: profiled the steps 4 to 8: ") == 1
    session = tmp_path / "output" / "logs" / "train" / "plugins" / "profile" / "steps_4_8"
    found = sorted(path.name for path in session.iterdir())
    assert found == [f"{task}.xplane.pb" for task in tasks]
    for task in tasks:
        names = events(session / f"{task}.xplane.pb")
        assert names, task
        if strategy != "parameter_server":
            assert names.count("train") == 4, (task, sorted(set(names)))


def test_a_training_without_these_steps_says_so(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    command = [sys.executable, "-m", "tfdist", "run", "--profile_steps=100:110"]
    command += ["-m", "tfdist.trial.job", *directories(tmp_path)]
    ended = run_by_hand(tmp_path, {"tfdist": (command, {})}, deadline=200)["tfdist"]
    assert ended.code == 0, ended.output
    assert "--profile_steps: this training has made none of the steps 100 to 110" in ended.output


@pytest.mark.parametrize("text", ["100", "110:100", "5:5", "-1:4", "a:b", "1:2:3"])
def test_other_texts_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError, match="two numbers of updates from 0") as raised:
        JobFlags.of(profile_steps=text)
    assert (raised.value.field, raised.value.received) == ("--profile_steps", text)
