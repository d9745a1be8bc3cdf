"""Everything around `model.fit`: callbacks, resuming, the evaluator."""
