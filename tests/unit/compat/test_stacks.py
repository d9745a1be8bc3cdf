"""The table of versions: every cell of it, what is refused, and what is untested."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.commands import versions
from tfdist.compat import keras as keras_compat
from tfdist.compat import stacks
from tfdist.compat.stacks import LOOPS, STACKS, Installed, Loop, refusal, stack_of, untested
from tfdist.errors import UsageError
from tfdist.strategies.table import TABLE, row

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(60)

BASE = ("2.15.1", "2.15.0")
#: TensorFlow, Keras, and the first words of their row.
KNOWN = [
    (*BASE, "2.15", "2.15"),
    ("2.16.1", "2.16.0", "2.16 - 2.18", "tf_keras"),
    ("2.18.1", "2.18.0", "2.16 - 2.18", "tf_keras"),
    ("2.19.0", "2.19.0", "2.19 - 2.21", "tf_keras"),
    ("2.21.0", "2.21.0", "2.19 - 2.21", "tf_keras"),
    ("2.16.2", "3.10.0", "2.16 - 2.18", "3.10 or newer"),
    ("2.18.1", "3.15.1", "2.16 - 2.18", "3.10 or newer"),
    ("2.19.1", "3.10.0", "2.19 - 2.21", "3.10 or newer"),
    ("2.21.0", "3.15.1", "2.19 - 2.21", "3.10 or newer"),
    ("2.20.1", "3.15.0rc1", "2.19 - 2.21", "3.10 or newer"),
    ("2.21.0rc0", "3.100.0", "2.19 - 2.21", "3.10 or newer"),
    ("2.16.1", "3.0.5", "2.16 - 2.21", "3.0 - 3.9"),
    ("2.21.0", "3.9.2", "2.16 - 2.21", "3.0 - 3.9"),
]
UNKNOWN = [
    ("2.14.1", "2.14.0"),
    ("2.9.3", "2.9.0"),
    ("1.15.5", "2.3.1"),
    ("2.15.1", "3.15.1"),
    ("2.14.0", "3.0.0"),
    ("2.22.0-dev20260101", "3.15.1"),
    ("2.22.0", "2.22.0"),
    ("3.0.0", "3.15.1"),
    ("2.21.0", "2.20.1"),
    ("2.16.1", "2.15.0"),
    ("2.21.0", "4.0.0"),
]
#: One pair of versions of each row.
OF_EACH_ROW = [KNOWN[place][:2] for place in (0, 2, 4, 6, 8, 12)]
FIT_AND_CUSTOM: tuple[Loop, ...] = ("fit", "custom")


@pytest.mark.parametrize(("tensorflow", "keras", "tensorflows", "name"), KNOWN)
def test_versions_are_found_in_their_row(
    tensorflow: str, keras: str, tensorflows: str, name: str
) -> None:
    stack = stack_of(tensorflow, keras)

    assert stack
    assert (stack.tensorflows, stack.keras) == (tensorflows, name)
    assert untested(tensorflow, keras) is None
    assert refusal(row("one_device"), tensorflow=tensorflow, keras=keras) is None


def test_the_rows_are_tried_and_do_not_overlap() -> None:
    assert [stack_of(*pair) for pair in OF_EACH_ROW] == list(STACKS)
    for tensorflow in range(10, 25):
        for keras in [(2, tensorflow), *((3, minor) for minor in range(20))]:
            rows = [stack for stack in STACKS if stack.includes((2, tensorflow), keras)]
            assert len(rows) <= 1


@pytest.mark.parametrize(("tensorflow", "keras"), UNKNOWN)
def test_what_nobody_has_tried_is_said_to_be_untested(tensorflow: str, keras: str) -> None:
    assert stack_of(tensorflow, keras) is None

    sentence = untested(tensorflow, keras)

    assert sentence
    assert sentence.startswith(f"TensorFlow {tensorflow} with Keras {keras} is untested: install '")
    for name in TABLE:
        expected = None if name == "one_device" else sentence
        assert refusal(row(name), tensorflow=tensorflow, keras=keras) == expected
        assert refusal(row(name), tensorflow=tensorflow, keras=keras, loop="estimator") == sentence


def test_tf_keras_is_to_have_the_number_of_its_tensorflow() -> None:
    sentence = untested("2.21.0", "2.20.1")

    assert sentence
    assert sentence.endswith("install 'tf_keras==2.21.*'.")


@pytest.mark.parametrize("version", ["", "new", "3", "v2.15"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="is not a version"):
        stack_of(version, "3.15.1")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("strategy", TABLE)
@pytest.mark.parametrize(("tensorflow", "keras"), OF_EACH_ROW)
def test_every_cell_is_had_or_refused_in_a_sentence_with_a_remedy(
    tensorflow: str, keras: str, strategy: str, loop: Loop
) -> None:
    sentence = refusal(row(strategy), tensorflow=tensorflow, keras=keras, loop=loop)

    assert (sentence is None) == is_had(tensorflow, keras, strategy, loop)
    if sentence:
        assert sentence.endswith(".")
        assert "\n" not in sentence
        reason, _, remedy = sentence.rpartition(": ")
        assert reason
        assert remedy.startswith(("install '", "choose ", "train "))


def is_had(tensorflow: str, keras: str, strategy: str, loop: Loop) -> bool:
    """The same, spelled out anew."""
    keras_3 = keras.startswith("3.")
    if loop == "estimator":
        return tensorflow == "2.15.1" and strategy != "central_storage"
    if strategy == "one_device":
        return True
    if keras_3 and int(keras.split(".")[1]) < 10:
        return False
    if strategy == "horovod" and int(tensorflow.split(".")[1]) > 18:
        return False
    return not (
        keras_3 and loop == "custom" and strategy in ("central_storage", "parameter_server")
    )


def test_the_base_stack_has_all_that_the_strategies_have() -> None:
    tensorflow, keras = BASE
    for name, strategy in TABLE.items():
        for loop in FIT_AND_CUSTOM:
            assert refusal(row(name), tensorflow=tensorflow, keras=keras, loop=loop) is None
        sentence = refusal(row(name), tensorflow=tensorflow, keras=keras, loop="estimator")
        assert (sentence is None) == bool(strategy.estimator)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (("horovod", "2.21.0", "3.15.1", "fit"), "install 'tensorflow==2.18.*', or choose multi_"),
        (("horovod", "2.19.0", "2.19.0", "custom"), "against TensorFlow after 2.18"),
        (("mirrored", "2.17.0", "3.6.0", "fit"), "install 'keras>=3.10', or choose one_device."),
        (("horovod", "2.18.0", "3.3.3", "fit"), "tasks or replicas (3.3: workers diverge;"),
        (("one_device", "2.18.1", "3.15.1", "estimator"), "TensorFlow 2.18 has no Estimators"),
        (
            ("central_storage", *BASE, "estimator"),
            "does not support Estimators: choose",
        ),
        (("parameter_server", "2.20.0", "3.12.0", "custom"), "install 'tf_keras==2.20.*' and set"),
    ],
)
def test_what_a_refusal_says(cell: tuple[str, str, str, Loop], words: str) -> None:
    strategy, tensorflow, keras, loop = cell

    assert words in str(refusal(row(strategy), tensorflow=tensorflow, keras=keras, loop=loop))


class Made:
    """Stands for a model or an optimizer."""


@pytest.fixture
def made_by(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes what seems to come from a Keras of this name and version."""

    def make(name: str, version: str) -> Made:
        made = Made()
        made_by[id(made)] = SimpleNamespace(__name__=name, __version__=version)
        kept.append(made)
        return made

    def keras_of(made: Any) -> Any:
        if id(made) not in made_by:
            raise TypeError("not made by Keras")
        return made_by[id(made)]

    made_by: dict[int, Any] = {}
    kept: list[Made] = []
    monkeypatch.setattr(keras_compat, "keras_of", keras_of)
    return make


