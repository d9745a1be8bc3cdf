"""Workarounds for bugs and missing APIs of TensorFlow, Keras and Horovod: one per module.

A workaround that changes a class or a function of another library does so in `apply()`. A job calls
it when needed; importing changes nothing. `docs/upstream.md` has the bug, the affected versions and
the canary test of each. A canary fails when upstream has fixed the bug.
"""
