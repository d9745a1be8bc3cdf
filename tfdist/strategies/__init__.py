"""The distribution strategies: one module each, and the table that lists them."""
