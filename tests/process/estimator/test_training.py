"""`tfdist.estimator` in one process: its configuration, inputs, hooks, evaluation and export."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist.entry
import tfdist.estimator
from tfdist.cluster.config import ClusterFlags
from tfdist.config.flags import JobFlags
from tfdist.errors import OutputError, UsageError
from tfdist.estimator import input_functions
from tfdist.estimator.estimator_job import EstimatorJob
from tfdist.estimator.evaluation import Evaluation

pytestmark = pytest.mark.stacks("2.15")

ROOT = Path(__file__).parents[3]


def make_job(environ: Mapping[str, str] | None = None, **flags: Any) -> EstimatorJob:
    return tfdist.entry.create_of(EstimatorJob, JobFlags.of(**flags), environ or {})


def evaluator_job() -> EstimatorJob:
    cluster = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}
    config = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
    return make_job({"TF_CONFIG": json.dumps(config)})


def input_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(12)
    numbers = numbers.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return numbers.batch(3).map(lambda x: ({"x": tf.cast(x, tf.float32)}, tf.cast(x, tf.float32)))


def train_input(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
    return input_fn(input_context).repeat()


def model_fn(
    features: dict[str, tf.Tensor], labels: tf.Tensor, mode: str, config: Any
) -> tf.estimator.EstimatorSpec:
    slope = tf.compat.v1.get_variable("slope", initializer=0.0)
    predictions = {"y": slope * features["x"]}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions)
    loss = tf.reduce_mean(tf.square(predictions["y"] - labels))
    optimizer = config.job.wrap_optimizer(tf.compat.v1.train.GradientDescentOptimizer(0.01))
    step = tf.compat.v1.train.get_or_create_global_step()
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))


def make_estimator(job: EstimatorJob, path: Path, **options: Any) -> tf.estimator.Estimator:
    options = {"save_checkpoints_steps": 5, "tf_random_seed": 1, **options}
    config = tfdist.estimator.RunConfig(job, path, **options)
    return tf.estimator.Estimator(model_fn, config=config)


def eval_spec(**options: Any) -> tf.estimator.EvalSpec:
    options = {"steps": None, "start_delay_secs": 0, "throttle_secs": 0, **options}
    return tf.estimator.EvalSpec(input_fn, **options)


def evaluated_steps(path: Path) -> list[int]:
    lines = (path / "eval_metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["global_step"] for line in lines]


# The import.


def test_a_tensorflow_without_estimators_raises_an_import_error(tmp_path: Path) -> None:
    newer = tmp_path / "tensorflow"
    newer.mkdir()
    (newer / "__init__.py").write_text('__version__ = "2.16.1"\nfrom . import config\n')
    (newer / "config.py").write_text("def list_physical_devices(): pass\n")
    done = subprocess.run(
        [sys.executable, "-c", "import tfdist.estimator"],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr.splitlines()[-1] == (
        "ImportError: TensorFlow 2.16.1 has no Estimators; the last version with Estimators "
        "is 2.15. Install tensorflow==2.15.1, or train with Keras: tfdist.init()."
    )


# RunConfig.


@pytest.fixture
def set_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows setting the number of threads after TensorFlow has been initialized."""
    for name in ("intra", "inter"):
        monkeypatch.setattr(
            tf.config.threading, f"set_{name}_op_parallelism_threads", lambda threads: None
        )


def test_the_session_config_has_the_threads_from_the_flags(
    tmp_path: Path, set_threads: None
) -> None:
    job = make_job(num_intra_threads=2, num_inter_threads=3)
    config = tfdist.estimator.RunConfig(job, tmp_path)
    assert config.session_config.intra_op_parallelism_threads == 2
    assert config.session_config.inter_op_parallelism_threads == 3
    assert config.session_config.allow_soft_placement
    assert config.session_config.device_count["GPU"] == 0, "this machine has no GPU"


