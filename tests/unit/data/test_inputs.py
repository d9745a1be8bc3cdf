"""What a user may pass as data: functions with and without a parameter, datasets and arrays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.data.feed import Feed
from tfdist.data.inputs import Data, shard_function
from tfdist.errors import UsageError
from tfdist.strategies.base import Topology
from tfdist.training.data_checks import warn_if_not_shared

pytestmark = pytest.mark.stacks("2.15", "newest")

SHARDS = 3


@pytest.fixture(autouse=True)
def no_global_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow has no function that unsets the seed of another test."""
    from tensorflow.python.eager import context

    monkeypatch.setattr(context.context(), "_seed", None)


def shards(make: Callable[[], Data], *, epochs: int = 1, **options: Any) -> list[list[list[int]]]:
    """For each shard, the batches of some epochs, each task with a random state of its own."""
    result = []
    for shard in range(SHARDS):
        tf.random.uniform([])  # Changes the state of the global generator.
        function = shard_function(make(), **{"trains": True, **options})
        dataset = function(tf.distribute.InputContext(SHARDS, shard))
        result.append(
            [
                tf.nest.flatten(batch)[0].tolist()
                for _ in range(epochs)
                for batch in dataset.as_numpy_iterator()
            ]
        )
    return result


def counts(batches: list[list[list[int]]]) -> dict[int, int]:
    examples = [example for shard in batches for batch in shard for example in batch]
    return {example: examples.count(example) for example in examples}


def whole() -> tf.data.Dataset:
    return tf.data.Dataset.range(41).shuffle(41).batch(2)


@pytest.mark.parametrize("seed", [None, 5])
def test_every_nth_batch_of_one_order(seed: int | None) -> None:
    if seed is not None:
        tf.random.set_seed(seed)
    found = shards(lambda: whole, epochs=2)
    assert [len(shard) for shard in found] == [14, 14, 14]
    assert counts(found) == dict.fromkeys(range(41), 2)
    assert found[0][:7] != found[0][7:], "each epoch has another order"
    assert shards(lambda: whole, epochs=2) == found, "a resumed job has the same order"


def test_in_a_graph_as_parameter_servers_create_it() -> None:
    def variant(shard: int) -> Any:
        context = tf.distribute.InputContext(SHARDS, shard)

        @tf.function(autograph=False)
        def create() -> tf.Tensor:
            return tf.data.experimental.to_variant(shard_function(whole, trains=True)(context))

        return create()

    spec = tf.TensorSpec([None], tf.int64)
    datasets = [tf.data.experimental.from_variant(variant(n), spec) for n in range(SHARDS)]
    found = [[batch.tolist() for batch in each.as_numpy_iterator()] for each in datasets]
    assert counts(found) == dict.fromkeys(range(41), 1)


def test_the_users_random_state_is_left_alone() -> None:
    tf.random.set_seed(3)
    expected = [float(tf.random.uniform([])) for _ in range(2)]
    tf.random.set_seed(3)
    first = float(tf.random.uniform([]))
    shard_function(whole, trains=True)(tf.distribute.InputContext())
    assert [first, float(tf.random.uniform([]))] == expected


def test_arrays_are_shuffled_for_training_and_not_for_evaluation() -> None:
    array = np.arange(41)
    trained = shards(lambda: (array,), batch_size=4)
    assert counts(trained) == dict.fromkeys(range(41), 1)
    evaluated = shards(lambda: (array,), trains=False)
    assert evaluated[1] == [list(range(1, 41, 3))]
    assert trained[1][0] != evaluated[1][0][:4]


def test_a_dataset_is_sharded() -> None:
    plain = tf.data.Dataset.range(41)
    for make in (lambda: plain.batch(2), lambda: plain.shuffle(41, seed=3).batch(2)):
        assert counts(shards(make)) == dict.fromkeys(range(41), 1)


def permuted_by_numpy() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(np.random.permutation(41)).batch(2)


def permuted_by_python() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(random.sample(range(41), 41)).batch(2)


def permuted_by_keras() -> tf.data.Dataset:
    series = tf.keras.utils.timeseries_dataset_from_array
    return series(np.arange(41), None, sequence_length=1, batch_size=2, shuffle=True)


@pytest.mark.parametrize("make", [permuted_by_numpy, permuted_by_python, permuted_by_keras])
@pytest.mark.parametrize("trains", [True, False])
def test_all_generators_have_the_same_seed_in_all_tasks(
    make: Callable[[], tf.data.Dataset], trains: bool
) -> None:
    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    found = shards(lambda: make, trains=trains)
    examples = np.concatenate([np.ravel(batch) for shard in found for batch in shard])
    assert sorted(examples) == list(range(41))
    assert shards(lambda: make, trains=trains) == found, "a resumed job has the same order"
    assert states == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]


