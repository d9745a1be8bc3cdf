"""The table of strategies. Importing it imports no TensorFlow.

A strategy of your own is one module with its options, and one row:

    @dataclass(frozen=True)
    class ScaledOptions(Options):
        gradient_scale: float = option(1.0, "the factor of the gradients", above=0.0)

    register(StrategySpec("scaled", "scaled_strategy:Scaled", ScaledOptions))
"""

from tfdist.config.options import Options, option
from tfdist.config.strategies.spec import EstimatorSpec, StrategySpec
from tfdist.config.strategies.table import register

__all__ = ["EstimatorSpec", "Options", "StrategySpec", "option", "register"]
