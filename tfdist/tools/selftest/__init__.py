"""A short training that proves that this installation can train, and that its tasks agree.

`job` is the script of each task. `verdict` compares what the tasks have trained with NumPy.
"""
