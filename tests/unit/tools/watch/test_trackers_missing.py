"""`--tracker` without the package of the tracker."""

from __future__ import annotations

import pytest

from tfdist.errors import UsageError
from tfdist.training.records import trackers

pytestmark = pytest.mark.stacks("2.21")


def test_the_package_is_named() -> None:
    with pytest.raises(UsageError, match=r"pip install 'tfdist\[mlflow\]'"):
        trackers.check_installed(["mlflow"])
