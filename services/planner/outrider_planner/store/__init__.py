"""Where sums outlive a planner and are shared by several: in memory, or in Redis."""
