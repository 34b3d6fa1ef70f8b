"""Round-level simulator: the real planner core, virtual time, and worlds whose truth is known."""
