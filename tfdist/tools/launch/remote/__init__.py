"""Jobs on hosts that are reached by ssh: one connection a host, and a launcher at each end.

`plan` places the tasks, `client` runs here for each host, and `server` runs on the host.
"""
