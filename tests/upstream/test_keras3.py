"""Minimal reproductions of the Keras 3 bugs that tfdist works around.

A test fails when upstream has fixed its bug: then remove the workaround that it names.
"""

from __future__ import annotations

import pytest

from tests.support.new_process import run
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.21", horovod=("newest",)), pytest.mark.timeout(120)]

_TWO_DEVICES = """
import numpy as np
import tensorflow as tf

cpu, devices = tf.config.list_physical_devices("CPU")[0], ["CPU:0", "CPU:1"]
logical = tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(cpu, [logical] * 2)
"""
# One task that pretends to be one of two; Keras runs other code with a single task.
_ONE_OF_TWO_TASKS = """
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
strategy.extended._in_multi_worker_mode = lambda: True
strategy.extended._num_workers = 2
"""


def test_a_batch_is_read_before_the_first_epoch() -> None:
    """The workaround is `keras3_symbolic_build`."""
    lines = run(
        _TWO_DEVICES,
        """
        with tf.distribute.MirroredStrategy(devices).scope():
            model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        begun = []
        generator = lambda: begun.append(1) or iter([([1.0], [1.0])] * 4)
        specs = (tf.TensorSpec([1]), tf.TensorSpec([1]))
        dataset = tf.data.Dataset.from_generator(generator, output_signature=specs).batch(2)
        model.fit(dataset, verbose=0)
        print(len(begun))
        """,
    )
    assert lines == ["2"]


def test_scalar_metrics_of_a_step_are_reduced_over_a_dimension() -> None:
    """The workaround is `ReducesForKeras3`."""
    lines = run(
        _ONE_OF_TWO_TASKS,
        """
        from keras.src.backend.tensorflow.trainer import reduce_per_replica

        try:
            reduce_per_replica({"loss": tf.constant(1.0)}, strategy, "auto")
        except ValueError as error:
            print("Invalid reduction dimension" in str(error))
        """,
    )
    assert lines == ["True"]


def test_the_results_of_each_metric_are_reduced_separately() -> None:
    """The workaround is `keras3_step_results`."""
    lines = run(
        _ONE_OF_TWO_TASKS,
        """
        from keras.src.backend.tensorflow import trainer
        from tfdist.upstream import keras3_step_results

        shapes = []
        strategy.reduce = lambda operation, value, axis: (shapes.append(value.shape), value)[1]
        for fix in (lambda: None, keras3_step_results.apply):
            fix()
            shapes.clear()
            results = {"loss": tf.constant(1.0), "mae": tf.constant(2.0)}
            found = trainer.reduce_per_replica(results, strategy, "auto")
            print(shapes == [[]] * 2, shapes == [[2]], *(float(each) for each in found.values()))
        """,
    )
    assert lines == ["True", "False", "1.0", "2.0", "False", "True", "1.0", "2.0"]


def test_a_scalar_loss_is_not_divided_by_the_number_of_replicas() -> None:
    """The workaround is `keras3_loss`."""
    lines = run(
        _TWO_DEVICES,
        """
        import keras

        class Each(keras.losses.Loss):
            def call(self, y_true, y_pred):
                return y_pred

        class Mean(keras.losses.Loss):
            def call(self, y_true, y_pred):
                return tf.reduce_mean(y_pred)

        strategy = tf.distribute.MirroredStrategy(devices)
        for loss in (Each(), Mean()):
            losses = strategy.run(lambda: loss(tf.ones([1]), tf.ones([1])))
            print(sum(float(value) for value in losses.values))
        """,
    )
    assert lines == ["1.0", "2.0"]


def test_gradients_are_clipped_before_they_are_summed() -> None:
    """The workaround is `keras3_optimizer`."""
    lines = run(
        _TWO_DEVICES,
        """
        strategy = tf.distribute.MirroredStrategy(devices)
        with strategy.scope():
            variable = tf.Variable(0.0)
            optimizer = tf.keras.optimizers.SGD(1.0, clipvalue=1.0)
            optimizer.build([variable])

        @tf.function
        def step():
            def in_replica():
                replica = tf.distribute.get_replica_context().replica_id_in_sync_group
                # 4 in replica 0 and -2 in replica 1: their sum is 2.
                optimizer.apply([4.0 - 6.0 * tf.cast(replica, tf.float32)], [variable])

            strategy.run(in_replica)

        step()
        print(variable.numpy())  # -1 if the sum were clipped
        """,
    )
    assert lines == ["0.0"]


def test_the_warning_of_a_missing_gradient_is_an_error() -> None:
    """The workaround is `keras3_missing_gradients`."""
    lines = run(
        _TWO_DEVICES,
        """
        from keras.src.backend.tensorflow import optimizer
        from tfdist.upstream import keras3_missing_gradients

        variable = tf.Variable(1.0)
        pairs = [(None, variable), (tf.ones([]), variable)]
        try:
            optimizer.filter_empty_gradients(pairs)
        except TypeError as error:
            print("category" in str(error))
        keras3_missing_gradients.apply()
        print(len(optimizer.filter_empty_gradients(pairs)))
        try:
            optimizer.filter_empty_gradients(pairs[:1])
        except ValueError as error:
            print("No gradients" in str(error))
        """,
    )
    assert lines == ["True", "1", "True"]


