"""The MNIST model function: its network, training step, metrics and export."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist.entry
import tfdist.estimator
from estimators import mnist
from tests.support.processes import run_by_hand
from tfdist.config.flags import JobFlags
from tfdist.data import mnist as data
from tfdist.estimator import EstimatorJob

pytestmark = pytest.mark.stacks("2.15")

MODES = tf.estimator.ModeKeys
RATE = 0.25


def batch(size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(size)
    return random.rand(size, 28, 28, 1).astype(np.float32), np.arange(size, dtype=np.int32) % 10


def config(
    optimizer: Callable[[Any], Any] = lambda optimizer: optimizer,
) -> SimpleNamespace:
    return SimpleNamespace(job=SimpleNamespace(wrap_optimizer=optimizer))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The mean cross-entropy of a batch, computed with NumPy."""
    log_sum = np.log(np.exp(logits).sum(axis=1))
    return float(np.mean(log_sum - logits[np.arange(len(labels)), labels]))


# The network.


def test_the_network_has_the_documented_layers() -> None:
    with tf.Graph().as_default():
        logits = mnist.logits(tf.constant(batch()[0]), training=False)
        shapes = [variable.shape.as_list() for variable in tf.compat.v1.trainable_variables()]
    assert logits.dtype == tf.float32 and logits.shape == [6, 10]
    assert shapes == [
        *([5, 5, 1, 32], [32]),
        *([5, 5, 32, 64], [64]),
        *([7 * 7 * 64, 1024], [1024]),
        *([1024, 10], [10]),
    ]


@pytest.mark.parametrize(
    ("training", "dropout", "varies"), [(True, 0.4, True), (True, 0.0, False), (False, 0.4, False)]
)
def test_dropout_is_only_applied_in_training(training: bool, dropout: float, varies: bool) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        logits = mnist.logits(tf.constant(batch()[0]), training=training, dropout=dropout)
        session.run(tf.compat.v1.global_variables_initializer())
        first, second = (session.run(logits) for _ in range(2))
    assert (not np.array_equal(first, second)) == varies


def test_the_dropout_rate_is_a_parameter() -> None:
    def dropped(params: dict[str, Any]) -> float:
        images, labels = batch()
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            mnist.model_fn(
                tf.constant(images),
                tf.constant(labels),
                MODES.TRAIN,
                {"learning_rate": RATE, **params},
                config(),
            )
            kept = graph.get_tensor_by_name("sequential/dropout/dropout/GreaterEqual:0")
            session.run(tf.compat.v1.global_variables_initializer())
            return 1 - float(session.run(kept).mean())

    assert dropped({}) == pytest.approx(0.4, abs=0.03)
    assert dropped({"dropout": 0.8}) == pytest.approx(0.8, abs=0.03)


# Training.


def test_a_step_applies_momentum_to_the_gradient_of_the_mean_cross_entropy() -> None:
    images, labels = batch()
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        params = {"learning_rate": RATE, "dropout": 0.0}
        spec = mnist.model_fn(
            tf.constant(images), tf.constant(labels), MODES.TRAIN, params, config()
        )
        variable = tf.compat.v1.trainable_variables()[-1]
        logits = graph.get_tensor_by_name("sequential/dense_1/BiasAdd:0")
        (gradient,) = tf.gradients(spec.loss, [variable])
        session.run(tf.compat.v1.global_variables_initializer())
        values, gradients = [session.run(variable)], []
        for _ in range(2):
            loss, scores, slope = session.run([spec.loss, logits, gradient])
            assert loss == pytest.approx(cross_entropy(scores, labels), rel=1e-5)
            gradients.append(slope)
            session.run(spec.train_op)
            values.append(session.run(variable))
        assert session.run(tf.compat.v1.train.get_global_step()) == 2
    assert np.abs(gradients[0]).max() > 1e-3
    np.testing.assert_allclose(values[1], values[0] - RATE * gradients[0], atol=1e-6)
    velocity = 0.9 * gradients[0] + gradients[1]
    np.testing.assert_allclose(values[2], values[1] - RATE * velocity, atol=1e-6)


def test_training_uses_the_jobs_optimizer() -> None:
    given: list[Any] = []

    def frozen(optimizer: Any) -> Any:
        given.append(optimizer)
        return tf.compat.v1.train.GradientDescentOptimizer(0.0)

    images, labels = batch()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        spec = mnist.model_fn(
            tf.constant(images),
            tf.constant(labels),
            MODES.TRAIN,
            {"learning_rate": RATE},
            config(frozen),
        )
        variables = tf.compat.v1.trainable_variables()
        session.run(tf.compat.v1.global_variables_initializer())
        before = session.run(variables)
        session.run(spec.train_op)
        after = session.run(variables)
    assert [type(optimizer) for optimizer in given] == [tf.compat.v1.train.MomentumOptimizer]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_training_needs_a_learning_rate() -> None:
    images, labels = batch()
    with tf.Graph().as_default(), pytest.raises(KeyError, match="learning_rate"):
        mnist.model_fn(tf.constant(images), tf.constant(labels), MODES.TRAIN, {}, config())


_REPLICAS = """
import sys

import tfdist.estimator
import tfdist.entry

import numpy as np
import tensorflow as tf

from estimators import mnist
from tfdist.estimator import EstimatorJob
from tfdist.config.flags import JobFlags

strategy, output_dir, batch_size = sys.argv[1:]
batch_size = int(batch_size)
devices = 2 if strategy == "mirrored" else None
options = JobFlags.of(strategy=strategy, num_cpu_devices=devices)
job = tfdist.entry.create_of(EstimatorJob, options, {})
images = np.random.RandomState(0).rand(24, 28, 28, 1).astype(np.float32)
labels = np.arange(24, dtype=np.int32) % 10


def train_input(input_context):
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    return dataset.repeat().batch(batch_size, drop_remainder=True)


estimator = tf.estimator.Estimator(
    mnist.model_fn,
    # Some initial weights bring an activation so near to zero that rounding decides.
    config=tfdist.estimator.RunConfig(job, output_dir, tf_random_seed=1),
    params={"learning_rate": 0.05, "dropout": 0.0},
)
tfdist.estimator.train(estimator, train_input, max_steps=5)
"""


