"""What is left of an epoch is dealt out to another number of ranks: each example once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import tfdist.job
from tfdist import compat
from tfdist.checkpoints import Checkpointer, Position
from tfdist.flags import JobFlags
from tfdist.strategies.base import DatasetFunction
from tfdist.strategies.datasets import count_batches
from tfdist.strategies.redealt import Hand, Rest, deal, rest_of_epoch

pytestmark = pytest.mark.horovod

EXAMPLES = 50
EPOCHS = 3
STEPS = 17
EVERYTHING = list(range(EXAMPLES))

Make = Callable[[int], tf.data.Dataset]


class Stop(Exception):
    pass


def numbers(*, batch_size: int = 3, shuffle: bool = True, known: bool = True) -> DatasetFunction:
    """Batches of examples that are numbers from 0 below EXAMPLES, and their own targets."""

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = tf.data.Dataset.range(EXAMPLES, output_type=tf.float32)
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        if shuffle:
            dataset = dataset.shuffle(EXAMPLES, seed=5, reshuffle_each_iteration=True)
        if not known:
            dataset = dataset.filter(lambda _: True)
        return dataset.batch(batch_size).map(lambda x: (x[:, tf.newaxis] / EXAMPLES, x))

    return dataset_fn


def sharded(dataset_fn: DatasetFunction, ranks: int) -> Make:
    return lambda rank: dataset_fn(tf.distribute.InputContext(ranks, rank, ranks))


def rests(dataset_fn: DatasetFunction, position: Position, ranks: int) -> list[Rest]:
    first, _ = position.earlier[0]
    shard = sharded(dataset_fn, first)
    counts = [count_batches(shard(index)) for index in range(first)]
    usual = max(count_batches(sharded(dataset_fn, ranks)(rank)) for rank in range(ranks))
    iterators = compat.iterators_before(compiled("sgd"), position.epoch, usual)
    return [
        rest_of_epoch(
            shard,
            counts,
            position,
            ranks=ranks,
            rank=rank,
            usual_steps=usual,
            iterators=iterators,
        )
        for rank in range(ranks)
    ]


def batches(dataset: tf.data.Dataset) -> list[list[int]]:
    return [[int(example) for example in targets] for _, targets in dataset]


def flat(lists: Iterable[list[int]]) -> list[int]:
    return [example for batch in lists for example in batch]


def compiled(optimizer: Any, loss: Any = "mse") -> tf.keras.Model:
    initial = tf.keras.initializers.Constant(0.5)
    layer = tf.keras.layers.Dense(1, kernel_initializer=initial)
    model = tf.keras.Sequential([tf.keras.Input((1,)), layer])
    # Eagerly, so that the loss can take down what it is given.
    model.compile(optimizer, loss=loss, run_eagerly=True)
    return model


def fit(
    output: Path,
    dataset_fn: DatasetFunction,
    *,
    stop_after: int | None = None,
    scales: bool = True,
    **options: Any,
) -> tuple[list[list[int]], tf.keras.Model]:
    """Trains as the one rank of a job; returns the examples of each epoch, and the model.

    It saves after each step, and breaks off after so many, counted over all epochs.
    """
    job = tfdist.job.create(JobFlags(strategy="horovod"), {})
    used: list[list[int]] = []

    def loss(targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        used[-1].extend(int(target) for target in targets)
        return tf.square(targets / EXAMPLES - predictions[:, 0])

    def begin(_: int, logs: Any = None) -> None:
        used.append([])

    left = iter(range(stop_after or 10**9, 0, -1))

    def end_step(_: int, logs: Any = None) -> None:
        # Keras 3 shows the steps that it passes over, too.
        if used[-1] and next(left) == 1:
            raise Stop

    rate = job.scaled_lr(0.1) if scales else 0.1
    model = compiled(job.optimizer(tf.keras.optimizers.SGD(rate, momentum=0.5)), loss)
    watching = tf.keras.callbacks.LambdaCallback(on_epoch_begin=begin, on_batch_end=end_step)
    callbacks = [*job.callbacks(str(output), save_steps=1, keep=1), watching]
    try:
        model.fit(job.dataset(dataset_fn), epochs=EPOCHS, callbacks=callbacks, verbose=0, **options)
    except Stop:
        assert stop_after
    return used, model


def save(output: Path, position: Position) -> None:
    """A checkpoint as a job would have left it there, of a learning rate of 0.3."""
    model = compiled(tf.keras.optimizers.SGD(0.3, momentum=0.5))
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(7)
    Checkpointer(model, output / "checkpoints", writes=True).save(position, number=7)


def newest(output: Path, model: tf.keras.Model) -> Position:
    checkpointer = Checkpointer(model, output / "checkpoints")
    checkpointer.restore()
    return checkpointer.position


def single(hand: Hand) -> list[tuple[int, int]]:
    return [(shard, batch) for shard, chosen in hand for batch in chosen]


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    changes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=4),
    made=st.integers(0, 9),
)
def test_each_batch_is_used_once_and_hands_differ_by_one_at_most(
    counts: list[int], changes: list[tuple[int, int]], made: int
) -> None:
    segments = [(len(counts), made), *changes]
    used: Counter[tuple[int, int]] = Counter()
    for last in range(len(segments)):
        before = [*segments[:last], (segments[last][0], 0)]
        hands = [single(hand) for hand in deal(counts, before)]
        if last:
            sizes = [len(hand) for hand in hands]
            assert max(sizes) - min(sizes) <= 1
        for hand in hands:
            used.update(hand[: segments[last][1]])
    for left in deal(counts, segments):
        used.update(single(left))
    everything = [(shard, batch) for shard, count in enumerate(counts) for batch in range(count)]
    assert used == Counter(everything)


@pytest.mark.parametrize(("batch_size", "known"), [(1, True), (3, False), (7, True)])
@pytest.mark.parametrize("changes", [(2, 1), (3, 2, 5), (4, 1, 2, 3)])
def test_each_example_is_used_once_however_the_ranks_change(
    batch_size: int, known: bool, changes: tuple[int, ...]
) -> None:
    dataset_fn = numbers(batch_size=batch_size, known=known)
    first, *others = changes
    made = 2
    used: list[int] = []
    for rank in range(first):
        shard = sharded(dataset_fn, first)(rank)
        for _ in range(compat.iterators_before(compiled("sgd"), 1, STEPS) + (not known)):
            iter(shard)
        used += flat(batches(shard.take(made)))
    position = Position(1, earlier=((first, made),))
    for number, ranks in enumerate(others, 1):
        parts = [batches(rest.dataset) for rest in rests(dataset_fn, position, ranks)]
        assert len({len(part) for part in parts}) == 1, "all ranks need equally many batches"
        end = made if number < len(others) else None
        used += flat(batch for part in parts for batch in part[:end])
        position = Position(1, earlier=(*position.earlier, (ranks, made)))
    assert sorted(set(used)) == EVERYTHING
    assert len(used) - EXAMPLES < others[-1], "only ranks that lack a batch repeat an example"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("epoch", [0, 1])
def test_the_rest_is_what_a_job_has_not_read(tmp_path: Path, known: bool, epoch: int) -> None:
    dataset_fn = numbers(known=known)
    used, model = fit(tmp_path, dataset_fn, stop_after=STEPS * epoch + 5)
    position = newest(tmp_path, model)
    assert position == Position(epoch, (5,), replicas=1)
    anew = position.dealt_anew()
    assert anew is not None
    left = [flat(batches(rest.dataset)) for rest in rests(dataset_fn, anew, 2)]
    assert sorted(flat([used[epoch], *left])) == EVERYTHING


def constant_global_batch(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return numbers(batch_size=12 // context.num_replicas_in_sync)(context)


@pytest.mark.parametrize(
    ("dataset_fn", "earlier", "step", "batches_per_step"),
    [
        (numbers(), ((2, 4),), 7, 1),
        (numbers(known=False), ((2, 4), (3, 1)), 10, 1),
        (constant_global_batch, ((3, 1),), 1, 3),
    ],
)
def test_one_rank_goes_on_with_the_epoch_of_several(
    tmp_path: Path,
    dataset_fn: DatasetFunction,
    earlier: tuple[tuple[int, int], ...],
    step: int,
    batches_per_step: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    *before, (replicas, made) = earlier
    for output in (whole, cut):
        save(output, Position(1, (made,) * replicas, replicas, tuple(before)))
    (rest,) = rests(dataset_fn, Position(1, earlier=earlier), 1)
    left = flat(batches(rest.dataset))

    expected, uncut = fit(whole, dataset_fn)
    assert f"going on after step {step} of epoch 2 of 3, dealt out anew to 1 replica," in (
        capfd.readouterr().err
    )
    assert expected[0] == left
    assert sorted(expected[1]) == EVERYTHING
    assert len(expected) == 2

    first, model = fit(cut, dataset_fn, stop_after=2)
    assert newest(cut, model) == Position(1, (2 * batches_per_step,), 1, earlier)
    second, model = fit(cut, dataset_fn)
    assert f"going on after step {step + 2} of epoch 2 of 3 and" in capfd.readouterr().err
    assert first[0] + second[0] == left
    assert second[1:] == expected[1:]
    for found, weights in zip(model.get_weights(), uncut.get_weights(), strict=True):
        np.testing.assert_array_equal(found, weights)
    assert newest(cut, model) == Position(EPOCHS, replicas=1)


@pytest.mark.parametrize(
    ("position", "options"),
    [
        (Position(1, (2, 2), replicas=2), {"steps_per_epoch": 4}),
        (Position(1, (3, 2), replicas=1), {}),
        (Position(1, (2,), replicas=2), {}),
    ],
)
def test_an_epoch_that_cannot_be_divided_begins_anew(
    tmp_path: Path, position: Position, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, position)
    used, _ = fit(tmp_path, numbers(shuffle=False), **options)
    assert "epoch 2 begins anew with all of its data" in caplog.text
    assert used[0] == EVERYTHING[: 3 * options.get("steps_per_epoch", STEPS)]


def test_an_epoch_of_which_nothing_is_left_is_complete(tmp_path: Path) -> None:
    save(tmp_path, Position(1, (9, 9), replicas=2))
    used, _ = fit(tmp_path, numbers())
    assert [sorted(epoch) for epoch in used] == [EVERYTHING]


@pytest.mark.parametrize(
    ("replicas", "scales", "rate"), [(3, True, 0.1), (3, False, 0.3), (1, True, 0.3)]
)
@pytest.mark.parametrize("steps", [0, 2])
def test_the_learning_rate_of_the_checkpoint_is_scaled_once(
    tmp_path: Path,
    replicas: int,
    scales: bool,
    rate: float,
    steps: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    save(tmp_path, Position(1, (steps,) * replicas if steps else (), replicas))
    _, model = fit(tmp_path, numbers(), stop_after=1, scales=scales)
    assert float(model.optimizer.learning_rate) == pytest.approx(rate)
    said = "tfdist: the checkpoint is of 3 replicas, the learning rate is 0.1 for 1 replica\n"
    assert (said in capfd.readouterr().err) == (rate == 0.1)
    _, model = fit(tmp_path, numbers(), scales=scales)
    assert float(model.optimizer.learning_rate) == pytest.approx(rate)
    assert "learning rate" not in capfd.readouterr().err