def test_the_users_seed_decides_the_order() -> None:
    orders = []
    for seed in (None, 5, 6):
        if seed is not None:
            tf.keras.utils.set_random_seed(seed)
        orders.append(shards(lambda: permuted_by_numpy))
    assert orders[0] != orders[1] != orders[2]


def nondeterministic_call() -> tf.data.Dataset:
    # Each of the four sources is an order of its own.
    dataset = tf.data.Dataset.range(4).interleave(
        lambda source: tf.data.Dataset.range(512).map(lambda place: source + 4 * place),
        cycle_length=4,
        num_parallel_calls=4,
        deterministic=False,
    )
    return dataset.batch(2)


def nondeterministic_options() -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    dataset = tf.data.Dataset.range(4).interleave(
        lambda source: tf.data.Dataset.range(512).map(lambda place: source + 4 * place),
        cycle_length=4,
        num_parallel_calls=4,
    )
    return dataset.batch(2).with_options(options)


@pytest.mark.parametrize("make", [nondeterministic_call, nondeterministic_options])
def test_the_order_is_deterministic(make: Callable[[], tf.data.Dataset]) -> None:
    found = shards(lambda: make)
    assert found[0][:2] == [[0, 1], [2 + 4, 3 + 4]]
    assert counts(found) == dict.fromkeys(range(2048), 1)


