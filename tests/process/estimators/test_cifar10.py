"""The model function of the CIFAR-10 Estimator, with eight layers and four images."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tfdist.estimator  # isort: skip  (before TensorFlow)

import numpy as np
import tensorflow as tf

import tfdist.entry
from estimators import cifar10
from estimators.cifar10 import HyperParameters
from estimators.resnet import cifar_resnet
from tests.support.processes import run_by_hand
from tfdist.config.flags import JobFlags
from tfdist.data import cifar10 as cifar10_records
from tfdist.errors import UsageError
from tfdist.estimator import EstimatorJob

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(120)]

TRAIN, EVAL, PREDICT = (
    tf.estimator.ModeKeys.TRAIN,
    tf.estimator.ModeKeys.EVAL,
    tf.estimator.ModeKeys.PREDICT,
)
IMAGES = np.random.default_rng(5).uniform(0, 255, [4, 32, 32, 3]).astype("float32")
LABELS = np.array([3, 1, 4, 9], "int32")

# Seven convolutions with batch normalization (3 variables each), and the logits (2).
TRAINABLE = 7 * 3 + 2


def small(**values: Any) -> HyperParameters:
    return HyperParameters(**{"num_layers": 8, "batch_size": 4, "num_examples": 40} | values)


def input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((IMAGES, LABELS))


@pytest.fixture
def config(tmp_path: Path) -> tfdist.estimator.RunConfig:
    tf.keras.utils.set_random_seed(1)
    job = tfdist.entry.create_of(EstimatorJob, JobFlags(), {})
    return tfdist.estimator.RunConfig(job, tmp_path / "model")


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def call(config: Any, mode: str, **values: Any) -> tf.estimator.EstimatorSpec:
    labels = None if mode == PREDICT else tf.constant(LABELS)
    return cifar10.model_fn(tf.constant(IMAGES), labels, mode, small(**values), config)


def session() -> tf.compat.v1.Session:
    """A session with initialized variables."""
    session = tf.compat.v1.Session()
    session.run(tf.compat.v1.global_variables_initializer())
    return session


def test_predictions_are_classes_and_probabilities(graph: tf.Graph, config: Any) -> None:
    spec = call(config, PREDICT)
    with session() as run:
        found = run.run(spec.predictions)
    assert found["probabilities"].shape == (4, 10)
    assert found["probabilities"].sum(axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert (found["classes"] == found["probabilities"].argmax(axis=1)).all()
    assert found["classes"].dtype == np.int64


@pytest.mark.parametrize("mode", [TRAIN, EVAL])
def test_the_loss_is_cross_entropy_plus_weight_decay_of_all_trainable_variables(
    graph: tf.Graph, config: Any, mode: str
) -> None:
    spec = call(config, mode, weight_decay=0.01)
    variables = tf.compat.v1.trainable_variables()
    assert len(variables) == TRAINABLE
    with session() as run:
        loss, predicted, values = run.run([spec.loss, spec.predictions, variables])
    cross_entropy = -np.log(predicted["probabilities"][np.arange(4), LABELS]).mean()
    squares = sum(float((value.astype("float64") ** 2).sum()) for value in values)
    assert loss == pytest.approx(cross_entropy + 0.01 * squares / 2, rel=1e-4)
    assert 0.01 * squares / 2 > 0.1, "the weight decay should be visible in the loss"


@pytest.mark.parametrize(("num_replicas", "per_epoch"), [(1, 10), (2, 5), (4, 2.5)])
def test_the_learning_rate_decays_at_epochs_of_all_replicas(
    graph: tf.Graph,
    config: Any,
    monkeypatch: pytest.MonkeyPatch,
    num_replicas: int,
    per_epoch: float,
) -> None:
    monkeypatch.setattr(type(config.job._state), "batches_per_update", num_replicas)
    call(config, TRAIN, decay_epochs=(2, 3, 7), learning_rate=0.5)
    rate = graph.get_operation_by_name("learning_rate").inputs[1]
    step = tf.compat.v1.train.get_global_step()
    boundaries = [int(epoch * per_epoch) for epoch in (2, 3, 7)]
    steps = [0, *(end + after for end in boundaries for after in (0, 1))]
    with session() as run:
        rates = []
        for value in steps:
            step.load(value, run)
            rates.append(float(run.run(rate)))
    multipliers = [1, 1, 0.1, 0.1, 0.01, 0.01, 0.002]
    assert rates == pytest.approx([0.5 * multiplier for multiplier in multipliers])


def test_fewer_than_three_decays_are_accepted(graph: tf.Graph) -> None:
    params = small(decay_epochs=(1,), learning_rate=1.0)
    with tf.compat.v1.Session() as run:
        rates = [run.run(params.learning_rate_at(tf.constant(step), 4)) for step in (10, 11, 999)]
    assert rates == pytest.approx([1.0, 0.1, 0.1])


@pytest.mark.parametrize("where", ["CPU", "GPU"])
def test_variable_strategy_places_the_variables_of_one_process(
    graph: tf.Graph, config: Any, where: str
) -> None:
    call(config, TRAIN, variable_strategy=where)
    step = tf.compat.v1.train.get_global_step()
    variables = [v for v in tf.compat.v1.global_variables() if v is not step]
    assert len(variables) == 2 * TRAINABLE + 2 * 7, "includes slots and moving statistics"
    assert {variable.op.device for variable in variables} == {f"/device:{where}:0"}
    convolutions = [op for op in graph.get_operations() if op.type == "Conv2D"]
    assert {op.device for op in convolutions} == {""}, "TensorFlow should place them"


@pytest.mark.parametrize("where", ["CPU", "GPU"])
def test_parameter_servers_ignore_variable_strategy(
    graph: tf.Graph, config: Any, where: str
) -> None:
    with_ps = SimpleNamespace(job=config.job, num_ps_replicas=2)
    setter = tf.compat.v1.train.replica_device_setter(
        ps_tasks=2, worker_device="/job:worker/task:0"
    )
    with tf.compat.v1.device(setter):
        call(with_ps, TRAIN, variable_strategy=where)
    devices = {variable.op.device for variable in tf.compat.v1.global_variables()}
    assert devices == {"/job:ps/task:0", "/job:ps/task:1"}


def test_moving_statistics_are_updated_saved_and_used(config: Any) -> None:
    # With these values the statistics are those of the only batch, and the weights do not change.
    params = small(learning_rate=0.0, batch_norm_decay=0.0)
    estimator = tf.estimator.Estimator(cifar10.model_fn, config=config, params=params)
    losses: list[float] = []

    class Losses(tf.compat.v1.train.SessionRunHook):
        def before_run(self, run_context: Any) -> tf.compat.v1.train.SessionRunArgs:
            summary = tf.compat.v1.get_default_graph().get_operation_by_name("loss")
            return tf.compat.v1.train.SessionRunArgs(summary.inputs[1])

        def after_run(self, run_context: Any, run_values: Any) -> None:
            losses.append(float(run_values.results))

    estimator.train(input_fn, max_steps=1, hooks=[Losses()])
    kernel = estimator.get_variable_value("conv2d/kernel")
    outputs = tf.nn.conv2d(IMAGES / 128 - 1, kernel, 1, "SAME").numpy()
    assert estimator.get_variable_value("batch_normalization/moving_mean") == pytest.approx(
        outputs.mean(axis=(0, 1, 2)), abs=1e-4
    )
    # Moving variances are unbiased, which is visible in the last stage with 256 values per channel.
    assert estimator.evaluate(input_fn)["loss"] == pytest.approx(losses[0], rel=0.01)

    def probabilities(step: int) -> np.ndarray:
        path = f"{config.model_dir}/model.ckpt-{step}"
        rows = estimator.predict(input_fn, checkpoint_path=path)
        return np.array([row["probabilities"] for row in rows])

    # Only the statistics differ between the two checkpoints.
    assert np.abs(probabilities(1) - probabilities(0)).max() > 0.01


def test_the_exported_model_gives_the_same_predictions_as_the_estimator(
    config: Any, tmp_path: Path
) -> None:
    estimator = tf.estimator.Estimator(cifar10.model_fn, config=config, params=small())
    tfdist.estimator.train(estimator, input_fn, max_steps=1)
    directory = tfdist.estimator.export(estimator, cifar10.serving_input_receiver_fn)
    served = tf.saved_model.load(str(directory)).signatures["serving_default"]
    answers = served(images=tf.constant(IMAGES))
    expected = [row["probabilities"] for row in estimator.predict(input_fn)]
    assert answers["probabilities"].numpy() == pytest.approx(np.array(expected), abs=1e-5)
    assert answers["classes"].shape == [4]


REPLICAS = """
    import shutil
    import sys
    from pathlib import Path

    import tfdist.estimator
    import numpy as np
    import tensorflow as tf

    import tfdist.entry
    from estimators import cifar10
    from tests.process.estimators.test_cifar10 import input_fn, small
    from tfdist.estimator import EstimatorJob
    from tfdist.config.flags import JobFlags

    def weights(job, directory):
        config = tfdist.estimator.RunConfig(job, directory)
        params = small(weight_decay=0.1, learning_rate=0.01)
        estimator = tf.estimator.Estimator(cifar10.model_fn, config=config, params=params)
        estimator.train(lambda: input_fn().repeat(), max_steps=2)
        return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}

    # The mirrored job must be first: it creates logical CPU devices before the first session.
    jobs = [
        tfdist.entry.create_of(EstimatorJob, options, {})
        for options in (JobFlags.of(strategy="mirrored", num_cpu_devices=2), JobFlags())
    ]
    alone, together = (Path(sys.argv[1]) / name for name in ("alone", "together"))
    expected = weights(jobs[1], alone)
    together.mkdir()
    for file in alone.glob("model.ckpt-0.*"):
        shutil.copy(file, together)
    tf.compat.v1.train.update_checkpoint_state(str(together), str(together / "model.ckpt-0"))
    found = weights(jobs[0], together)
    assert found.keys() == expected.keys()
    start = tf.train.load_checkpoint(str(alone / "model.ckpt-0"))
    difference, moved = 0.0, 0.0
    for name, value in expected.items():
        difference = max(difference, float(np.abs(found[name] - value).max()))
        moved = max(moved, float(np.abs(start.get_tensor(name) - value).max()))
    print("found", jobs[0].num_replicas, difference, moved)