def test_two_mirrored_replicas_give_the_same_weights_as_one_with_twice_the_batch(
    tmp_path: Path,
) -> None:
    script = tmp_path / "replicas.py"
    script.write_text(_REPLICAS)

    def weights(strategy: str, batch_size: int) -> dict[str, np.ndarray]:
        output_dir = tmp_path / strategy
        command = [sys.executable, str(script), strategy, str(output_dir), str(batch_size)]
        ended = run_by_hand(tmp_path, {strategy: (command, {})}, deadline=100)[strategy]
        assert ended.code == 0, ended.output
        names = [name for name, _ in tf.train.list_variables(str(output_dir))]
        return {name: tf.train.load_variable(str(output_dir), name) for name in names}

    one = weights("one_device", 8)
    # The second training starts from the initial weights of the first one.
    (tmp_path / "mirrored").mkdir()
    for file in (tmp_path / "one_device").glob("model.ckpt-0.*"):
        shutil.copy(file, tmp_path / "mirrored")
    (tmp_path / "mirrored" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"')
    two = weights("mirrored", 4)
    assert set(one) == set(two) and len(one) == 8 * 2 + 1
    assert one["global_step"] == two["global_step"] == 5
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=1e-6, err_msg=name)


# Evaluation, prediction, and an end-to-end test.


def test_evaluation_returns_the_loss_of_a_batch_and_the_accuracy_of_all_batches() -> None:
    images, _ = batch(10)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = tf.compat.v1.placeholder(tf.float32, [None, 28, 28, 1])
        labels = tf.compat.v1.placeholder(tf.int32, [None])
        logits = mnist.logits(fed, training=False)
        spec = mnist.model_fn(fed, labels, MODES.EVAL, {}, config())
        assert set(spec.eval_metric_ops) == {"accuracy"}
        assert spec.train_op is None
        value, update = spec.eval_metric_ops["accuracy"]
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(tf.compat.v1.local_variables_initializer())
        # The second network is that of `model_fn`; it gets the weights of the first.
        variables = tf.compat.v1.trainable_variables()
        for mine, other in zip(variables[:8], variables[8:], strict=True):
            other.load(session.run(mine), session)
        scores = session.run(logits, {fed: images})
        correct = scores.argmax(axis=1)
        wrong = (correct + 1) % 10
        for part, answers in ((slice(0, 8), correct), (slice(8, 10), wrong)):
            feed = {fed: images[part], labels: answers[part]}
            loss = session.run([spec.loss, update], feed)[0]
            assert loss == pytest.approx(cross_entropy(scores[part], answers[part]), rel=1e-5)
        assert session.run(value) == pytest.approx(0.8)


def test_prediction_needs_no_job_and_no_parameters() -> None:
    images, _ = batch(5)
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        spec = mnist.model_fn(
            tf.constant(images), None, MODES.PREDICT, {}, tf.estimator.RunConfig()
        )
        session.run(tf.compat.v1.global_variables_initializer())
        logits, found = session.run(
            [graph.get_tensor_by_name("sequential/dense_1/BiasAdd:0"), spec.predictions]
        )
    assert found["classes"].dtype == np.int64
    np.testing.assert_array_equal(found["classes"], logits.argmax(axis=1))
    powers = np.exp(logits)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["probabilities"], expected, rtol=1e-5)


def test_an_estimator_learns_the_digits_and_its_export_gives_the_same_predictions(
    tmp_path: Path,
) -> None:
    digits = data.load("digits")
    job = tfdist.entry.create_of(EstimatorJob, JobFlags(), {})
    estimator = tf.estimator.Estimator(
        mnist.model_fn,
        config=tfdist.estimator.RunConfig(job, tmp_path, tf_random_seed=1),
        params={"learning_rate": job.scaled_lr(0.02)},
    )

    def train_input(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        return data.dataset(
            *digits["train"], input_context, batch_size=50, shuffle=True, seed=1, repeat=True
        )

    def eval_input() -> tf.data.Dataset:
        return data.dataset(*digits["test"], batch_size=100)

    metrics = tfdist.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(train_input, max_steps=100),
        tf.estimator.EvalSpec(eval_input, steps=None),
    )
    assert metrics is not None
    assert metrics["accuracy"] >= 0.93

    predictions = list(estimator.predict(lambda: eval_input().map(lambda images, _: images)))
    classes = np.array([prediction["classes"] for prediction in predictions])
    assert np.mean(classes == digits["test"].labels) == pytest.approx(metrics["accuracy"])

    exported = tfdist.estimator.export(estimator, mnist.serving_input_receiver_fn)
    model = tf.saved_model.load(str(exported))
    signature = model.signatures["serving_default"]
    image = signature.structured_input_signature[1]["image"]
    assert image.shape.as_list() == [None, 28, 28, 1] and image.dtype == tf.float32
    ((images, _),) = data.dataset(*digits["test"], batch_size=360)
    served = signature(image=images)
    assert set(served) == {"classes", "probabilities"}
    np.testing.assert_array_equal(served["classes"], classes)
    probabilities = np.array([prediction["probabilities"] for prediction in predictions])
    np.testing.assert_allclose(served["probabilities"], probabilities, atol=1e-5)
