"""This process: oneDNN, threads, cores, devices, and how it ends on an exception."""
