"""The version of tfdist, in a module that imports nothing."""

__version__ = "0.2.0"