"""


def test_replicas_with_the_same_batch_give_the_same_weights_as_one_process(tmp_path: Path) -> None:
    """Each replica scales its loss, and the moving statistics are averaged."""
    script = tmp_path / "replicas.py"
    script.write_text(textwrap.dedent(REPLICAS))
    command = [sys.executable, str(script), str(tmp_path)]
    done = run_by_hand(tmp_path, {"replicas": (command, {})}, deadline=100)["replicas"]
    assert done.code == 0, done.output
    (line,) = (line for line in done.output.splitlines() if line.startswith("found "))
    replicas, difference, moved = line.split()[1:]
    assert replicas == "2"
    assert float(difference) < 1e-4
    assert float(moved) > 0.01


@pytest.mark.parametrize("mode", [TRAIN, EVAL, PREDICT])
@pytest.mark.parametrize("data_format", ["NCHW", "channels_first"])
def test_nchw_is_rejected_on_the_cpu(
    graph: tf.Graph, config: Any, mode: str, data_format: str
) -> None:
    with pytest.raises(UsageError, match=f"--data_format: received '{data_format}'"):
        call(config, mode, data_format=data_format)
    assert not tf.compat.v1.global_variables()


@pytest.mark.parametrize(
    ("data_format", "gpus", "expected"),
    [
        (None, [], "channels_last"),
        (None, ["GPU:0"], "channels_first"),
        ("NHWC", ["GPU:0"], "channels_last"),
        ("channels_last", [], "channels_last"),
        ("NCHW", ["GPU:0"], "channels_first"),
        ("channels_first", ["GPU:0"], "channels_first"),
    ],
)
def test_the_data_format_follows_the_devices(
    monkeypatch: pytest.MonkeyPatch, data_format: str | None, gpus: list[str], expected: str
) -> None:
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    assert small(data_format=data_format).keras_data_format() == expected


def test_every_layer_uses_the_data_format() -> None:
    last, first = (cifar_resnet(8, data_format=f"channels_{end}") for end in ("last", "first"))
    assert [w.shape for w in first.weights] == [w.shape for w in last.weights]
    assert first.input_shape == last.input_shape == (None, 32, 32, 3)
    shapes = [layer.output_shape for layer in last.layers[2:]]
    transposed = [layer.output_shape for layer in first.layers[3:]]
    assert transposed == [
        (shape[0], shape[3], *shape[1:3]) if len(shape) == 4 else shape for shape in shapes
    ]


def test_without_weight_decay_there_is_no_regularizer() -> None:
    assert [len(cifar_resnet(8, weight_decay=decay).losses) for decay in (None, 0, 0.1)] == [
        0,
        0,
        8,
    ]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"variable_strategy": "cpu"}, "--variable_strategy: received 'cpu'; accepted: CPU, GPU"),
        ({"data_format": "NCWH"}, "--data_format: received 'NCWH'; accepted: NHWC, NCHW"),
        ({"decay_epochs": ()}, "--decay_epochs: received ''; accepted: 1 to 3 epochs"),
        ({"decay_epochs": (3, 2)}, "--decay_epochs: received '3,2'"),
        ({"decay_epochs": (1, 2, 3, 4)}, "--decay_epochs: received '1,2,3,4'"),
    ],
)
def test_invalid_hyper_parameters_are_rejected(values: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        small(**values)


def test_the_model_rejects_an_invalid_data_format() -> None:
    with pytest.raises(UsageError, match="data_format: received 'NCHW'"):
        cifar_resnet(8, data_format="NCHW")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("digits")
    cifar10_records.write(directory, "digits")
    return directory


def test_the_training_input_repeats_one_shard(digits: Path) -> None:
    context = tf.distribute.InputContext(num_input_pipelines=400, input_pipeline_id=7)
    dataset = cifar10.train_input(digits, batch_size=5, distort=False, flip=False)(context)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    images = np.concatenate([batch.numpy() for batch, _ in dataset.take(4)])
    assert images.shape == (20, 32, 32, 3)
    assert len(np.unique(images, axis=0)) == 4, "every 400th of 1257 records, from the 7th"


def test_the_eval_input_is_the_entire_split(digits: Path) -> None:
    batches = list(
        cifar10.eval_input(digits, "validation", batch_size=100)(tf.distribute.InputContext())
    )
    assert [len(labels) for _, labels in batches] == [100, 80]
