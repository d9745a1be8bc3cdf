"""Runs jobs on hosts over ssh: one connection per host, with a launcher at each end.

`plan` places the tasks, `client` runs here for each host, and `server` runs on the host.
"""
