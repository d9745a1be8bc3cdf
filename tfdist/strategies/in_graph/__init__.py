"""The `in_graph` strategy."""