def test_moving_statistics_are_those_of_the_first_replica() -> None:
    """The workaround is `AveragedStatistics`."""
    lines = run(
        _TWO_DEVICES,
        """
        strategy = tf.distribute.MirroredStrategy(devices)
        with strategy.scope():
            inputs = tf.keras.Input([1])
            outputs = tf.keras.layers.BatchNormalization(momentum=0.0)(inputs)
            model = tf.keras.Model(inputs, outputs)
            model.compile("sgd", "mse")
        # The replicas' batches have the means 1 and 3.
        features = np.array([[1.0], [1.0], [3.0], [3.0]])
        model.fit(features, features, batch_size=4, shuffle=False, verbose=0)
        print(model.layers[-1].moving_mean.numpy()[0])
        """,
    )
    assert lines == ["1.0"]


def test_moving_statistics_are_nan_after_an_empty_batch() -> None:
    """The workaround is `keep_on_empty_batches`."""
    lines = run(
        "import tensorflow as tf",
        """
        layer = tf.keras.layers.BatchNormalization()
        layer.build([None, 1])
        layer(tf.zeros([0, 1]), training=True)
        print(layer.moving_mean.numpy()[0])
        """,
    )
    assert lines == ["nan"]


def test_central_storage_does_not_support_moving_statistics() -> None:
    """The workaround is the strategy of `tfdist.strategies.central_storage`."""
    lines = run(
        _TWO_DEVICES,
        """
        strategy = tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0")
        with strategy.scope():
            layers = [tf.keras.layers.Input([1]), tf.keras.layers.BatchNormalization()]
            model = tf.keras.Sequential(layers)
            model.compile("sgd", "mse")
        try:
            model.fit(tf.ones([4, 1]), tf.ones([4, 1]), batch_size=4, verbose=0)
        except ValueError as error:
            print("aggregation" in str(error))
        """,
    )
    assert lines == ["True"]


def test_fit_does_not_accept_a_dataset_with_parameter_servers() -> None:
    """The workaround is `steps.keras3`."""
    with hold_ports(2) as ports:
        lines = run(
            f"""
            import tensorflow as tf

            cluster = tf.train.ClusterSpec(
                {{"worker": ["127.0.0.1:{ports[0]}"], "ps": ["127.0.0.1:{ports[1]}"]}}
            )
            """,
            """
            servers = [tf.distribute.Server(cluster, job, 0) for job in ("worker", "ps")]
            strategy = tf.distribute.ParameterServerStrategy(
                tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
            )
            with strategy.scope():
                model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            data = tf.data.Dataset.from_tensors((tf.ones([1, 1]), tf.ones([1, 1]))).repeat()
            try:
                model.fit(data, steps_per_epoch=1, verbose=0)
            except ValueError as error:
                print("create_per_worker_dataset" in str(error), flush=True)
            """,
        )
    assert lines == ["True"]


def test_the_mean_of_no_losses_is_nan() -> None:
    """The workaround is `keras3_loss`."""
    lines = run(
        "import tensorflow as tf",
        """
        import keras

        class Mean(keras.losses.Loss):
            def call(self, y_true, y_pred):
                return tf.reduce_mean(y_pred)

        print(float(Mean()(tf.ones([0]), tf.ones([0]))))
        """,
    )
    assert lines == ["nan"]


def test_adding_to_a_variable_is_not_atomic() -> None:
    """The workaround is `keras3_assign_add.add_in_one_operation`."""
    lines = run(
        "import tensorflow as tf",
        """
        import keras

        variable = keras.Variable(0.0)

        @tf.function
        def add():
            variable.assign_add(1.0)

        kinds = {operation.type for operation in add.get_concrete_function().graph.get_operations()}
        print("AssignAddVariableOp" in kinds, "AssignVariableOp" in kinds)
        """,
    )
    assert lines == ["False", "True"]


def test_an_execution_of_several_steps_has_them_in_a_cond() -> None:
    """The workaround is `keras3_executions`."""
    lines = run(
        "import tensorflow as tf",
        """
        import inspect
        import keras
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

        source = inspect.getsource(TensorFlowTrainer._make_function)
        print("tf.cond(" in source, "one_step_on_data(next_optional_inputs" in source)

        class Two(keras.callbacks.Callback):
            last_steps = []

            def on_train_begin(self, logs=None):
                self.model.steps_per_execution = 2

            def on_train_batch_end(self, batch, logs=None):
                self.last_steps.append(batch)

        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        two = Two()
        model.fit(tf.ones([4, 1]), tf.ones([4, 1]), batch_size=1, callbacks=[two], verbose=0)
        print(*two.last_steps)
        """,
    )
    # It would be 1 and 3 if the iterator knew of the change, as the train function does.
    assert lines == ["True", "True", "0", "1"]


@pytest.mark.horovod
def test_horovods_wrapper_of_a_keras_3_optimizer_does_not_reduce_gradients() -> None:
    """The workaround is `Horovod.wrap_optimizer`."""
    lines = run(
        "import tensorflow as tf",
        """
        import horovod.tensorflow as hvd

        hvd.init()
        variable, reduced = tf.Variable(0.0), []
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
        type(optimizer)._allreduce = lambda self, gradients, variables: reduced.append(gradients)
        optimizer.apply_gradients([(tf.constant(1.0), variable)])
        print(variable.numpy(), reduced)
        """,
    )
    assert lines == ["-1.0", "[]"]
