"""`parameter_server`: asynchronous training with the variables on parameter servers."""
