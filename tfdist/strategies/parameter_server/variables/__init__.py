"""Variables on the parameter servers: where they lie, in how many parts, and how they are saved."""
