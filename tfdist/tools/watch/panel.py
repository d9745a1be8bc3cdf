"""The panel of `tfdist run` on a terminal: a row for each task, and a bar for the training.

table = render(rows, time.time(), width=80, has_bar=True)      # for rich
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from tfdist.coordination.liveness.activity import TRAINING, WAITING, State
from tfdist.process import quantities
from tfdist.tools.watch.tasks import RUNNING, Row

_COLUMNS = ("task", "does", "step", "examples/s", "loss", "last step", "starts", "CPU", "memory")
_LEFT = ("task", "does")
# What a narrow terminal leaves out, in this order.
_LESS_IMPORTANT = ("memory", "starts", "last step", "CPU", "loss")
_GAP = 2
_COLORS = {TRAINING: "green", RUNNING: "", WAITING: "dim"}
_BAR_WIDTH, _NARROW = 30, 100


def render(rows: Sequence[Row], now: float, width: int, *, has_bar: bool) -> RenderableType:
    """The panel of a job.

    Args:
      rows: the tasks, the chief first.
      now: seconds since 1970.
      width: the columns of the terminal.
      has_bar: whether a bar shows how much of the training is done.
    """
    cells = [_cells(row, now, is_chief=row is rows[0]) for row in rows]
    widths = _fitting(cells, width)
    # rich's tables take six times as long.
    table = Text("\n", no_wrap=True, overflow="ellipsis", end="\n")
    table.append(_line({name: name for name in widths}, widths), style="bold")
    for row, texts in zip(rows, cells, strict=True):
        style = _COLORS.get(row.doing, "" if row.cpu is not None else "yellow")
        table.append(f"\n{_line(texts, widths)}")
        if style:
            begin = table.plain.rindex("\n") + 1 + widths["task"]
            table.stylize(style, begin, begin + widths["does"])
    state = rows[0].state
    bar = _bar(rows, state, width) if has_bar and state is not None else None
    return Group(table, *([bar] if bar else []))


def _cells(row: Row, now: float, *, is_chief: bool) -> dict[str, str]:
    state, steps, rate = row.state, row.steps, row.examples_per_second
    has_steps = state is not None and state.last_step and steps is not None
    return {
        "task": f"{row.name} (chief)" if is_chief else row.name,
        "does": row.doing,
        "step": "" if steps is None else f"{steps:,}",
        "examples/s": "" if rate is None else quantities.rate(rate),
        "loss": "" if state is None else quantities.value(state.loss),
        "last step": quantities.duration(now - state.last_step) if state and has_steps else "",
        "starts": str(row.starts),
        "CPU": "" if row.cpu is None else f"{row.cpu:.0f}%",
        "memory": "" if row.memory is None else quantities.size(row.memory),
    }


def examples_per_second(rows: Sequence[Row]) -> float:
    """The examples per second of all tasks; 0 if they are not known."""
    return sum(row.examples_per_second or 0.0 for row in rows)


def _line(texts: dict[str, str], widths: dict[str, int]) -> str:
    return "".join(
        texts[name].ljust(width) if name in _LEFT else texts[name].rjust(width - _GAP) + " " * _GAP
        for name, width in widths.items()
    ).rstrip()


def _fitting(cells: Sequence[dict[str, str]], width: int) -> dict[str, int]:
    """The columns for which a terminal has room, with their widths."""
    widths = {
        name: max([len(name), *(len(texts[name]) for texts in cells)]) + _GAP for name in _COLUMNS
    }
    for name in _LESS_IMPORTANT:
        if sum(widths.values()) <= width:
            break
        del widths[name]
    return widths


def _bar(rows: Sequence[Row], state: State, width: int) -> RenderableType | None:
    # Estimators have no epochs.
    if not state.epoch and not state.goal:
        return None
    epochs = f" of {state.epochs}" if state.epochs else ""
    words = [f"epoch {state.epoch}{epochs}"] if state.epoch else []
    if rate := examples_per_second(rows):
        words.append(f"{quantities.rate(rate)} examples/s")
    words += [state.tables] if state.tables else []
    if not state.goal:
        return Text("  ".join(words), no_wrap=True, overflow="ellipsis")
    done = state.resumed + state.steps
    left = _seconds_left(rows[0], state, done)
    times = [] if left is None else [f"{quantities.duration(left)} left"]
    words = [f"{done / state.goal:4.0%}", *times, f"step {done:,} of {state.goal:,}", *words]
    bar = ProgressBar(
        total=state.goal,
        completed=done,
        width=_BAR_WIDTH if width >= _NARROW else _BAR_WIDTH // 2,
        # Rich's own colors are red.
        complete_style="green",
        finished_style="green",
    )
    text = Column(no_wrap=True, overflow="ellipsis")
    line = Table.grid(Column(), text, padding=(0, 1, 0, 0))
    line.add_row(bar, "  ".join(words))
    return line


def _seconds_left(chief: Row, state: State, done: int) -> float | None:
    """The seconds until the training ends, at the rate of the last seconds."""
    if not chief.examples_per_second:
        return None
    return max(state.goal - done, 0) * state.examples_per_step / chief.examples_per_second
