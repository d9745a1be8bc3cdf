"""How long tests wait for what should happen soon."""

#: A deadline only ends a hang. It is written for an idle machine with two cores; on one core, or
#: beside other work, a process may take so many times as long.
PATIENCE = 3.0
