"""Makes `fit` and `evaluate` of Keras 3 work with parameter servers.

keras3.apply()

strategy = PassesShards(…)
EpochCoordinator(strategy, …)
with strategy.scope():
    model = keras.Sequential(…)
model.fit(job.dataset(train_input), validation_data=job.eval_dataset(eval_input))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.compat import checks
from tfdist.compat import keras as keras_compat
from tfdist.data.sharding import shards_of
from tfdist.errors import UsageError
from tfdist.strategies.parameter_server.steps import keras3_coordinator
from tfdist.strategies.parameter_server.steps.coordinator import EpochCoordinator
from tfdist.strategies.parameter_server.steps.epoch import Epoch
from tfdist.strategies.parameter_server.steps.shards import DistributedShards
from tfdist.strategies.parameter_server.tensorflow_strategy import PassesShards
from tfdist.upstream.keras3_assign_add import add_in_one_operation


class _Coordination:
    """What `tfdist.strategies.parameter_server.steps.keras3_coordinator` asks."""

    def is_coordinated(self, strategy: Any) -> bool:
        return isinstance(strategy, PassesShards)

    def takes(self, iterator: Any) -> bool:
        return isinstance(iterator, Epoch)

    def check(self, model: Any) -> None:
        """Rejects options that Keras 3 accepts but ignores on workers.

        Raises:
          UsageError: `model.compile` or the optimizer has such an option.
        """
        checks.check_is_not_compiled_by_xla(model, "parameter_server")
        optimizers = keras_compat.optimizers_of(model)
        inner = [getattr(each, "inner_optimizer", each) for each in optimizers]
        accumulates = [getattr(each, "gradient_accumulation_steps", None) for each in inner]
        options = {
            "run_eagerly": (bool(model.run_eagerly), False),
            "gradient_accumulation_steps": (
                next(filter(None, accumulates), None),
                None,
            ),
        }
        for field, (received, accepted) in options.items():
            if received != accepted:
                raise UsageError(
                    field,
                    received=received,
                    accepted=f"{accepted} under parameter_server with Keras 3",
                    remedy="Leave it out of model.compile and of the optimizer; --accumulate_steps "
                    "accumulates gradients.",
                )
        of_optimizers = [variable for each in optimizers for variable in each.variables]
        add_in_one_operation([*model.variables, *model.metrics_variables, *of_optimizers])

    def request(self, strategy: Any, epoch: Any, step: Callable[[Any], Any], steps: int) -> Any:
        EpochCoordinator(strategy).request(epoch, step, steps)
        return epoch.live_logs()

    def begin_epochs(self, dataset: Any, steps_per_epoch: int | None, data: Any) -> bool:
        if not isinstance(dataset, DistributedShards):
            raise UsageError(
                "data of fit and evaluate",
                received=type(data).__name__,
                accepted="the result of job.dataset or job.eval_dataset, under parameter_server "
                "with Keras 3",
                remedy="Pass a function that returns your data as a tf.data.Dataset to "
                "job.dataset.",
            )
        dataset.steps_per_epoch = steps_per_epoch
        return True

    def join(self, strategy: Any, to_end: bool) -> None:
        EpochCoordinator(strategy).join(to_end)

    def steps_of_training_epoch(self, strategy: Any) -> int:
        return EpochCoordinator(strategy).steps_of_training_epoch

    def check_prediction(self, data: Any) -> None:
        if shards_of(data) is not None:
            raise UsageError(
                "data of predict",
                received="the result of job.dataset or job.eval_dataset",
                accepted="a tf.data.Dataset or arrays, under parameter_server with Keras 3",
                remedy="Pass the data itself: predict runs in the chief and would see one shard.",
            )


_COORDINATION = _Coordination()


def apply() -> None:
    """Patches Keras 3 to train models under `PassesShards`; other models are not affected."""
    keras3_coordinator.apply(_COORDINATION)
