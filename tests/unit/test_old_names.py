"""Names of the last release work in this one, with a line that says what replaces them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import tfdist
from tests.conftest import TinyTraining
from tfdist import job as job_module

pytestmark = pytest.mark.stacks("2.15", "newest")


@pytest.fixture(autouse=True)
def _warns_again() -> None:
    job_module._warn_once.cache_clear()


def test_old_names_of_a_job_work_and_are_named_once(
    tiny: TinyTraining, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tiny.job()
    capsys.readouterr()
    for _ in range(2):
        assert (job.num_input_pipelines, job.input_pipeline_id) == (1, 0)
        assert job.verbose in (1, 2)
        assert job.model_dir is None
    optimizer = tf.keras.optimizers.SGD(0.1)
    assert job.optimizer(optimizer) is optimizer
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"tfdist: warning: job.{old} will be removed in the next release; use {new}"
        for old, new in (
            ("num_input_pipelines", "job.input_context.num_input_pipelines"),
            ("input_pipeline_id", "job.input_context.input_pipeline_id"),
            ("verbose", "job.is_chief"),
            ("model_dir", "TF_CONFIG"),
            ("optimizer", "job.wrap_optimizer"),
        )
    ]


def test_another_name_is_an_error(tiny: TinyTraining) -> None:
    with pytest.raises(AttributeError, match="'Job' object has no attribute 'num_workers'"):
        _ = tiny.job().num_workers


def test_a_batch_size_for_the_log_is_ignored(
    tiny: TinyTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callbacks = tiny.job().callbacks(str(tmp_path), batch_size=99)
    assert callbacks
    assert "warning: batch_size of job.callbacks will be removed" in capsys.readouterr().err


def test_the_old_module_of_stages_has_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    sys.modules.pop("tfdist.placement", None)
    placement = importlib.import_module("tfdist.placement")
    assert placement.stage is tfdist.stage
    assert "use tfdist.stage" in capsys.readouterr().err
