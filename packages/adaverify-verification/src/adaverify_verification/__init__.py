"""Decides how many draft tokens to verify and which: signals, cost model, planner, guard, assignment."""
