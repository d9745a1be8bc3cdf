"""Workarounds for bugs and missing APIs of TensorFlow, Keras and Horovod: one per module.

A workaround that changes a class or a function of another library does so in `apply()`. A job calls
it when needed; importing changes nothing. The canary test of a workaround fails when upstream has
fixed the bug, so that the workaround can be removed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fix:
    """A row of the table of workarounds.

    Attributes:
      module: the module in this package; with dots, the module of a strategy that works around it.
      bug: the bug.
      upstream: a public thread about the bug, or its source file.
      versions: the supported versions that have the bug.
      canary: the test that fails when upstream has fixed the bug, as `file::test`.
    """

    module: str
    bug: str
    upstream: str
    versions: str
    canary: str


_KERAS3 = "tests/upstream/test_keras3.py::test_"
_UPSTREAM = "tests/upstream/test_upstream.py::test_"

FIXES = (
    Fix(
        "strategies.replicas.collective_sparse_gradients",
        "replicas send a row of a table each time that a batch has it, and never sum a table; "
        "in a TF1 graph, they need the same number of rows in each step",
        "tensorflow/python/distribute/cross_device_utils.py",
        "all",
        "tests/upstream/test_collective_sparse_gradients.py"
        "::test_replicas_send_a_row_as_often_as_they_have_it",
    ),
    Fix(
        "horovod_sources",
        "Horovod ignores the interface of a job that spans machines, spins while it waits for a "
        "lock, and does not compile against TensorFlow 2.19 and newer",
        "horovod/common/gloo/gloo_context.cc, third_party/gloo/gloo/transport/tcp/pair.cc, "
        "horovod/tensorflow/xla_mpi_ops.cc",
        "Horovod 0.28.1",
        "tests/upstream/test_horovod_sources.py::test_other_sources_are_refused",
    ),
    Fix(
        "keras_optimizer_iterations",
        "a canned Estimator sets the counter of an optimizer once for each replica",
        "tensorflow_estimator/python/estimator/canned/dnn.py",
        "up to 2.15 (Estimators)",
        "tests/upstream/test_estimator_fixes.py::test_the_counter_of_an_optimizer_is_set_once",
    ),
    Fix(
        "keras_denominators",
        "the loss of a replica is divided by what the replica has, and nothing tells by what",
        "keras/src/losses/loss.py, tf_keras/src/utils/losses_utils.py",
        "all",
        "tests/upstream/test_keras_denominators.py"
        "::test_the_losses_of_replicas_are_divided_by_what_each_has",
    ),
    Fix(
        "strategies.replicas.keras_local_calls",
        "predict and evaluate of MultiWorkerMirroredStrategy wait for all tasks",
        "keras/src/backend/tensorflow/trainer.py",
        "all",
        "tests/upstream/test_private_names.py::"
        "test_a_model_has_no_public_way_to_compute_without_its_strategy",
    ),
    Fix(
        "global_seed",
        "nothing returns the global seed and the state of its generator",
        "tensorflow/python/eager/context.py",
        "all",
        "tests/upstream/test_global_seed.py::test_there_is_no_public_getter",
    ),
    Fix(
        "wrapped_variables",
        "the wrappers of variables have no public way to the variable inside",
        "tensorflow/python/distribute/ps_values.py",
        "all",
        "tests/upstream/test_wrapped_variables.py::test_the_conversion_of_a_wrapper_passes_its_methods_by",
    ),
    Fix(
        "replica_seeds",
        "all replicas draw the same random numbers, such as the masks of Dropout",
        "keras/src/random/seed_generator.py",
        "all",
        "tests/upstream/test_replica_seeds.py::test_keras_draws_the_same_in_all_replicas",
    ),
    Fix(
        "synchronized_layers",
        "a synchronized layer does not reduce its statistics over processes that TensorFlow does "
        "not know",
        "keras/src/layers/normalization/batch_normalization.py",
        "all (Horovod)",
        "tests/upstream/test_synchronized_layers.py"
        "::test_keras_reduces_the_statistics_of_a_layer_with_the_context_of_a_replica",
    ),
    Fix(
        "keras3_reduce",
        "Keras 3 calls Strategy.reduce with nested batches, and with an axis for scalars",
        "keras/src/backend/tensorflow/trainer.py",
        "Keras 3",
        _KERAS3 + "the_batch_of_a_symbolic_build_is_reduced_as_a_nested_structure",
    ),
    Fix(
        "keras3_step_results",
        "the results of each metric of a step are reduced separately",
        "keras/src/backend/tensorflow/trainer.py",
        "Keras 3",
        _KERAS3 + "the_results_of_each_metric_are_reduced_separately",
    ),
    Fix(
        "keras3_loss",
        "scalar losses are not divided by the number of replicas; the mean of no losses is NaN",
        "keras/src/losses/loss.py",
        "Keras 3",
        _KERAS3 + "a_scalar_loss_is_not_divided_by_the_number_of_replicas",
    ),
    Fix(
        "keras3_optimizer",
        "gradients are clipped, accumulated and checked before they are summed",
        "keras/src/backend/tensorflow/optimizer_distribute.py",
        "Keras 3",
        _KERAS3 + "gradients_are_clipped_before_they_are_summed",
    ),
    Fix(
        "keras3_repeated_rows",
        "an optimizer squares each occurrence of a row of a table, in place of their sum",
        "keras/src/optimizers/adam.py",
        "Keras 3",
        _KERAS3 + "adam_squares_each_occurrence_of_a_row",
    ),
    Fix(
        "strategies.replicas.keras3_executions",
        "an execution has the same number of steps in all of a training, and has them in a cond",
        "keras/src/backend/tensorflow/trainer.py",
        "Keras 3",
        _KERAS3 + "an_execution_of_several_steps_has_them_in_a_cond",
    ),
    Fix(
        "strategies.replicas.keras3_statistics",
        "moving statistics are those of the first replica, and NaN after an empty batch",
        "keras/src/layers/normalization/batch_normalization.py",
        "Keras 3",
        _KERAS3 + "moving_statistics_are_those_of_the_first_replica",
    ),
    Fix(
        "keras3_callbacks",
        "every task writes the files of ModelCheckpoint and BackupAndRestore",
        "keras/src/callbacks/model_checkpoint.py",
        "Keras 3",
        "tests/upstream/test_keras3_saving.py::test_every_task_writes_model_checkpoints",
    ),
    Fix(
        "strategies.parameter_server.steps.keras3_coordinator",
        "fit does not schedule its steps on the coordinator of parameter servers",
        "keras/src/backend/tensorflow/trainer.py",
        "Keras 3",
        _KERAS3 + "fit_does_not_accept_a_dataset_with_parameter_servers",
    ),
    Fix(
        "keras3_assign_add",
        "assign_add reads, adds and assigns, so that concurrent additions are lost",
        "keras/src/backend/common/variables.py",
        "Keras 3",
        _KERAS3 + "adding_to_a_variable_is_not_atomic",
    ),
    Fix(
        "strategies.parameter_server.variables.split_layers",
        "a variable holds one tf.Variable, so that no part of it can lie on another ps",
        "keras/src/backend/tensorflow/core.py",
        "Keras 3",
        "tests/upstream/test_keras3_split_layers.py::"
        "test_the_layers_of_keras_3_add_their_large_weight_by_name",
    ),
    Fix(
        "keras3_central_storage",
        "assignments to shared variables are summed over replicas: metrics, scheduled rates",
        "tensorflow/python/distribute/central_storage_strategy.py",
        "all",
        _UPSTREAM + "central_storage_does_not_support_a_learning_rate_schedule",
    ),
    Fix(
        "keras2_step_logs",
        "the logs of a step sum the results of metrics over the workers a second time",
        "tf_keras/src/engine/training.py, reduce_per_replica",
        "Keras 2",
        "tests/upstream/test_keras2_step_logs.py::test_keras_sums_the_results_of_metrics",
    ),
    Fix(
        "keras2_class_weight",
        "under ParameterServerStrategy, fit ignores class_weight",
        "tf_keras/src/engine/data_adapter.py, _ClusterCoordinatorDataHandler",
        "Keras 2",
        "tests/upstream/test_keras2_steps.py::"
        "test_keras_2_ignores_class_weight_with_parameter_servers",
    ),
    Fix(
        "keras2_steps_per_execution",
        "under ParameterServerStrategy, fit reads a variable on a ps before each step",
        "tf_keras/src/engine/training.py, _configure_steps_per_execution",
        "Keras 2",
        "tests/upstream/test_keras2_steps.py::test_keras_2_creates_steps_per_execution_on_a_ps",
    ),
    Fix(
        "strategies.replicas.keras2_executions",
        "each step of an execution computes the results of metrics over all replicas",
        "tf_keras/src/engine/training.py, make_train_function",
        "Keras 2",
        "tests/upstream/test_keras2_steps.py::test_keras_2_makes_one_train_function_for_one_step",
    ),
    Fix(
        "last_batch_checks",
        "the tasks ask each other in each step whether one of them has a batch",
        "tensorflow/python/distribute/input_lib.py",
        "all",
        "tests/upstream/test_private_names.py"
        "::test_a_strategy_has_no_public_way_to_trust_equal_shards",
    ),
    Fix(
        "step_without_batch",
        "at the end of data of unknown cardinality, a step runs in part without a batch: the "
        "optimizer counts an update more, metrics a batch more",
        "tensorflow/python/distribute/distribute_lib.py, Strategy.run",
        "all",
        "tests/upstream/test_step_without_batch.py::"
        "test_a_step_runs_in_part_although_its_batch_does_not_exist",
    ),
    Fix(
        "onednn_empty_batches",
        "convolutions of empty batches have a wrong shape; the gradient of pooling crashes",
        "tensorflow/core/kernels/mkl",
        "all, on CPUs",
        "tests/upstream/test_onednn_empty_batches.py::"
        "test_onednn_gives_a_convolution_of_an_empty_batch_the_shape_of_its_input",
    ),
    Fix(
        "strategies.replicas.sync_on_read",
        "each save averages every sync-on-read variable several times",
        "tensorflow/python/distribute/values.py",
        "all",
        "tests/upstream/test_sync_on_read.py::test_tensorflow_averages_each_variable_several_times",
    ),
    Fix(
        "dataset_arrays",
        "the arrays of a dataset are copied into its function, which all tasks of a job receive",
        "tensorflow/python/data/ops/from_tensor_slices_op.py",
        "all",
        "tests/upstream/test_dataset_arrays.py::"
        "test_tensorflow_copies_the_arrays_of_a_dataset_into_its_function",
    ),
    Fix(
        "dataset_arguments",
        "deterministic=False of a method wins over the options of the dataset",
        "tensorflow/python/data/ops/interleave_op.py",
        "all",
        "tests/upstream/test_dataset_arguments.py::test_a_method_wins_over_the_options",
    ),
    Fix(
        "tf_data_autotune",
        "the iterators of a strategy are autotuned, regardless of the dataset's options",
        "tensorflow/python/data/ops/multi_device_iterator_ops.py",
        "all",
        _UPSTREAM + "the_iterators_of_a_strategy_ignore_the_datasets_autotune_option",
    ),
    Fix(
        "server_messages",
        "a server logs information at every log level",
        "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc",
        "TensorFlow 2.16 to 2.20",
        "tests/upstream/test_server_messages.py::"
        "test_a_server_of_this_tensorflow_keeps_to_the_log_level",
    ),
    Fix(
        "session_recovery_wait",
        "a worker that starts before the chief sleeps for 30 seconds at a time",
        "tensorflow/python/training/session_manager.py",
        "all",
        _UPSTREAM + "a_worker_that_starts_before_the_chief_sleeps_for_30_seconds",
    ),
    Fix(
        "monitored_session_write_errors",
        "a session that cannot write a file ends as if its input had ended",
        "tensorflow/python/training/monitored_session.py",
        "all",
        _UPSTREAM + "a_session_treats_a_failed_write_as_the_end_of_its_input",
    ),
    Fix(
        "keras_estimator_first_checkpoint",
        "model_to_estimator writes the initial weights in every task",
        "tensorflow_estimator/python/estimator/keras_lib.py",
        "TensorFlow 2.15",
        _UPSTREAM + "every_task_saves_the_initial_weights_of_a_keras_model",
    ),
)

#: Modules that use private names because there is no public API; they change nothing. The tests in
#: `tests/upstream` that quote a module are its canaries.
PRIVATE_NAMES = (
    "autograph",
    "checkpoint_graph",
    "dataset_inputs",
    "horovod_optimizer",
    "keras3_export",
    "keras_callback_logs",
    "keras_initial_epoch",
    "keras_layer_creation",
    "keras_legacy_optimizer",
    "keras_output_dtype",
    "tf_coordination",
)
