"""Programs that run beside the training processes. Training code imports nothing from here."""
