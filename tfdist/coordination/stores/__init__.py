"""Key-value stores that tasks share, and the rendezvous of Horovod's ranks."""
