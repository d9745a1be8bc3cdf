"""Lets Python look for cycles less often, because it would look at all of TensorFlow each time.

Importing it is enough. A fifth of the time of the unit tests was spent in that.
"""

from __future__ import annotations

import gc

gc.set_threshold(50_000, 20, 100)
