"""`tfdist check --versions`: prints what works with which TensorFlow and Keras."""

from __future__ import annotations

import textwrap

from tfdist.compat import stacks
from tfdist.compat.stacks import LEGACY_VARIABLE, LOOPS, STACKS, Installed, Loop, Stack
from tfdist.strategies.table import TABLE, StrategySpec

_COLUMNS = 100


def table(found: Installed) -> list[str]:
    """The table in lines of at most 100 columns, with the rows of `found` marked."""
    # The names are too long for one line, and have a place to break: multi_worker_, mirrored.
    breaks = [name.rpartition("_") for name in TABLE]
    lines = [
        ["", "", *(before + underscore for before, underscore, _ in breaks)],
        ["TensorFlow", "Keras", *(last for _, _, last in breaks)],
        *(
            [stack.tensorflows, stack.keras, *(_cell(stack, row) for row in TABLE.values())]
            for stack in STACKS
        ),
    ]
    marks = ["", "", *(">" if stack in found.stacks else "" for stack in STACKS)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        *(
            f"{mark:1} {'  '.join(map(str.ljust, line, widths))}".rstrip()
            for mark, line in zip(marks, lines, strict=True)
        ),
        "",
        "F: fit, E: Estimators, C: custom loops (job.strategy); -: not supported; >: installed.",
        f"tf_keras: with {LEGACY_VARIABLE}=1, and with the number of its TensorFlow.",
        "Keras 3 takes no --variable_partitions. Other versions are untested.",
    ]


def remarks(found: Installed) -> list[str]:
    """What is untested or refused in this environment, and what to do about it, in lines.

    A cell that each Keras of this environment refuses for the same reason is told once.
    """
    if found.tensorflow is None:
        return _wrapped(f"TensorFlow is not installed: {stacks.NEWEST}.")
    if not found.kerases:
        return _wrapped(f"Keras is not installed: {stacks.NEWEST}.")
    lines: list[str] = []
    refused: dict[str, list[tuple[Loop, str]]] = {}
    for keras in found.kerases:
        stack = stacks.stack_of(found.tensorflow, keras)
        if stack is None:
            lines += _wrapped(stacks.untested(found.tensorflow, keras) or "")
            continue
        for loop in LOOPS:
            for name, row in TABLE.items():
                sentence = stacks.refusal_of(
                    stack, row, loop, stacks.text_of(stacks.version_of(found.tensorflow))
                )
                if sentence:
                    refused.setdefault(sentence, []).append((loop, name))
    if refused:
        lines.append("Not supported in this environment:")
    for sentence, cells in refused.items():
        loops = " and ".join(dict.fromkeys(LOOPS[loop] for loop, _ in cells))
        names = list(dict.fromkeys(name for _, name in cells))
        under = "every strategy" if len(names) == len(TABLE) else ", ".join(names)
        lines += _wrapped(f"{loops} under {under}", indent=2)
        lines += _wrapped(sentence, indent=6)
    return lines


def _cell(stack: Stack, row: StrategySpec) -> str:
    newest = stacks.text_of(stack.tensorflow[1])
    return "".join(
        "-" if stacks.refusal_of(stack, row, loop, newest) else loop[0].upper() for loop in LOOPS
    )


def _wrapped(text: str, indent: int = 0) -> list[str]:
    margin = " " * indent
    # Else what is to be typed would be broken at its dashes.
    return textwrap.wrap(
        text, _COLUMNS, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
