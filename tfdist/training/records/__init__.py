"""Writes the records of a training: events, evaluations, TensorBoard, trackers, Prometheus, and the
status of a TrainJob.
"""
