"""What each way to split a training over tasks costs: bytes, memory and idle time.

- `stages`: cuts the layers of a model into pipeline stages.
- `model`: the sizes of a model and of its stages.
- `traffic`: what the tasks of a split send and receive in a step.
- `costs`: the splits of a job, and the memory and seconds of each.
- `choice`: the split to choose, and the reason.
- `quantities`: parses and prints numbers with units.

No module here imports TensorFlow.
"""
