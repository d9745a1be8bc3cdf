"""The distribution strategies, one module or folder each; `tfdist.config.strategies` lists them."""
