"""`tfdist plan`: what each way to split a training over tasks costs: bytes, memory, idle time.

- `cut`: cuts the layers of a model into pipeline stages.
- `model`: the sizes of a model and of its stages.
- `traffic`: what the tasks send and receive in a step.
- `costs`: the candidates, which are the ways to split, and the memory and seconds of each.
- `choice`: the candidate to choose, and the reason.
- `quantities`: parses and prints numbers with units.

No module here imports TensorFlow.
"""
