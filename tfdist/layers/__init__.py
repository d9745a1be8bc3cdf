"""Functions that a model's code uses: `stage`."""
