"""Limits of a node: memory budgets, call slots, the weighted scheduler of tenants, the load monitor, and counters."""
