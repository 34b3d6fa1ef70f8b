"""The planner: learns acceptance and cost, plans draft and verify budgets."""
