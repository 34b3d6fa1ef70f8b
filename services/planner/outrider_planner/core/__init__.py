"""The pure core: statistics, costs, search, policies and the discrete-event planner.

Nothing here reads a clock, draws chance or does I/O; all of it arrives as arguments.
"""