def test_sessions_start_the_threads_from_the_flags() -> None:
    script = """
import glob, sys
import tfdist.estimator, tfdist.entry
from tfdist.estimator import EstimatorJob
from tfdist.config.flags import JobFlags
import tensorflow as tf
threads = int(sys.argv[1])
flags = JobFlags.of(num_intra_threads=threads, num_inter_threads=threads)
job = tfdist.entry.create_of(EstimatorJob, flags, {})
with tf.Graph().as_default(), tf.compat.v1.Session(config=job.sessions.config) as session:
    session.run(tf.random.normal([300, 300]) @ tf.random.normal([300, 300]))
    print(len(glob.glob("/proc/self/task/*")))
"""
    counts = [
        int(
            subprocess.run(
                [sys.executable, "-c", script, str(threads)],
                env={"PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            ).stdout
        )
        for threads in (1, 4)
    ]
    # Three more intra-op threads, and three more inter-op threads.
    assert counts[1] - counts[0] == 6


def test_the_users_session_config_overrides_the_flags(tmp_path: Path, set_threads: None) -> None:
    own = tf.compat.v1.ConfigProto(log_device_placement=True, inter_op_parallelism_threads=5)
    job = make_job(num_intra_threads=2, num_inter_threads=3)
    config = tfdist.estimator.RunConfig(job, tmp_path, session_config=own)
    assert config.session_config.log_device_placement
    assert config.session_config.inter_op_parallelism_threads == 5
    assert config.session_config.intra_op_parallelism_threads == 2


def test_estimators_copy_the_configuration_and_not_the_job(tmp_path: Path) -> None:
    job = make_job()
    estimator = make_estimator(job, tmp_path)
    assert estimator.config.job is job
    assert estimator.config is not estimator.config
    assert estimator.config.replace(save_summary_steps=7).save_summary_steps == 7
    assert estimator.config.save_summary_steps == 100


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"save_checkpoints_secs": 60}, "RunConfig save_checkpoints_secs"),
        ({"save_summary_steps": 0}, "RunConfig save_summary_steps"),
        ({"save_summary_steps": None}, "RunConfig save_summary_steps"),
    ],
)
def test_options_that_multi_worker_mirrored_does_not_support_are_rejected(
    tmp_path: Path, options: dict[str, Any], field: str
) -> None:
    job = make_job(strategy="multi_worker_mirrored")
    with pytest.raises(UsageError) as error:
        tfdist.estimator.RunConfig(job, tmp_path, **options)
    assert error.value.field == field


def test_multi_worker_mirrored_saves_by_steps(tmp_path: Path) -> None:
    config = tfdist.estimator.RunConfig(make_job(strategy="multi_worker_mirrored"), tmp_path)
    assert config.save_checkpoints_steps == 1000
    assert config.save_checkpoints_secs is None
    assert config.train_distribute is not None


def test_the_estimator_must_have_a_run_config_of_tfdist(tmp_path: Path) -> None:
    estimator = tf.estimator.Estimator(model_fn, model_dir=str(tmp_path))
    with pytest.raises(TypeError, match=r"tfdist\.estimator\.RunConfig"):
        tfdist.estimator.train(estimator, train_input, max_steps=1)


# Input functions.


def numbers_of(function: Callable[..., tf.data.Dataset]) -> list[float]:
    dataset: Any = function(mode="train", params={}, config=None)
    return [float(x) for features, _ in dataset for x in features["x"]]


class ThreeWorkers:
    """The parts of a job that `inputs.sharded` uses, for the third of three workers."""

    num_replicas = 1
    num_input_pipelines = 3
    input_context = tf.distribute.InputContext(3, 2, 1)


def test_a_worker_reads_its_shard() -> None:
    assert numbers_of(input_functions.sharded(input_fn, ThreeWorkers())) == [2, 5, 8, 11]  # type: ignore[arg-type]


def test_the_input_context_of_a_strategy_overrides_the_jobs() -> None:
    function = input_functions.sharded(input_fn, ThreeWorkers())  # type: ignore[arg-type]
    context = tf.distribute.InputContext(2, 1, 2)
    dataset: Any = function(mode="train", params={}, config=None, input_context=context)
    assert [float(x) for features, _ in dataset for x in features["x"]] == [1, 3, 5, 7, 9, 11]


def test_an_evaluation_reads_all_examples() -> None:
    assert numbers_of(input_functions.unsharded(input_fn)) == list(range(12))


def test_an_input_function_gets_the_arguments_that_it_declares() -> None:
    given: dict[str, Any] = {}

    def takes(mode: str, params: Any) -> None:
        given.update(mode=mode, params=params)

    input_functions.unsharded(takes)(mode="eval", params={"a": 1}, config="a configuration")
    assert given == {"mode": "eval", "params": {"a": 1}}


def test_an_input_function_that_cannot_be_sharded_is_rejected() -> None:
    with pytest.raises(UsageError, match="a function with it, because 3 tasks train") as error:
        input_functions.sharded(lambda: None, ThreeWorkers())  # type: ignore[arg-type]
    assert error.value.field == "input_fn"


# Training, evaluation, export.


def test_an_estimator_trains_evaluates_and_exports(tmp_path: Path) -> None:
    estimator = make_estimator(make_job(), tmp_path)
    metrics = tfdist.estimator.train_and_evaluate(
        estimator, tf.estimator.TrainSpec(train_input, max_steps=12), eval_spec()
    )

    assert metrics is not None
    assert metrics["global_step"] == 12
    assert metrics["loss"] < 1e-3
    assert evaluated_steps(tmp_path) == [5, 10, 12]
    assert json.loads((tmp_path / "done.json").read_text())["global_step"] == 12
    again = tfdist.estimator.evaluate(estimator, input_fn)
    assert again == metrics

    def receiver() -> tf.estimator.export.ServingInputReceiver:
        x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
        return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})

    for _ in range(2):  # The second replaces the first.
        assert tfdist.estimator.export(estimator, receiver) == tmp_path / "saved_model"
    assert sorted(path.name for path in tmp_path.glob(".*")) == []
    serve = tf.saved_model.load(str(tmp_path / "saved_model")).signatures["serving_default"]
    np.testing.assert_allclose(serve(x=tf.constant([2.0, 3.0]))["y"], [2.0, 3.0], rtol=0.05)


