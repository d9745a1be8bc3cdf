"""Exchanges the tensors of a step between workers and parameter servers in few messages."""
