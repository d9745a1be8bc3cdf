"""What runs beside the training processes. They import nothing of it."""
