"""`tfdist check --versions`: prints the supported versions of TensorFlow and Keras."""

from __future__ import annotations

import textwrap

from tfdist.compat import stacks
from tfdist.compat.stacks import LEGACY_VARIABLE, LOOPS, STACKS, Installed, Loop, Stack
from tfdist.strategy_table import StrategySpec
from tfdist.strategy_table.table import rows

_COLUMNS = 100


def table(installed: Installed) -> list[str]:
    """The table in lines of at most 100 columns, with the installed versions marked."""
    # The names are too long for one line, so they break after an underscore.
    breaks = [name.rpartition("_") for name in rows()]
    lines = [
        ["", "", *(before + underscore for before, underscore, _ in breaks)],
        ["TensorFlow", "Keras", *(last for _, _, last in breaks)],
        *(
            [stack.tensorflows, stack.keras, *(_cell(stack, row) for row in rows().values())]
            for stack in STACKS
        ),
    ]
    marks = ["", "", *(">" if stack in installed.stacks else "" for stack in STACKS)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        *(
            f"{mark:1} {'  '.join(map(str.ljust, line, widths))}".rstrip()
            for mark, line in zip(marks, lines, strict=True)
        ),
        "",
        "F: fit, E: Estimators, C: custom loops (job.strategy); -: not supported; >: installed.",
        f"tf_keras: needs {LEGACY_VARIABLE}=1 and the same version number as TensorFlow.",
        "Other versions are untested.",
    ]


def remarks(installed: Installed) -> list[str]:
    """What is untested or not supported with the installed versions, and the remedies, in lines.

    If several installed Kerases share a reason, it is printed once.
    """
    lines = [
        line for sentence in stacks.unavailable(installed.python) for line in _wrapped(sentence)
    ]
    if installed.tensorflow is None:
        return [*lines, *_wrapped(f"TensorFlow is not installed: {stacks.NEWEST}.")]
    if not installed.kerases:
        return [*lines, *_wrapped(f"Keras is not installed: {stacks.NEWEST}.")]
    refused: dict[str, list[tuple[Loop, str]]] = {}
    for keras in installed.kerases:
        stack = stacks.stack_of(installed.tensorflow, keras)
        if stack is None:
            lines += _wrapped(stacks.untested(installed.tensorflow, keras) or "")
            continue
        for loop in LOOPS:
            for name, row in rows().items():
                sentence = stacks.refusal_of(
                    stack, row, loop, stacks.text_of(stacks.version_of(installed.tensorflow))
                )
                if sentence:
                    refused.setdefault(sentence, []).append((loop, name))
    if refused:
        lines.append("Not supported in this environment:")
    for sentence, cells in refused.items():
        loops = " and ".join(dict.fromkeys(LOOPS[loop] for loop, _ in cells))
        names = list(dict.fromkeys(name for _, name in cells))
        under = "every strategy" if len(names) == len(rows()) else ", ".join(names)
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
    # Breaking at hyphens would split commands.
    return textwrap.wrap(
        text, _COLUMNS, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
