"""What surrounds `model.fit`: callbacks, resuming, the evaluator."""
