"""What the code of a model uses: `stage`."""
