"""A task's own network, whose packets reach the job's other tasks over mutual TLS.

    config = enter(config, token)     # before any thread starts
    os.execve(python, command, environ)   # TensorFlow sees the network of the tunnel alone

`device` makes the network, `certificates` the certificates, and `links` carries the packets.
"""
