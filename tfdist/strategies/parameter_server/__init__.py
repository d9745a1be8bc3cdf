"""The `parameter_server` strategy: training with variables on parameter servers."""
