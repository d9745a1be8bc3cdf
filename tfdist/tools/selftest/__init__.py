"""A short training that proves that this installation can train, and that its tasks agree.

`script` is the script of each task. `trial` compares what the tasks have trained with NumPy.
"""
