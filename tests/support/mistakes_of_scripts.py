"""Mistakes and habits in scripts and jobs, by what the user did."""

from __future__ import annotations

from tests.support.mistakes import TRAINED, Mistake, script, tested


def two(prints: str, *edits: tuple[str, str], **options: object) -> Mistake:
    """A script that two workers run."""
    return Mistake(prints, edits=edits, job=_TWO, **options)  # type: ignore[arg-type]


_DIFFERENCE = "cluster/test_disagreements.py::test_one_sentence_names_the_difference"
_TWO = ("--strategy=multi_worker_mirrored", "--workers=2")
_FIT = 'job.fit(build_model, data, epochs=1, output_dir="run1", verbose=0)'
_BATCHES = "tf.data.Dataset.from_tensor_slices((points, sums)).batch(8)"
_TOP = "def build_model(job):\n    model"
_LR = "SGD(0.01)"
_DEVICES = ("--strategy=mirrored", "--num_cpu_devices=2")
#: A proxy that would refuse the connection.
_PROXY = "http://127.0.0.1:9"


def _fit(arguments: str) -> tuple[str, str]:
    """Another call of `fit`."""
    return _FIT, f"job.fit({arguments}, verbose=0)"


def _with(arguments: str) -> tuple[str, str]:
    """More arguments of `fit`."""
    return "epochs=1", f"epochs=1, {arguments}"


def _returns(value: str) -> tuple[str, str]:
    """Another result of the input function."""
    return f"return {_BATCHES}", f"return {value}" if value else _BATCHES


_IN_COND = """class InCond(tf.keras.Sequential):
    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(batch[0]) - batch[1]) ** 2)
        weights = self.trainable_variables
        pairs = list(zip(tape.gradient(loss, weights), weights))
        tf.cond(loss > 0.0, lambda: self.optimizer.apply_gradients(pairs), lambda: None)
        return {"loss": loss}


"""
_UNUSED = """class Unused(tf.keras.Sequential):
    def __init__(self, layers):
        super().__init__(layers)
        self.unused = tf.keras.layers.Dense(3)
        self.unused.build([None, 4])


"""
_DATASET = "received 'a function that returns {}'; accepted: one that returns a tf.data.Dataset"

