"""The decision log: the inputs of the planner core and the plans it pushed, and their replay.

Recording costs the event loop a few microseconds per input; encoding and writing happen beside it,
bounded, and what could not be kept is counted and marked as a gap.
"""
