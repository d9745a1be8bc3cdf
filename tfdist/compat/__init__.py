"""Which TensorFlow, Keras and Horovod run what, and how Keras 2 and Keras 3 differ."""