@pytest.mark.parametrize(("tensorflow", "keras"), OF_EACH_ROW)
@pytest.mark.parametrize("strategy", TABLE)
def test_fit_is_checked_for_the_keras_that_made_the_model(
    made_by: Any, tensorflow: str, keras: str, strategy: str
) -> None:
    name = "tf_keras" if keras[0] == "2" and tensorflow != "2.15.1" else "keras"
    model = made_by(name, keras)
    if is_had(tensorflow, keras, strategy, "fit"):
        stacks.check_fit(row(strategy), model, tensorflow, TABLE.values())
        return

    with pytest.raises(UsageError) as raised:
        stacks.check_fit(row(strategy), model, tensorflow, TABLE.values())

    error = raised.value
    assert error.field == "--strategy"
    assert error.received == f"{strategy} with TensorFlow {tensorflow} and Keras {keras}"
    assert error.remedy == refusal(row(strategy), tensorflow=tensorflow, keras=keras)
    accepted = error.accepted.split(", ")
    assert "one_device" in accepted
    assert all(is_had(tensorflow, keras, other, "fit") for other in accepted)


def test_fit_is_refused_where_it_is_untested(made_by: Any) -> None:
    model = made_by("keras", "3.15.1")

    stacks.check_fit(row("one_device"), model, "2.15.1")
    with pytest.raises(UsageError, match=r"one_device\. TensorFlow 2\.15\.1 with Keras 3"):
        stacks.check_fit(row("mirrored"), model, "2.15.1", TABLE.values())


