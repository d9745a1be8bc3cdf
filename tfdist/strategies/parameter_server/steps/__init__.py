"""Runs the steps of each epoch on the workers, asynchronously or synchronously."""
