"""The output directory: its layout, atomic writes, checkpoints and the exported model."""
