"""What a model uses: `stage`, and tables of features.

    from tfdist.layers import FeatureConfig, FeatureEmbeddings, TableConfig

Names are loaded on first use, because `tfdist.stage` needs no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdist.layers.dynamic_embedding import DynamicEmbedding
    from tfdist.layers.feature_embeddings import FeatureConfig, FeatureEmbeddings, TableConfig
    from tfdist.layers.row_files import apply_deltas

_MODULES = {
    "DynamicEmbedding": "dynamic_embedding",
    "FeatureConfig": "feature_embeddings",
    "FeatureEmbeddings": "feature_embeddings",
    "TableConfig": "feature_embeddings",
    "apply_deltas": "row_files",
}

__all__ = ["DynamicEmbedding", "FeatureConfig", "FeatureEmbeddings", "TableConfig", "apply_deltas"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in __all__:
            module = importlib.import_module(f"tfdist.layers.{_MODULES[name]}")
            return getattr(module, name)
        raise AttributeError(f"module 'tfdist.layers' has no attribute {name!r}")
