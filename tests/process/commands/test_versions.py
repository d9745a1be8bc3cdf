"""`tfdist check --versions`: the table, and what the environment lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.compat.test_stacks import BASE, OF_EACH_ROW, is_supported
from tfdist.commands import versions
from tfdist.compat import stacks
from tfdist.compat.stacks import LOOPS, STACKS, Installed, refusal
from tfdist.strategy_table import table
from tfdist.strategy_table.table import row

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(60)]

ENVIRONMENTS = [
    (Installed(*BASE, horovod="0.28.1"), [0]),
    (Installed("2.21.0", "3.15.1", "2.21.0"), [1, 2]),
    (Installed("2.18.1", "3.15.1", None, "0.28.1"), [2]),
    (Installed("2.17.0", "3.5.0"), [3]),
    (Installed("2.17.0", "3.5.0", "2.17.0"), [1, 3]),
    (Installed("2.21.0", "3.15.1", "2.18.0"), [2]),
    (Installed("2.15.1", "3.15.1"), []),
    (Installed("2.21.0"), []),
    (Installed(keras="3.15.1"), []),
    (Installed(), []),
]


@pytest.mark.parametrize(("found", "rows"), ENVIRONMENTS)
def test_the_rows_of_the_environment_are_marked(found: Installed, rows: list[int]) -> None:
    lines = versions.table(found)[2 : 2 + len(STACKS)]

    assert [index for index, line in enumerate(lines) if line.startswith("> ")] == rows
    assert all(line.startswith("  ") for line in lines if not line.startswith(">"))


def test_the_table_has_every_strategy_and_every_cell() -> None:
    upper, lower, *lines = versions.table(Installed())
    columns = [lower.index(name.rpartition("_")[2]) for name in list(table.rows())[2:]]

    for name in table.rows():
        before, underscore, last = name.rpartition("_")
        assert before + underscore in upper
        assert last in lower
    for stack, line in zip(STACKS, lines, strict=False):
        assert line.startswith(f"  {stack.tensorflows} ")
        assert stack.keras in line
        assert all(line[column : column + 3].strip("FEC-") == "" for column in columns)
    cells = [line.split()[-len(table.rows()) :] for line in lines[: len(STACKS)]]
    assert cells == [
        [
            "".join(
                loop[0].upper() if is_supported(tensorflow, keras, name, loop) else "-"
                for loop in LOOPS
            )
            for name in table.rows()
        ]
        for tensorflow, keras in OF_EACH_ROW
    ]


@pytest.mark.parametrize("found", [found for found, _ in ENVIRONMENTS])
def test_the_output_fits_a_terminal(found: Installed) -> None:
    lines = [str(found), *versions.table(found), *versions.remarks(found)]

    assert all(len(line) <= 100 and line == line.rstrip() for line in lines)


@pytest.mark.parametrize(("found", "rows"), ENVIRONMENTS)
def test_each_refused_cell_of_the_environment_is_explained(
    found: Installed, rows: list[int]
) -> None:
    text = " ".join(" ".join(versions.remarks(found)).split())
    if not rows:
        assert "install 'tensorflow==2.21.*' and 'keras>=3.10'." in text
        return

    assert "Not supported in this environment:" in text
    for index in rows:
        tensorflow, keras = OF_EACH_ROW[index]
        for loop in LOOPS:
            for name in table.rows():
                sentence = refusal(row(name), tensorflow=tensorflow, keras=keras, loop=loop)
                if sentence:
                    # The row may contain other versions of TensorFlow than the sentence.
                    assert sentence.split(":")[0].partition(" has ")[2] in text
                    assert sentence.rpartition(" or ")[2] in text or "tf_keras==" in sentence


def test_refusals_common_to_both_keras_packages_are_printed_once() -> None:
    lines = versions.remarks(Installed("2.21.0", "3.15.1", "2.21.0"))

    assert [line.strip() for line in lines if line.startswith("  ") and line[2] != " "] == [
        "Estimators under every strategy",
        "custom loops under central_storage, parameter_server",
        "custom loops under in_graph",
    ]


def test_an_untested_tf_keras_is_reported_in_addition_to_a_supported_keras() -> None:
    first, second, *_ = versions.remarks(Installed("2.21.0", "3.15.1", "2.18.0", python=(3, 11)))

    assert first == ("TensorFlow 2.21.0 with Keras 2.18.0 is untested: install 'tf_keras==2.21.*'.")
    assert second == "Not supported in this environment:"


def test_what_the_python_lacks_is_printed_first() -> None:
    first, *_ = versions.remarks(Installed("2.21.0", "3.15.1", python=(3, 13)))

    assert [first] == stacks.unavailable((3, 13))


def test_the_documentation_contains_the_table() -> None:
    page = (ROOT / "docs/keras3.md").read_text()

    assert "\n".join(versions.table(Installed())) in page


def test_the_command_does_not_import_tensorflow() -> None:
    code = (
        "import sys, tfdist.commands.cli\n"
        "tfdist.commands.cli.main(['check', '--versions'])\n"
        "print(sorted({'horovod', 'keras', 'numpy', 'tensorflow', 'tf_keras'}"
        " & set(sys.modules)))"
    )

    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert answer.stdout.startswith("tfdist ")
    assert answer.stdout.endswith("[]\n")