SCRIPTS = {
    "no @tfdist.main": script("Write @tfdist.main above the function", ("@tfdist.main\n", "")),
    "main() in place of tfdist.run(main)": script(TRAINED, ("tfdist.run(main)", "main()"), code=0),
    "a main function that is never called": script(
        "main was never called", ("tfdist.run(main)", "pass"), code=0, is_new=True
    ),
    "validation_data=": script("Write validation=", _with("validation_data=data")),
    "an argument of Keras": script("For the arguments of Keras", _with("shuffle=True")),
    "batch_size= beside a dataset": script("batch_size: received 8", _with("batch_size=8")),
    "steps_per_epoch too high": script(
        "steps_per_epoch: received '500, .*at most 8 steps'", _with("steps_per_epoch=500")
    ),
    "data without an end": script(
        "steps_per_epoch: received None", _returns(f"{_BATCHES}.repeat()")
    ),
    "data that are not batched": script("received 'elements without a batch", (".batch(8)", "")),
    "an input function without a return": script(_DATASET.format("nothing"), _returns("")),
    "an input function that returns a tuple": script(
        _DATASET.format("a tuple"), _returns("points, sums")
    ),
    "an input function that returns an array": script(
        _DATASET.format("a ndarray"), _returns("points")
    ),
    "an input function that returns a list": script(
        _DATASET.format("a list"), _returns("[(points, sums)]")
    ),
    "an input function that returns an iterator": script(
        _DATASET.format("a OwnedIterator"), _returns(f"iter({_BATCHES})")
    ),
    "an input function that is a generator": script(
        _DATASET.format("a generator"), (f"return {_BATCHES}", "yield points, sums")
    ),
    "an input function with a context that returns arrays": script(
        _DATASET.format("a tuple"), ("def data():", "def data(context):"), _returns("points, sums")
    ),
    "a generator as the data": script(
        "received 'generator'.*from_generator",
        _fit('build_model, (each for each in [points]), epochs=1, output_dir="run1"'),
    ),
    "a dictionary as the data": script(
        "received 'dict'", _fit('build_model, {"x": points}, epochs=1, output_dir="run1"')
    ),
    "arrays of unequal lengths": script(
        "received 'arrays of 60, 64 rows'",
        _fit('build_model, (points, sums[:60]), epochs=1, output_dir="run1"'),
    ),
    "arrays, and build_model without a job": script(
        TRAINED,
        ("build_model(job)", "build_model()"),
        _fit('build_model, (points, sums), epochs=1, output_dir="run1"'),
        code=0,
    ),
    "validation of fewer examples than a batch": script(
        TRAINED, _with("validation=lambda: data().unbatch().take(4).batch(8)"), code=0
    ),
    "a dataset made from that of the job": tested(
        "keras3/test_refusals.py::test_a_dataset_made_from_that_of_the_job_is_rejected"
    ),
    "a model in place of build_model": tested(
        "unit/training/test_mistakes.py::test_build_model_must_be_a_function"
    ),
    "a model that is not compiled": tested(
        "unit/training/test_mistakes.py::test_build_model_must_return_a_compiled_model[uncompiled]"
    ),
    "build_model without a return": tested(
        "unit/training/test_mistakes.py::test_build_model_must_return_a_compiled_model[nothing]"
    ),
    "features of another shape": script(
        "expected axis -1 of input shape to have value 5",
        ("Input([4])", "Input([5])"),
        code=1,
        traceback=True,
    ),
    "lr= on Keras 3": script("Write learning_rate: Keras 3 has no lr", (_LR, "SGD(lr=0.01)")),
    "optimizers.legacy on Keras 3": script("without legacy", (_LR, "legacy.SGD(0.01)")),
    "optimizers.legacy on Keras 2": script(
        TRAINED, (_LR, "legacy.SGD(0.01)"), code=0, stack="2.15"
    ),
    "a loss that is NaN": tested(
        "unit/training/test_metrics.py::test_a_loss_that_is_not_finite_is_one_line"
    ),
    "no output_dir": script("output_dir: received None", (', output_dir="run1"', "")),
    "an empty output_dir": script("output_dir: received ''", ('"run1"', '""')),
    "a bucket as the output_dir": script(
        "tfdist reads and writes no URL", ('"run1"', '"gs://bucket/run1"')
    ),
    "~ in the output_dir": tested(
        "unit/process/test_paths.py::test_functions_write_in_the_home_directory[job.fit]"
    ),
    "a file as the output_dir": script("output_dir: received 'train.py'", ('"run1"', '"train.py"')),
    "a full disk": tested(
        "unit/storage/test_output_directory.py::test_a_disk_that_is_full_at_the_start_is_no_usage_error"
    ),
    "another model in the same directory": tested(
        "unit/storage/test_layout.py::test_another_model_is_refused"
    ),
    "another learning rate on resume": tested(
        "unit/training/test_resumed_rates.py::"
        "test_only_a_change_of_the_script_is_told_and_the_flag_decides"
    ),
    "an operation before tfdist.init": script(
        r"first use before tfdist.init, in .*train\.py:12: SCALE = tf\.constant\(1\.0\)",
        (_TOP, f"SCALE = tf.constant(1.0)\n{_TOP}"),
        flags=_DEVICES,
    ),
    "list_logical_devices before tfdist.init": script(
        r"first use before tfdist.init, in .*train\.py:12: tf\.config\.list_logical_devices\(\)",
        (_TOP, f"tf.config.list_logical_devices()\n{_TOP}"),
        flags=_DEVICES,
    ),
    "an operation before tfdist.init, in one process": script(
        TRAINED, (_TOP, f"SCALE = tf.constant(1.0)\n{_TOP}"), code=0
    ),
    "tfdist.init in a thread": script(
        r"received 'a call in Thread-\d",
        ("tfdist.run(main)", "__import__('threading').Thread(target=tfdist.init).start()"),
        code=0,
    ),
    "tfdist.init twice in one process": script(
        TRAINED, (f"history = {_FIT}", f"tfdist.init()\n    history = {_FIT}"), code=0
    ),
    "argparse with @tfdist.main": script(
        "A script that parses its flags with argparse calls tfdist.init",
        ("sums =", "__import__('argparse').ArgumentParser().parse_known_args()\nsums ="),
        flags=("--lr=0.1",),
    ),
    "argparse with tfdist.init": tested(
        "process/config/test_flags.py::test_a_script_with_argparse_passes_on_the_flags_of_tfdist"
    ),
    "a notebook with @tfdist.main": script(
        r"In a notebook, call job = tfdist.init\(\[\]\)",
        ("import os", "import os, sys; sys.argv = ['ipykernel_launcher.py', '-f', 'kernel.json']"),
    ),
    "fit without job.dataset": tested(
        "process/test_job.py::test_fit_without_the_data_or_the_callbacks_of_the_job_is_told"
    ),
    "fit without job.callbacks": tested(
        "process/test_job.py::test_fit_without_the_data_or_the_callbacks_of_the_job_is_told"
    ),
    "OMP_NUM_THREADS=abc": script(TRAINED, code=0, environ={"OMP_NUM_THREADS": "abc"}),
    "KERAS_BACKEND=jax": script(
        "KERAS_BACKEND: received 'jax'", environ={"KERAS_BACKEND": "jax"}, is_new=True
    ),
    "TF_USE_LEGACY_KERAS=1 without tf_keras": script(
        "TF_USE_LEGACY_KERAS: received '1'.*Install tf_keras",
        ("import tfdist\n", "import sys; sys.modules['tf_keras'] = None\nimport tfdist\n"),
        environ={"TF_USE_LEGACY_KERAS": "1"},
        is_new=True,
    ),
    "the DatasetCreator of Keras 2": script(
        "Keras 3 has no DatasetCreator",
        _fit(
            "build_model, tf.keras.utils.experimental.DatasetCreator(lambda _: data()), "
            'epochs=1, output_dir="run1"'
        ),
    ),
    "validation_split": script(
        "Split the data first",
        (_FIT, "build_model(job).fit(job.dataset((points, sums)), validation_split=0.2)"),
    ),
    "an optimizer within tf.cond": script(
        "call the optimizer in every step, outside of tf.cond".capitalize(),
        (_TOP, _IN_COND + _TOP),
        ("= tf.keras.Sequential", "= InCond"),
        flags=_DEVICES,
    ),
    "weights without a gradient": script(
        TRAINED,
        (_TOP, _UNUSED + _TOP),
        ("= tf.keras.Sequential", "= Unused"),
        flags=_DEVICES,
        code=0,
    ),
    "the usual call of MonitoredTrainingSession": tested(
        "unit/estimator/test_beside_others.py::test_a_second_writer_is_refused[open_session]"
    ),
    "padded texts in an odd number of batches": tested(
        "unit/data/test_sharding.py::"
        "test_empty_batches_of_padded_texts_have_the_length_of_the_last_batch"
    ),
    "a model that was never called, at export": tested(
        "unit/storage/test_export.py::"
        "test_a_model_that_was_never_called_is_no_error_after_a_training"
    ),
    "a model that was never called, at export with Keras 3": tested(
        "keras3/test_export.py::test_of_a_model_that_was_never_called_there_is_what_keras_loads"
    ),
    "a flag that tfdist or absl has": script(
        "hint: give the script's flag another name",
        ("sums =", "__import__('absl.flags').flags.DEFINE_string('log_dir', '', '')\nsums ="),
        code=1,
        job=(),
        traceback=True,
    ),
    "a low limit of open files": tested(
        "process/coordination/startup/test_many_tasks.py::test_a_low_limit_of_open_files_is_one_sentence"
    ),
    "Ctrl-C twice": tested(
        "process/tools/launch/test_signals.py::test_a_second_ctrl_c_kills_at_once"
    ),
    "| head": tested(
        "process/tools/launch/test_signals.py::test_tasks_save_when_their_output_cannot_be_printed"
    ),
    "nohup": tested("process/tools/launch/test_signals.py::test_nohup_keeps_its_meaning"),
    "a shell without variables, in a directory with keras.py": tested(
        "cluster/test_odd_homes.py::test_a_job_needs_little"
    ),
}

