"""Fixes of bugs in TensorFlow, Keras and Horovod: one bug a module."""
