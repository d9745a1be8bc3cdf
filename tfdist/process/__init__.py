"""This process: oneDNN, threads, cores, devices, log level, and how it ends on an exception."""
