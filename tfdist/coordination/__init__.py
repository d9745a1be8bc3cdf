"""What the tasks of a job tell each other beside TensorFlow."""
