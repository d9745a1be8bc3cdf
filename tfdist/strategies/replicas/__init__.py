"""Uses TensorFlow's internals for strategies with a copy of the model in each replica."""
