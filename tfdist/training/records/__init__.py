"""Writes the records of a training: events, evaluations, TensorBoard, trackers, Prometheus."""