def test_what_no_keras_has_made_is_not_judged(made_by: Any) -> None:
    stacks.check_fit(row("mirrored"), object(), "2.22.0")

    stacks.check_same_keras(made_by("keras", "3.15.1"), object())
    stacks.check_same_keras(object(), made_by("keras", "3.15.1"))


def test_a_model_and_an_optimizer_are_to_be_of_one_keras(made_by: Any) -> None:
    new, old = made_by("keras", "3.15.1"), made_by("tf_keras", "2.21.0")

    stacks.check_same_keras(new, made_by("keras", "3.15.1"))
    stacks.check_same_keras(old, made_by("tf_keras", "2.21.0"))
    with pytest.raises(UsageError) as raised:
        stacks.check_same_keras(new, old)
    assert str(raised.value) == (
        "optimizer: received 'an optimizer of tf_keras 2.21 for a model of keras 3.15'; accepted: "
        "an optimizer of keras. Import both from keras."
    )
    with pytest.raises(UsageError, match="Import both from tf_keras"):
        stacks.check_same_keras(old, new)


def test_real_versions_are_those_of_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"tensorflow-cpu": "2.21.0", "keras": "3.15.1", "tf_keras": "2.21.0"}

    def version(name: str) -> str:
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(importlib.metadata, "version", version)

    found = stacks.installed()

    assert found == Installed(tensorflow="2.21.0", keras="3.15.1", tf_keras="2.21.0")
    assert [stack.keras for stack in found.stacks] == ["3.10 or newer", "tf_keras"]
    assert str(found).endswith("TensorFlow 2.21.0, Keras 3.15.1, tf_keras 2.21.0, no Horovod")
    there["tensorflow"] = "2.15.1"
    assert stacks.installed().tensorflow == "2.15.1"
    there.clear()
    assert stacks.installed() == Installed()


ENVIRONMENTS = [
    (Installed(*BASE, horovod="0.28.1"), [0]),
    (Installed("2.21.0", "3.15.1", "2.21.0"), [2, 4]),
    (Installed("2.18.1", "3.15.1", None, "0.28.1"), [3]),
    (Installed("2.17.0", "3.5.0"), [5]),
    (Installed("2.17.0", "3.5.0", "2.17.0"), [1, 5]),
    (Installed("2.21.0", "3.15.1", "2.18.0"), [4]),
    (Installed("2.15.1", "3.15.1"), []),
    (Installed("2.21.0"), []),
    (Installed(keras="3.15.1"), []),
    (Installed(), []),
]