def test_all_evaluations_but_the_last_are_throttled(tmp_path: Path) -> None:
    estimator = make_estimator(make_job(), tmp_path)
    spec = eval_spec(throttle_secs=600, start_delay_secs=600)
    tfdist.estimator.train_and_evaluate(
        estimator, tf.estimator.TrainSpec(train_input, max_steps=20), spec
    )
    assert evaluated_steps(tmp_path) == [5, 20]


def test_exporters_know_the_last_evaluation(tmp_path: Path) -> None:
    exports: list[tuple[str, bool]] = []

    class Exporter(tf.estimator.Exporter):
        name = "mine"

        def export(
            self,
            estimator: Any,
            export_path: str,
            checkpoint_path: str,
            eval_result: Any,
            is_the_final_export: bool,
        ) -> None:
            assert export_path == str(tmp_path / "export" / "mine")
            exports.append((Path(checkpoint_path).name, is_the_final_export))

    estimator = make_estimator(make_job(), tmp_path)
    spec = eval_spec(exporters=Exporter())
    tfdist.estimator.train_and_evaluate(
        estimator, tf.estimator.TrainSpec(train_input, max_steps=5), spec
    )
    assert exports == [("model.ckpt-5", False), ("model.ckpt-5", True)]


def test_a_training_without_an_intact_checkpoint_does_not_restart(tmp_path: Path) -> None:
    estimator = make_estimator(make_job(), tmp_path)
    tfdist.estimator.train(estimator, train_input, max_steps=4)
    for index in tmp_path.glob("*.index"):
        index.unlink()

    for use in (
        lambda: tfdist.estimator.train(estimator, train_input, max_steps=8),
        lambda: tfdist.estimator.evaluate(estimator, input_fn),
        lambda: tfdist.estimator.export(estimator, lambda: None),
    ):
        with pytest.raises(OutputError, match="has no intact checkpoint"):
            use()


def test_results_are_logged_once_per_step_in_order(tmp_path: Path) -> None:
    trained = make_estimator(make_job(), tmp_path)
    (tmp_path / "eval_metrics.jsonl").write_text('{"global_step": 2}\n{"global_step": 9}\n')
    trained.train(input_functions.unsharded(train_input), max_steps=5)
    Evaluation(trained, eval_spec(), max_steps=5).newest(final=True)
    assert evaluated_steps(tmp_path) == [2, 5], "a resumed job evaluates the later steps again"


def test_a_model_without_training_is_not_evaluated(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        tfdist.estimator.evaluate(make_estimator(make_job(), tmp_path), input_fn)
    assert error.value.field == "model_dir"


def test_metrics_that_are_not_numbers_are_not_logged(tmp_path: Path) -> None:
    class Estimator:
        model_dir = str(tmp_path)
        config = SimpleNamespace(job=make_job())

        def evaluate(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {"global_step": 7, "loss": np.float32(0.5), "curve": b"\n\x00"}

    checkpoint = tf.train.Checkpoint()
    tf.train.CheckpointManager(checkpoint, tmp_path, 1, checkpoint_name="model.ckpt").save(7)
    Evaluation(Estimator(), eval_spec(), max_steps=7).newest(final=True)
    (line,) = (tmp_path / "eval_metrics.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert 0 <= time.time() - record.pop("time") < 100
    assert record == {"global_step": 7, "loss": 0.5}


def test_estimators_under_an_unsupported_strategy_are_rejected() -> None:
    with pytest.raises(UsageError, match="one_device, mirrored, parameter_server") as error:
        make_job(strategy="central_storage")
    assert error.value.received == "central_storage for an Estimator"


def test_session_code_under_an_unsupported_strategy_is_rejected() -> None:
    with pytest.raises(UsageError, match="one_device, parameter_server"):
        make_job(strategy="mirrored").monitored_session()


def test_keras_needs_a_worker_besides_the_chief() -> None:
    hosts = ClusterFlags(
        job_name="chief", task_index="0", chief_hosts="127.0.0.1:9", ps_hosts="127.0.0.1:8"
    )
    with pytest.raises(UsageError) as error:
        tfdist.entry.create(JobFlags.of(cluster=hosts), {})
    assert error.value.field == "cluster.worker"


# Examples per second.


def test_examples_per_second_are_those_of_the_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The global step and the time that this worker sees; the steps of other workers count too.
    seen = iter([(1, 10.0), (4, 11.0), (21, 12.0), (31, 16.0), (41, 18.0), (42, 19.0)])
    now = 0.0
    hook = tfdist.estimator.ExamplesPerSecondHook(8, every_n_steps=20, clock=lambda: now)
    with tf.Graph().as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        hook.begin()
        assert hook.before_run(None).fetches is step
        for results, now in seen:  # noqa: B007
            hook.after_run(None, tf.compat.v1.train.SessionRunValues(results, {}, None))
    assert capsys.readouterr().out.splitlines() == [
        "Average examples/sec: 80.0 (80.0), step = 21",
        "Average examples/sec: 40.0 (26.7), step = 41",
    ]
