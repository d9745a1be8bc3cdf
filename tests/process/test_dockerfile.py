"""The Dockerfile: what a linter says of it, and that it copies what its commands need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

pytestmark = pytest.mark.stacks("newest")

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def lint(text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("hadolint")), *flags, "-"]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_linter_finds_nothing() -> None:
    ended = lint(DOCKERFILE)
    assert (ended.returncode, ended.stdout) == (0, "")


@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        ("python:3.13-slim-bookworm", "python", "DL3006"),
        ("WORKDIR /opt/tfdist", "WORKDIR opt", "DL3000"),
        (" --no-cache-dir", "", "DL3042"),
        ('ENTRYPOINT ["python", ', 'ENTRYPOINT ["python" ', "DL3025"),
    ],
)
def test_the_linter_finds_a_mistake(good: str, bad: str, rule: str) -> None:
    assert DOCKERFILE.count(good) == 1
    ended = lint(DOCKERFILE.replace(good, bad))
    assert ended.returncode == 1
    assert rule in ended.stdout + ended.stderr


def test_what_it_copies_is_there() -> None:
    lines = DOCKERFILE.splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    not_ignored = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines()[1:-1]}
    assert {*copied} == not_ignored
    assert all((ROOT / name).exists() for name in copied)
    (entry,) = [line for line in lines if line.startswith("ENTRYPOINT")]
    _, script = json.loads(entry.removeprefix("ENTRYPOINT "))
    assert Path(script).parts[0] in copied
    assert (ROOT / script).is_file()
