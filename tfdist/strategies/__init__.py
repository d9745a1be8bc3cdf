"""The distribution strategies, one module or folder each; `tfdist.strategy_table` lists them."""
