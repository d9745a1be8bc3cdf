"""Any text as the value of a flag is a value, or a usage error."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tfdist.cluster.environments.host_flags import from_flags
from tfdist.config import flags
from tfdist.errors import UsageError
from tfdist.tools.commands.arguments import (
    cluster_flags,
    job_flags,
    read_cluster_flags,
    read_job_flags,
)
from tfdist.tools.launch.remote.hosts import hosts_in, hosts_of

pytestmark = pytest.mark.stacks("newest")

NUMBERS = ("nan", "inf", "-inf", "1e999", "-1", "0", "", "9" * 5000, "٣", "1_0", " 7 ", "0x1")
ADDRESSES = ("a:1,", "a:1,a:1", "[::1]:80", "[::1", "a:99999", "http://a:1", "a b:1", ":", "\0")
texts = st.sampled_from((*NUMBERS, *ADDRESSES)) | st.text()


@settings(deadline=None)
@given(name=st.sampled_from(sorted({*flags.option_flags()} - {"strategy"})), text=texts)
def test_of_a_flag_of_the_job_or_a_strategy(name: str, text: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    job_flags(parser)
    with suppress(UsageError, argparse.ArgumentError):
        read_job_flags(parser.parse_args([f"--{name}={text}"]))


@settings(deadline=None)
@given(
    job=texts | st.sampled_from(["worker", "ps", "chief", "evaluator"]), index=texts, hosts=texts
)
def test_of_the_flags_of_the_cluster(job: str, index: str, hosts: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    cluster_flags(parser)
    given = [f"--job_name={job}", f"--task_index={index}", f"--worker_hosts={hosts}"]
    with suppress(UsageError):
        from_flags(read_cluster_flags(parser.parse_args(given)))


@settings(deadline=None)
@given(text=texts)
@example("a:99999999999999")
def test_of_hosts(text: str) -> None:
    with suppress(UsageError):
        hosts_of(text)


@settings(deadline=None)
@given(content=st.binary() | texts.map(lambda text: text.encode("utf-8", "replace")))
def test_of_a_file_of_hosts(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "hosts"
    path.write_bytes(content)
    with suppress(UsageError):
        hosts_in(str(path))


@given(path=texts)
@example("~\0")
def test_of_the_path_of_a_file_of_hosts(path: str) -> None:
    with suppress(UsageError):
        hosts_in(path)
