"""Runs each command of the documentation, with local addresses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, Command, commands, readme_script
from tests.support.processes import Tasks, run_by_hand
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(240)]


def without_output_dir(command: Command) -> str:
    """The command without its output directory, to recognize duplicates."""
    return " ".join(word for word in command.words if not word.startswith("--output_dir"))


# Tests of these examples run their commands.
ELSEWHERE = {
    "examples/fashion_mnist_mirrored.py",  # tests/cluster/test_fashion_mnist.py
    "examples/cifar10_main.py",  # tests/cluster/test_digits.py
    "examples/cifar10_estimator_main.py",  # tests/cluster/test_estimator_examples.py
}
_HOSTS = re.compile("--host(s|file)=")
# tests/cluster/test_readme_script.py runs this script with these flags.
_PLAIN = re.compile(r"tfdist run( --(strategy|workers|ps|chief)(=\S+)?)+ train\.py")
COMMANDS = {
    without_output_dir(command): command
    for page in PAGES
    for command in commands(page)
    # tests/cluster/test_tutorial.py runs them in the order of the page.
    if page.name != "tutorial.md"
    and not ELSEWHERE & {*command.words}
    and not _PLAIN.fullmatch(without_output_dir(command))
    # tests/cluster/test_hosts.py has hosts.
    and not (command.words[1] == "run" and any(map(_HOSTS.match, command.words)))
    # tests/process/commands and tests/cluster/test_hangs.py have tests of these.
    and command.words[1] not in ("env", "status", "test")
    # tests/process/training/records/test_prometheus.py has a port that is free.
    and not any(word.startswith("--prometheus_port") for word in command.words)
    # tests/cluster/test_trackers.py has trackers without a network.
    and not any(word.startswith("--tracker") for word in command.words)
    # tests/unit/data/test_verify.py has records.
    and command.words[1:3] != ("data", "verify")
}

_ADDRESS = re.compile(r"10\.0\.0\.\d+:2222")
_TASK_FLAG = re.compile(r"--(worker|ps|chief)_hosts=(.*)")


def directory_of(path: Path) -> Path:
    """A directory with all files that the commands use."""
    (path / "train.py").write_text(readme_script())
    (path / "examples").symlink_to(ROOT / "examples")
    hosts = path / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:2\n")
    hosts.chmod(0o755)
    return path


def adapted(command: Command, path: Path, addresses: Mapping[str, str]) -> list[str]:
    """The words of a command, with local addresses and with paths below `path`."""
    words = []
    for word in command.words:
        for address, local in addresses.items():
            word = word.replace(address, local)
        word = word.replace("/tmp/", f"{path}/").replace("/shared/", f"{path}/")
        # A job on one machine needs no fixed port.
        if not word.startswith("--port="):
            words.append(word)
    if words[:2] == ["tfdist", "check"]:
        words.append("--startup_timeout=3")
    if "train.py" in words and not any(word.startswith("--output_dir") for word in words):
        words.append(f"--output_dir={path / 'run'}")
    if "examples/recommender.py" in words:
        words.append("--steps=20")
    return words


def tasks_of(words: list[str]) -> Tasks:
    """The processes to start; if the command starts one task, the processes of all tasks."""
    words = [sys.executable, *(["-m", "tfdist"] if words[0] == "tfdist" else []), *words[1:]]
    if "--task_index=0" not in words or "check" in words:
        return {"command": (words, {})}
    tasks: Tasks = {}
    for match in filter(None, map(_TASK_FLAG.fullmatch, words)):
        for index in range(len(match[2].split(","))):
            replaced = {
                "--job_name=worker": f"--job_name={match[1]}",
                "--task_index=0": f"--task_index={index}",
            }
            tasks[f"{match[1]}:{index}"] = ([replaced.get(word, word) for word in words], {})
    return tasks


def test_the_documentation_contains_commands() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_command_works(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = COMMANDS[name]
    monkeypatch.chdir(directory_of(tmp_path))
    if command.words[1] in ("plot", "report"):
        (tmp_path / "run1").mkdir()
        record = {"epoch": 1, "step": 10, "loss": 0.5, "examples_per_second": 100.0}
        (tmp_path / "run1" / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    on_page = sorted(set(_ADDRESS.findall(name)))
    with hold_ports(len(on_page)) as ports:
        addresses = {
            address: f"127.0.0.1:{port}" for address, port in zip(on_page, ports, strict=True)
        }
        words = adapted(command, tmp_path, addresses)
        ended = run_by_hand(tmp_path / "logs", tasks_of(words), deadline=180)
    for task, end in ended.items():
        expected = 1 if "tfdist: error" in " ".join(command.output) else 0
        assert end.code == expected, f"{task}: {end.output}"
        for line in command.output:
            for address, local in addresses.items():
                line = line.replace(address, local)
            assert line in end.output
