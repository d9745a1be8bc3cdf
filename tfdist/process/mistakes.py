"""Mistakes that scripts often make, by the errors of TensorFlow, Keras and Python.

remedy_for("TypeError: Job.fit() got an unexpected keyword argument 'x'")    # a sentence, or None
"""

from __future__ import annotations

import re

_LEGACY_KERAS = "install tf_keras in the version of TensorFlow and set TF_USE_LEGACY_KERAS=1"
_TF_KERAS = f"{_LEGACY_KERAS}, or train with tfdist's job.fit (docs/keras3.md)"
# The error, and what to do.
_MISTAKES = (
    (
        r"distribute\.values\.PerReplica'>\) to a Tensor",
        f"Keras 3 does not train under MultiWorkerMirroredStrategy: {_TF_KERAS}",
    ),
    (
        r"ClusterCoordinator\.create_per_worker_dataset",
        f"Keras 3 does not train under ParameterServerStrategy: {_TF_KERAS}",
    ),
    (
        # TensorFlow before 2.19 has the second error.
        r"lazy_loader\.py(.|\n)*(Keras cannot be imported|RecursionError)",
        "KERAS_BACKEND must be tensorflow, and TF_USE_LEGACY_KERAS=1 needs tf_keras in the version "
        "of TensorFlow: unset the variable that is set",
    ),
    (
        r"fit\(\) got an unexpected keyword argument 'validation_data'",
        "write validation=, for data like train_input",
    ),
    (
        r"Job\.fit\(\) got an unexpected keyword argument",
        "for the arguments of Keras, call model.fit(job.dataset(data), "
        "callbacks=job.callbacks(output_dir)), as in README.md",
    ),
    (
        r"`?validation_split`? is only supported",
        "split the data first, and pass validation_data=job.eval_dataset(data)",
    ),
    (
        r"`?merge_call`? called while defining a new graph or a tf.function",
        "call the optimizer in every step, outside of tf.cond; --accumulate_steps=N adds up the "
        "gradients of N batches",
    ),
    (r"Argument\(s\) not recognized: \{'lr'", "write learning_rate: Keras 3 has no lr"),
    (
        r"`?keras\.optimizers\.legacy`? is not supported in [`']?Keras 3",
        f"take tf.keras.optimizers without legacy; or {_LEGACY_KERAS}",
    ),
    (
        r"module '[\w.]*keras\.optimizers' has no attribute '(MultiOptimizer|OptimizerMap)'",
        "this Keras has one optimizer for all variables: train with Keras 3.15 or newer, or call "
        "two optimizers in a train_step of your own",
    ),
    (
        r"module '[\w.]*keras\.utils' has no attribute 'experimental'",
        "Keras 3 has no DatasetCreator: pass its function to job.dataset or job.fit; or "
        f"{_LEGACY_KERAS}",
    ),
    (
        r"module '[\w.]*keras[\w.]*backend' has no attribute 'get_value'",
        "Horovod's callbacks for the learning rate need Keras 2: use a schedule of Keras, or "
        f"{_LEGACY_KERAS}",
    ),
    (
        r"horovod/_keras/callbacks\.py(.|\n)*'float' object has no attribute 'dtype'",
        "give Horovod's callback momentum_correction=False: the momentum of the optimizer is fixed",
    ),
    (
        # As the runtime and a traceback print it. A task of tfdist that has this exception has lost
        # its port to another process.
        r"(UNKNOWN|errors_impl\.UnknownError): Could not start gRPC server",
        "each task of the script makes a ParameterServerStrategy: only the chief may; the workers "
        "and the ps start a tf.distribute.Server and join it (docs/parameter_servers.md)",
    ),
    (
        r"DuplicateFlagError: The flag '\w+' is defined twice",
        "give the script's flag another name: absl or tfdist has this one (docs/flags.md)",
    ),
    (
        r"monitored_session\(\) takes from 1 to 2 positional arguments",
        "call job.monitored_session(directory): the job has the master and is_chief",
    ),
    (
        r"'Resume' object has no attribute 'params'",
        "this model does not train in steps of Keras, like those of TensorFlow Decision Forests: "
        "train it in one process, without tfdist",
    ),
    (
        r"Batch-level `Callback`s are not supported with `ParameterServerStrategy`",
        "with Keras 2, a callback under parameter_server has no methods for batches: use those of "
        "epochs",
    ),
    (
        r"Loss scaling is not supported with",
        "Keras 2 scales the loss under mirrored, multi_worker_mirrored, horovod and in_graph: "
        "choose one of these, or train without LossScaleOptimizer",
    ),
    (
        r"Currently BackupAndRestore callback",
        "leave BackupAndRestore out: job.fit and job.callbacks save and resume the training",
    ),
)


def remedy_for(text: str) -> str | None:
    """What to do about the error in a text; None if it is unknown."""
    return next((remedy for error, remedy in _MISTAKES if re.search(error, text)), None)
