"""What strategies with a copy of the model in each replica take from TensorFlow's internals."""