JOBS = {
    "a proxy in the environment": two(
        TRAINED, code=0, environ={"http_proxy": _PROXY, "https_proxy": _PROXY}
    ),
    "fit in the chief alone": two(
        "worker:1 ended early: its script ended after its startup",
        ("    history", "    if not job.is_chief:\n        return\n    history"),
        stack="2.15",
    ),
    "sys.exit(0) in a worker": tested(f"{_DIFFERENCE}[exit]"),
    "another model in one task": tested(f"{_DIFFERENCE}[model]"),
    "another output_dir in one task": tested(f"{_DIFFERENCE}[directory]"),
    "more epochs in one task": two(
        "epochs is not the same in all tasks: 1 in worker:0, 2 in worker:1",
        ("epochs=1", "epochs=1 + job.task.index"),
    ),
    "a permutation without a seed": two(
        "the order of the training data is not the same in all tasks",
        (
            f"return {_BATCHES}",
            f"order = np.random.default_rng().permutation(64)\n    return {_BATCHES}",
        ),
        ("(points, sums)", "(points[order], sums[order])"),
    ),
    "one batch for two workers": two(
        "1 of 2 tasks have no batch of the training data", (".batch(8)", ".batch(64)"), code=0
    ),
    "a mistake in both tasks": two("Write validation=", _with("validation_data=data")),
    "another mistake in both tasks": two(_DATASET.format("a tuple"), _returns("points, sums")),
    "tfdist.init twice in a job": two(
        r"a second call, in .*train\.py:24: tfdist\.init\(\)",
        (f"history = {_FIT}", f"tfdist.init()\n    history = {_FIT}"),
    ),
    "a variable before tfdist.init": two(
        r"first use before tfdist.init, in .*train\.py:12: MODEL = tf\.Variable\(1\.0\)",
        (_TOP, f"MODEL = tf.Variable(1.0)\n{_TOP}"),
    ),
    "a worker that raises": two(
        r"worker:1 failed with exit code 1 \(ZeroDivisionError: division by zero\)",
        (
            f"history = {_FIT}",
            f"job.is_chief or print(1 / 0)\n    history = {_FIT}",
        ),
        code=1,
        traceback=True,
    ),
    "a script that does not distribute": tested(
        "process/tools/launch/test_notices.py::test_a_script_that_does_not_distribute"
    ),
    "a job of parameter servers without a chief": tested(
        "process/tools/launch/test_notices.py::test_servers_without_a_chief_that_do_nothing"
    ),
    "a second job in the same directory": tested(
        "cluster/test_beside_others.py::test_a_second_job_is_refused_until_the_first_is_killed"
    ),
    "the same command again after the end": tested(
        "cluster/test_resume.py::test_a_failed_job_resumes_and_a_complete_one_does_not_train"
    ),
    "callbacks of Keras": tested(
        "cluster/test_habits.py::test_weights_and_history_equal_those_of_one_process"
    ),
}
