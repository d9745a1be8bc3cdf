"""Communication between the tasks of a job, apart from TensorFlow's own."""
