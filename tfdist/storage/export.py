"""Exports the trained model, for serving and for `keras.models.load_model`.

export(model, OutputDirectory("/shared/run1"), writes=job.is_chief)
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from tfdist.compat import keras as keras_compat
from tfdist.compat.replaced import all_replaced, replaced
from tfdist.errors import OutputError
from tfdist.layers import dynamic_embedding
from tfdist.storage.files import quiet_tensorflow
from tfdist.storage.output_directory import OutputDirectory, replacing_directory
from tfdist.strategies.replicas.sync_on_read import are_averages
from tfdist.upstream.keras3_export import signature_of
from tfdist.upstream.onednn_empty_batches import as_tensorflow_does

#: The file that Keras 3 loads, in the SavedModel's directory.
KERAS_FILE = "model.keras"
#: The file in the directory of an export of a model that still trains: its step and its metrics.
MANIFEST = "export.json"


def export(
    model: tf.keras.Model,
    output: OutputDirectory,
    *,
    writes: bool,
    io_device: str | None = None,
    target: Path | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Writes the model as a SavedModel and for `keras.models.load_model`, without its optimizer.

    Logs a warning instead for a model that has no `call`, or that Keras cannot save.

    Keras 2 loads the SavedModel itself. Keras 3 loads the file `model.keras` in the SavedModel's
    directory.

    Args:
      model: the trained model.
      output: the output directory.
      writes: whether this task writes. Call this function in the other tasks too if the writing
        task needs them to read the variables (`Checkpointing.all_save`).
      io_device: the device whose machine writes; None for the device of each variable.
      target: the directory of the model; None for `output.saved_model`.
      facts: what is written to `export.json` beside the model, for a model that still trains.

    Raises:
      OutputError: the model could not be written; an existing model is unchanged.
    """
    target = target or output.saved_model
    if not keras_compat.has_call(model):
        if writes:
            logging.warning(
                "%s has no call, so there is no %s: save its parts in the script",
                type(model).__name__,
                target,
            )
        return
    if _is_functional_of_keras_2(model):
        # Saving a compiled model before its first step builds its metrics for targets of the
        # outputs' shape, which changes the meaning of `accuracy`. So export an uncompiled copy.
        model = keras_compat.keras_of(model).Model(model.input, model.output, name=model.name)
    if not writes and _needs_no_other_task(model):
        return
    save = _save_with_keras_3 if keras_compat.is_keras_3(model) else _save_with_keras_2
    options = tf.saved_model.SaveOptions(experimental_io_device=io_device)
    try:
        with (
            replacing_directory(target, writes=writes) as temporary,
            quiet_tensorflow(),
            as_tensorflow_does(),
            ExitStack() as stack,
        ):
            for table in dynamic_embedding.of_model(model):
                stack.enter_context(table.exporting())
            save(model, temporary / target.name, options)
            if facts is not None:
                (temporary / target.name / MANIFEST).write_text(json.dumps(facts) + "\n")
    except OutputError:
        raise
    # The training is complete, and its weights are saved.
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        logging.warning("%s cannot be exported: %s", type(model).__name__, error)


def _needs_no_other_task(model: Any) -> bool:
    """Whether one task can export a model without the others, once all have created the model.

    In each task, Keras 2 creates the metrics of a subclassed model that has not been called, and
    traces the sums over the replicas that metrics are.
    """
    if keras_compat.is_keras_3(model):
        return True
    if not _is_functional_of_keras_2(model):
        return False
    parts = (model, *model.submodules)
    return are_averages(model.variables) and not any(getattr(part, "metrics", ()) for part in parts)


