"""Runs the user's host discovery script, which lists the machines of an elastic job.

    script = HostDiscoveryScript("./hosts.sh")
    script.read()              # (Host("10.0.0.1", slots=2), Host("10.0.0.2", slots=1))
    asked = script.ask()       # the same without waiting
    next(asked)                # starts the script; None until it has ended

The script prints one line per machine, `host:slots`, or `host` for one slot, as for
`horovodrun --host-discovery-script`.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass

from tfdist.errors import UsageError

FLAG = "--host_discovery_script"

# More tasks than a machine carries: a mistake.
_MOST_SLOTS = 1024

#: Seconds within which the script must end.
ANSWER_SECONDS = 30.0


@dataclass(frozen=True, order=True)
class Host:
    """A machine and the number of its tasks."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


class HostDiscoveryScript:
    """The script that lists the machines.

    Args:
      command: the script and its arguments, as typed in a shell.

    Raises:
      UsageError: `command` is empty or has an unclosed quote.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise self._error(str(error)) from None
        if not self._arguments:
            raise self._error("it is empty")

    def read(self) -> tuple[Host, ...]:
        """Runs the script and returns the hosts.

        Raises:
          UsageError: as `ask`.
        """
        asked = self.ask()
        while (hosts := next(asked)) is None:
            time.sleep(0.01)
        return hosts

    def ask(self) -> Generator[tuple[Host, ...] | None, None, None]:
        """Runs the script; yields None while it is running, then the hosts. `close` ends it.

        Raises:
          UsageError: the program does not run, fails, does not answer in time, or prints something
            else than hosts.
        """
        # A pipe would have to be read while the script runs. A child of an earlier run may still
        # print to the file of that run.
        with tempfile.TemporaryFile("w+") as printed:
            try:
                process = subprocess.Popen(
                    self._arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    # Its own process group, so that its children are ended with it.
                    start_new_session=True,
                )
            except OSError as error:
                raise self._error(f"it cannot be started: {error.strerror}") from None
            due = time.monotonic() + ANSWER_SECONDS
            try:
                while process.poll() is None:
                    if time.monotonic() >= due:
                        raise self._error(f"it has not ended within {ANSWER_SECONDS:g} s")
                    yield None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            try:
                if process.returncode:
                    raise ValueError(f"it ended with code {process.returncode}")
                printed.seek(0)
                # The order of the lines may vary.
                hosts = tuple(sorted(parse(printed)))
            except ValueError as error:
                raise self._error(str(error)) from None
        yield hosts

    def _error(self, problem: str) -> UsageError:
        return UsageError(
            FLAG,
            received=self._command,
            accepted="a program that prints one host:slots line per machine",
            remedy=f"Correct the program: {problem}.",
        )


def parse(lines: Iterable[str]) -> tuple[Host, ...]:
    """The hosts with at least one slot, in order.

    `#` starts a comment.

    Raises:
      ValueError: a line is not a host, or has too many slots, or a host is listed twice; the
        message names it.
    """
    hosts: dict[str, Host] = {}
    for line in lines:
        text = line.partition("#")[0].strip()
        if not text:
            continue
        name, colon, slots = text.rpartition(":")
        # An IPv6 address contains colons: without slots it is in brackets.
        if not colon or slots.endswith("]"):
            name, slots = text, "1"
        if not name or not slots.isdecimal() or any(character.isspace() for character in name):
            raise ValueError(f"the line {line!r} is not host:slots")
        if len(slots) > len(str(_MOST_SLOTS)) or int(slots) > _MOST_SLOTS:
            raise ValueError(f"{name} has more than {_MOST_SLOTS} slots")
        if name in hosts:
            raise ValueError(f"{name} is listed twice")
        hosts[name] = Host(name, int(slots))
    return tuple(host for host in hosts.values() if host.slots)
