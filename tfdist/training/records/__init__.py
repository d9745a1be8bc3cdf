"""The writers of what a training records: events, TensorBoard, trackers, Prometheus."""