@pytest.mark.parametrize(("found", "rows"), ENVIRONMENTS)
def test_the_rows_of_this_environment_are_marked(found: Installed, rows: list[int]) -> None:
    lines = versions.table(found)[2 : 2 + len(STACKS)]

    assert [place for place, line in enumerate(lines) if line.startswith("> ")] == rows
    assert all(line.startswith("  ") for line in lines if not line.startswith(">"))


def test_the_table_has_every_strategy_and_every_cell() -> None:
    upper, lower, *lines = versions.table(Installed())
    places = [lower.index(name.rpartition("_")[2]) for name in list(TABLE)[2:]]

    for name in TABLE:
        before, underscore, last = name.rpartition("_")
        assert before + underscore in upper
        assert last in lower
    for stack, line in zip(STACKS, lines, strict=False):
        assert line.startswith(f"  {stack.tensorflows} ")
        assert stack.keras in line
        assert all(line[place : place + 3].strip("FEC-") == "" for place in places)
    cells = [line.split()[-len(TABLE) :] for line in lines[: len(STACKS)]]
    assert cells == [
        [
            "".join(
                loop[0].upper() if is_had(tensorflow, keras, name, loop) else "-" for loop in LOOPS
            )
            for name in TABLE
        ]
        for tensorflow, keras in OF_EACH_ROW
    ]


@pytest.mark.parametrize(("found", "rows"), ENVIRONMENTS)
def test_everything_fits_a_terminal(found: Installed, rows: list[int]) -> None:
    lines = [str(found), *versions.table(found), *versions.remarks(found)]

    assert all(len(line) <= 100 and line == line.rstrip() for line in lines)


@pytest.mark.parametrize(("found", "rows"), ENVIRONMENTS)
def test_each_refused_cell_of_this_environment_is_explained(
    found: Installed, rows: list[int]
) -> None:
    text = " ".join(" ".join(versions.remarks(found)).split())
    if not rows:
        assert "install 'tensorflow==2.21.*' and 'keras>=3.10'." in text
        return

    assert "Not supported in this environment:" in text
    for place in rows:
        tensorflow, keras = OF_EACH_ROW[place]
        for loop in LOOPS:
            for name in TABLE:
                sentence = refusal(row(name), tensorflow=tensorflow, keras=keras, loop=loop)
                if sentence:
                    # Of the row, whose versions of TensorFlow may be others.
                    assert sentence.split(":")[0].partition(" has ")[2] in text
                    assert sentence.rpartition(" or ")[2] in text or "tf_keras==" in sentence


def test_what_both_kerases_refuse_is_told_once() -> None:
    lines = versions.remarks(Installed("2.21.0", "3.15.1", "2.21.0"))

    assert [line.strip() for line in lines if line.startswith("  ") and line[2] != " "] == [
        "fit and custom loops under horovod",
        "Estimators under every strategy",
        "custom loops under central_storage, parameter_server",
    ]


def test_a_keras_that_does_not_fit_is_told_beside_one_that_does() -> None:
    first, second, *_ = versions.remarks(Installed("2.21.0", "3.15.1", "2.18.0"))

    assert first == ("TensorFlow 2.21.0 with Keras 2.18.0 is untested: install 'tf_keras==2.21.*'.")
    assert second == "Not supported in this environment:"


def test_the_page_for_users_has_this_table() -> None:
    page = (ROOT / "docs/keras3.md").read_text()

    assert "\n".join(versions.table(Installed())) in page


def test_the_command_imports_no_tensorflow() -> None:
    code = (
        "import sys, tfdist.commands.cli\n"
        "tfdist.commands.cli.main(['check', '--versions'])\n"
        "print(sorted({'absl', 'horovod', 'keras', 'numpy', 'tensorflow', 'tf_keras'}"
        " & set(sys.modules)))"
    )

    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert answer.stdout.startswith("tfdist ")
    assert answer.stdout.endswith("[]\n")
