"""One module a strategy, and the table that names them."""