def _save_with_keras_3(model: Any, directory: Path, options: tf.saved_model.SaveOptions) -> None:
    if getattr(model, "inputs", None):
        # A Sequential model has `input` only after its first call.
        is_sequential = isinstance(model, keras_compat.keras_of(model).Sequential)
        inputs = model.inputs[0] if is_sequential else model.input
        signature = [
            tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype, x.name), inputs)
        ]
    else:
        signature = signature_of(model)
    if signature is None:
        logging.warning(
            "%s as a whole was never called, so there is only %s: call it once in build_model",
            type(model).__name__,
            KERAS_FILE,
        )
        directory.mkdir()
    elif _has_only_layers_of_keras(model):
        # What Keras's archive saves, which traces the model four times.
        serve = tf.function(model.__call__, input_signature=signature, autograph=False)
        archive = tf.Module()
        archive.serve = serve
        archive.resources = [*keras_compat.model_variables(model), *_tables_of(model)]
        signatures = {"serve": serve, "serving_default": serve}
        tf.saved_model.save(archive, str(directory), signatures, options)
    else:
        archive = keras_compat.keras_of(model).export.ExportArchive()
        archive.track_and_add_endpoint("serve", model, signature)
        archive.write_out(str(directory), options=options, verbose=False)
    try:
        # `load_model` would not find an optimizer, loss or metrics of the user. Keras's
        # `include_optimizer` has no effect.
        compiled = vars(model).keys() & {"compiled", "optimizer"}
        with all_replaced((model, name, None) for name in compiled):
            model.save(directory / KERAS_FILE)
    # A layer has no `get_config`, or its configuration contains an object that Keras cannot write.
    except (NotImplementedError, TypeError, ValueError) as error:
        (directory / KERAS_FILE).unlink(missing_ok=True)
        logging.warning("Cannot write %s for keras.models.load_model: %s", KERAS_FILE, error)


def _save_with_keras_2(
    model: tf.keras.Model, directory: Path, options: tf.saved_model.SaveOptions
) -> None:
    save = functools.partial(
        model.save, str(directory), save_format="tf", include_optimizer=False, options=options
    )
    if not _has_only_layers_of_keras(model) or _tables_of(model):
        save()
        return
    # `load_model` makes these layers from their configurations. Tracing each of them for programs
    # without Keras takes four times as long as all the rest.
    #
    # TensorFlow traces these functions while it saves: only then a variable of several replicas is
    # that of the first one, and the parts of a variable are joined.
    signature = [tf.nest.map_structure(lambda each: each.type_spec, model.input)]
    call = tf.function(lambda inputs: model(inputs, training=False), input_signature=signature)

    @tf.function(input_signature=signature)
    def serve(inputs: Any) -> dict[str, tf.Tensor]:
        return dict(zip(model.output_names, tf.nest.flatten(call(inputs)), strict=True))

    # Makes `tf.saved_model.load(path)` callable. Keras itself calls the method of the class.
    with replaced(model, "__call__", call):
        save(save_traces=False, signatures=serve)


def _has_only_layers_of_keras(model: Any) -> bool:
    """Whether a model and its layers are of Keras's own classes, with only dense inputs."""
    if not keras_compat.is_graph_of_layers(model):
        return False
    keras = keras_compat.keras_of(model)
    inputs = [getattr(each, "type_spec", each) for each in tf.nest.flatten(model.inputs)]
    layers = [
        part
        for part in tf.train.TrackableView(model).descendants()
        if isinstance(part, keras.layers.Layer)
    ]
    return not any(_is_composite(each) for each in inputs) and all(
        type(layer).__module__.partition(".")[0] == keras.__name__ for layer in layers
    )


def _is_composite(spec: Any) -> bool:
    """Whether the input of a model is ragged or sparse."""
    if isinstance(spec, tf.TypeSpec):
        return not isinstance(spec, tf.TensorSpec)
    return bool(getattr(spec, "sparse", False) or getattr(spec, "ragged", False))


def _tables_of(model: Any) -> list[Any]:
    """The vocabularies of layers such as StringLookup."""
    kind = tf.saved_model.experimental.TrackableResource
    return [part for part in tf.train.TrackableView(model).descendants() if isinstance(part, kind)]


def _is_functional_of_keras_2(model: Any) -> bool:
    has_both = getattr(model, "inputs", None) and getattr(model, "outputs", None)
    return bool(has_both) and not keras_compat.is_keras_3(model)
