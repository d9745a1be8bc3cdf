"""Pure functions from a job to what an engine takes: a batch script, a manifest, a command."""
