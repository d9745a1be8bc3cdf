"""Supported versions of TensorFlow, Keras and Horovod, and differences between Keras 2 and 3."""