@pytest.mark.parametrize("takes_context", [True, False])
def test_each_task_has_a_cache_file_of_its_own(tmp_path: Any, takes_context: bool) -> None:
    path = str(tmp_path / "cache")

    def own(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.range(6).cache(path).batch(1)

    function = shard_function(own if takes_context else lambda: own(None), trains=True)
    iterators = []
    for shard in (0, 1):
        dataset = function(tf.distribute.InputContext(2, shard))
        for _ in range(2):  # epochs
            iterators.append(iter(dataset))
            assert len(list(iterators[-1])) == (6 if takes_context else 3)
    list(function(tf.distribute.InputContext()))
    assert {each.name for each in tmp_path.glob("*.index")} == {
        "cache-0.index",
        "cache-1.index",
        "cache.index",
    }
    assert len(list(tf.data.Dataset.range(6).cache().batch(1))) == 6


def test_a_dataset_from_outside_must_have_one_order_and_no_cache_file(tmp_path: Any) -> None:
    plain = tf.data.Dataset.range(8)
    cached = plain.cache(str(tmp_path / "cache")).batch(2)
    with pytest.raises(UsageError, match=f"cache in the file {tmp_path}/cache"):
        shard_function(cached, trains=True)(tf.distribute.InputContext(2, 1))
    shard_function(plain.cache().batch(2), trains=True)(tf.distribute.InputContext(2, 1))
    assert len(list(shard_function(cached, trains=True)(tf.distribute.InputContext()))) == 4
    with pytest.raises(UsageError, match="deterministic=False"):
        shard_function(
            plain.map(lambda number: number, num_parallel_calls=2, deterministic=False),
            trains=True,
        )
    shuffled = whole()
    with pytest.raises(UsageError, match="shuffles without a seed"):
        shard_function(lambda: shuffled, trains=True)(tf.distribute.InputContext(2, 0))
    shard_function(lambda: shuffled, trains=True)(tf.distribute.InputContext())


class Items:
    """21 batches of pairs; the last is smaller."""

    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> list[Any]:
        points = np.arange(2 * index, min(2 * index + 2, 41))
        return [points, {"row": np.zeros([len(points), 3], np.float32)}]


class Batches(Items, tf.keras.utils.Sequence):
    """The same for Keras."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def on_epoch_begin(self) -> None:
        self.calls.append("begin")

    def on_epoch_end(self) -> None:
        self.calls.append("end")


def test_an_object_with_a_length_and_an_index_is_shared_item_by_item() -> None:
    kept = shards(Items)
    assert counts(kept) == dict.fromkeys(range(41), 1)
    assert kept[1] == [[2 * item, 2 * item + 1] for item in range(1, 21, 3)]
    assert shards(Batches, trains=False) == kept
    shuffled = shards(Batches, epochs=2)
    assert counts(shuffled) == dict.fromkeys(range(41), 2)
    assert shuffled[0][:7] != shuffled[0][7:], "each epoch has another order, as in Keras"
    dataset = shard_function(Items(), trains=True)(tf.distribute.InputContext())
    assert int(dataset.cardinality()) == 21
    assert dataset.element_spec == (
        tf.TensorSpec([None], tf.int64),
        {"row": tf.TensorSpec([None, 3], tf.float32)},
    )


def test_an_epoch_of_a_keras_sequence_begins_and_ends(tiny: TinyTraining, tmp_path: Any) -> None:
    class Points(Batches):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            rows = slice(5 * index, 5 * index + 5)
            return tiny.points[rows], tiny.classes[rows]

    def train(epochs: int) -> list[str]:
        data = Points()
        job = tiny.job()
        history = job.fit(tiny.model, data, epochs=epochs, output_dir=str(tmp_path), verbose=0)
        assert history.params["steps"] == 5
        assert int(history.model.optimizer.iterations) == 5 * epochs
        return data.calls

    assert train(2) == ["begin", "end"] * 2
    assert train(3) == ["end", "end", "begin", "end"], "a resumed job reaches the same order"


def test_a_loader_is_refused_with_the_way_to_convert_it() -> None:
    for loader in (iter([1]), {"x": 1}):
        with pytest.raises(UsageError, match=r"tf.data.Dataset.from_generator\(make, output_sig"):
            shard_function(loader, trains=True)
    with pytest.raises(UsageError, match="where the tasks read their data themselves"):
        shard_function(Items(), trains=True, reads_here=False)


def test_a_job_of_several_tasks_warns_of_data_that_nothing_shares(
    capfd: pytest.CaptureFixture[str],
) -> None:
    warn_if_not_shared(Topology("worker:0", ("worker:0",)))
    warn_if_not_shared(Topology("worker:1", ("worker:0", "worker:1"), is_chief=False))
    assert "warning" not in capfd.readouterr().err
    warn_if_not_shared(Topology("worker:0", ("worker:0", "worker:1")))
    assert "warning: the data of fit is not from job.dataset" in capfd.readouterr().err


def test_data_whose_shards_would_overlap_is_refused() -> None:
    with pytest.raises(UsageError, match="shuffles without a seed"):
        shard_function(whole(), trains=True)
    with pytest.raises(UsageError, match="the workers create it, not this process"):
        shard_function(tf.data.Dataset.range(3), trains=True, reads_here=False)
    with pytest.raises(UsageError, match="received 'dict'"):
        shard_function({"x": 1}, trains=True)


def test_fit_takes_functions_without_a_parameter_and_arrays(
    tiny: TinyTraining, tmp_path: Any
) -> None:
    job = tiny.job()
    history = job.fit(
        tiny.model,
        (tiny.points, tiny.classes),
        validation=(tiny.points, tiny.classes),
        epochs=2,
        output_dir=str(tmp_path / "arrays"),
        batch_size=5,
        verbose=0,
    )
    assert history.params["steps"] == 5
    assert history.history["examples_per_second"]
    dataset = tf.data.Dataset.from_tensor_slices((tiny.points, tiny.classes))
    history = job.fit(
        tiny.model, lambda: dataset.batch(8), epochs=1, output_dir=str(tmp_path / "f"), verbose=0
    )
    assert history.params["steps"] == 3


@pytest.mark.parametrize(
    ("batches", "is_sharded", "expected"),
    [(6, False, True), (6, True, False), (1, False, False), (None, False, False)],
)
def test_an_input_function_that_does_not_shard_is_found(
    batches: int | None, is_sharded: bool, expected: bool
) -> None:
    def data(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = tf.data.Dataset.range(1).repeat(batches)
        shards = context.num_input_pipelines if is_sharded else 1
        return dataset.shard(shards, context.input_pipeline_id if is_sharded else 0)

    context = tf.distribute.InputContext(2, 1)
    assert Feed(data, context, trains=True).is_not_sharded is expected


def test_a_share_of_a_global_batch_is_no_missing_shard() -> None:
    """The batches of a shard are as many as those of the whole dataset in one process."""

    def data(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = tf.data.Dataset.range(48)
        shard = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        return shard.batch(context.get_per_replica_batch_size(12))

    context = tf.distribute.InputContext(2, 1, num_replicas_in_sync=2)
    assert not Feed(data, context, trains=True).is_not_sharded


def test_a_generator_may_shard_when_it_is_read() -> None:
    def data(context: tf.distribute.InputContext) -> tf.data.Dataset:
        def numbers() -> Iterator[int]:
            yield from range(context.input_pipeline_id, 6, context.num_input_pipelines)

        dataset = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([]))
        return dataset.apply(tf.data.experimental.assert_cardinality(3))

    assert not Feed(data, tf.distribute.InputContext(2, 1), trains=True).is_not_sharded


def test_a_cache_in_a_file_is_no_shard(tmp_path: Path) -> None:
    def data(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.range(6).cache(str(tmp_path / "cache"))

    feed = Feed(data, tf.distribute.InputContext(2, 1), trains=True)
    assert feed.is_not_sharded
