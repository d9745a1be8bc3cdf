"""What the ways to split a training over tasks cost: bytes, memory and idle time."""
