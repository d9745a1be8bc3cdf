"""The `parameter_server` strategy: asynchronous training with variables on parameter servers."""
