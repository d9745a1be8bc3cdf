"""A job as frozen data, without TensorFlow: flags, options, this task's role, the strategies."""
