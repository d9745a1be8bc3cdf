"""The answer of a task to another one that asks what it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tfdist.coordination.liveness.activity import Activity, Record, State
from tfdist.process import thread_stacks
from tfdist.process.file_waits import file_wait

# Characters of the stacks, and of a shorter text.
_STACKS_LIMIT, _TEXT_LIMIT = 1 << 18, 4096
_EVENTS_LIMIT = 100


@dataclass(frozen=True)
class TaskReport:
    """What a task does.

    Attributes:
      record: its state and its last events.
      own_code: where it is in code of the user, as `thread_stacks.own_code`.
      stacks: its Python stacks.
      file_wait: the file that it waits for, as `file_waits.file_wait`.
    """

    record: Record
    own_code: str
    stacks: str
    file_wait: str = ""

    @classmethod
    def of_this_process(cls, activity: Activity) -> TaskReport:
        """The report of this process."""
        text = thread_stacks.stacks()[:_STACKS_LIMIT]
        return cls(activity.record, thread_stacks.own_code(), text, file_wait()[:_TEXT_LIMIT])

    @classmethod
    def of_process(cls, record: Record) -> TaskReport | None:
        """The report of another process of this user on this machine; None if it is stopped."""
        try:
            return cls(record, "", thread_stacks.stacks_of(record.state.pid)[:_STACKS_LIMIT])
        except (OSError, LookupError):
            return None

    def encode(self) -> bytes:
        """A line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> TaskReport:
        """The report that `encode` has turned into a line.

        Raises:
          ValueError: the line is no report.
        """
        try:
            content = json.loads(line)
            record = content["record"]
            events = tuple(
                (float(when), _text(text, _TEXT_LIMIT))
                for when, text in record["events"][:_EVENTS_LIMIT]
            )
            return cls(
                Record(_state(record["state"]), events),
                _text(content["own_code"], _TEXT_LIMIT),
                _text(content["stacks"], _STACKS_LIMIT),
                _text(content["file_wait"], _TEXT_LIMIT),
            )
        except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise ValueError(f"no report: {error}") from None


def _state(content: Mapping[str, Any]) -> State:
    state = State.of(content)
    texts = {name: each for name, each in asdict(state).items() if isinstance(each, str)}
    printable: dict[str, Any] = {name: _text(each, _TEXT_LIMIT) for name, each in texts.items()}
    return replace(state, **printable)


def _text(value: Any, limit: int) -> str:
    # Text from another machine must not be able to control the user's terminal.
    if not isinstance(value, str) or len(value) > limit:
        raise ValueError("text")
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in value)
