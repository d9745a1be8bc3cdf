"""The versions that are refused, against the table in the documentation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.compat import keras as keras_compat
from tfdist.compat import versions
from tfdist.compat.versions import is_tested, refusal
from tfdist.config.strategies.table import row, rows
from tfdist.errors import UsageError

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(60)]

BASE = ("2.15.1", "2.15.0")
#: Versions of TensorFlow and Keras for each row of the table in docs/keras3.md.
SUPPORTED = [
    BASE,
    ("2.16.1", "2.16.0"),
    ("2.18.1", "2.18.0"),
    ("2.19.0", "2.19.0"),
    ("2.21.0", "2.21.0"),
    ("2.16.2", "3.10.0"),
    ("2.18.1", "3.15.1"),
    ("2.19.1", "3.10.0"),
    ("2.21.0", "3.15.1"),
    ("2.20.1", "3.15.0rc1"),
    ("2.21.0rc0", "3.100.0"),
]
INCORRECT = [("2.16.1", "3.0.5"), ("2.21.0", "3.9.2")]
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
#: One pair of versions for each row.
OF_EACH_ROW = [SUPPORTED[0], SUPPORTED[4], SUPPORTED[8], INCORRECT[1]]


@pytest.mark.parametrize(("tensorflow", "keras"), SUPPORTED)
def test_supported_versions_are_not_refused(tensorflow: str, keras: str) -> None:
    assert is_tested(tensorflow)
    assert refusal(tensorflow, keras) is None


@pytest.mark.parametrize(("tensorflow", "keras"), INCORRECT)
def test_a_keras_that_computes_wrong_results_is_refused(tensorflow: str, keras: str) -> None:
    sentence = str(refusal(tensorflow, keras))

    assert "tasks or replicas (3.3: workers diverge;" in sentence
    assert sentence.endswith(": install 'keras>=3.10', or choose one_device.")


@pytest.mark.parametrize(("tensorflow", "keras"), UNKNOWN)
def test_unknown_versions_are_reported_as_untested(tensorflow: str, keras: str) -> None:
    sentence = str(refusal(tensorflow, keras))

    assert sentence.startswith(f"TensorFlow {tensorflow} with Keras {keras} is untested: install '")
    assert is_tested(tensorflow) == ("2.15" <= tensorflow[:4] <= "2.21")


def test_tf_keras_must_have_the_version_of_tensorflow() -> None:
    assert str(refusal("2.21.0", "2.20.1")).endswith("install 'tf_keras==2.21.*'.")


@pytest.mark.parametrize("version", ["", "new", "3", "v2.15"])
def test_an_invalid_version_is_rejected(version: str) -> None:
    with pytest.raises(ValueError, match="is not a version"):
        refusal(version, "3.15.1")


def is_supported(tensorflow: str, keras: str, strategy: str, loop: str) -> bool:
    """The expected table, written independently of the package."""
    keras_3 = keras.startswith("3.")
    if loop == "estimator":
        return tensorflow == "2.15.1" and strategy not in ("central_storage", "in_graph")
    if loop == "custom" and strategy == "in_graph":
        return False
    if strategy == "one_device":
        return True
    if keras_3 and int(keras.split(".")[1]) < 10:
        return False
    return not (
        keras_3 and loop == "custom" and strategy in ("central_storage", "parameter_server")
    )


def test_the_documentation_has_every_cell() -> None:
    page = (ROOT / "docs/keras3.md").read_text()
    lines = page[page.index("| TensorFlow | Keras | one_device") :].splitlines()[:6]
    names, _, *cells = ([cell.strip() for cell in line.split("|")][3:-1] for line in lines)
    assert [names, *cells] == [
        list(rows()),
        *(
            [
                "".join(
                    loop[0].upper()
                    for loop in ("fit", "estimator", "custom")
                    if is_supported(tensorflow, keras, name, loop)
                )
                for name in rows()
            ]
            for tensorflow, keras in OF_EACH_ROW
        ),
    ]


def test_the_expected_table_agrees_with_the_rows_of_the_strategies() -> None:
    for name, strategy in rows().items():
        assert is_supported(*BASE, name, "custom") == (not strategy.fit_only)
        assert is_supported(*BASE, name, "estimator") == bool(strategy.estimator)


class KerasObject:
    """A stand-in for a model or an optimizer."""


@pytest.fixture
def made_by(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Creates objects that appear to come from a Keras package with this name and version."""

    def make(name: str, version: str) -> KerasObject:
        result = KerasObject()
        packages[id(result)] = SimpleNamespace(__name__=name, __version__=version)
        kept.append(result)
        return result

    def keras_of(value: Any) -> Any:
        if id(value) not in packages:
            raise TypeError("not made by Keras")
        return packages[id(value)]

    packages: dict[int, Any] = {}
    kept: list[KerasObject] = []
    monkeypatch.setattr(keras_compat, "keras_of", keras_of)
    return make


@pytest.mark.parametrize(("tensorflow", "keras"), OF_EACH_ROW)
@pytest.mark.parametrize("strategy", rows())
def test_fit_checks_the_keras_version_of_the_model(
    made_by: Any, tensorflow: str, keras: str, strategy: str
) -> None:
    name = "tf_keras" if keras[0] == "2" and tensorflow != "2.15.1" else "keras"
    model = made_by(name, keras)
    if is_supported(tensorflow, keras, strategy, "fit"):
        versions.check_fit(row(strategy), model, tensorflow)
        return

    with pytest.raises(UsageError) as raised:
        versions.check_fit(row(strategy), model, tensorflow)

    error = raised.value
    assert error.field == "--strategy"
    assert error.received == f"{strategy} with TensorFlow {tensorflow} and Keras {keras}"
    assert error.remedy == refusal(tensorflow, keras)
    supported = [name for name in rows() if is_supported(tensorflow, keras, name, "fit")]
    assert supported == [error.accepted]


def test_fit_is_refused_with_untested_versions(made_by: Any) -> None:
    model = made_by("keras", "3.15.1")

    versions.check_fit(row("one_device"), model, "2.15.1")
    with pytest.raises(UsageError, match=r"one_device\. TensorFlow 2\.15\.1 with Keras 3"):
        versions.check_fit(row("mirrored"), model, "2.15.1")


def test_objects_of_other_libraries_are_not_checked(made_by: Any) -> None:
    versions.check_fit(row("mirrored"), object(), "2.22.0")

    versions.check_same_keras(made_by("keras", "3.15.1"), object())
    versions.check_same_keras(object(), made_by("keras", "3.15.1"))


def test_a_model_and_an_optimizer_must_be_from_the_same_keras(made_by: Any) -> None:
    new, old = made_by("keras", "3.15.1"), made_by("tf_keras", "2.21.0")

    versions.check_same_keras(new, made_by("keras", "3.15.1"))
    versions.check_same_keras(old, made_by("tf_keras", "2.21.0"))
    with pytest.raises(UsageError) as raised:
        versions.check_same_keras(new, old)
    assert str(raised.value) == (
        "optimizer: received 'an optimizer of tf_keras for a model of keras'; accepted: an "
        "optimizer of keras. Import both from keras."
    )
    with pytest.raises(UsageError, match="Import both from tf_keras"):
        versions.check_same_keras(old, new)
