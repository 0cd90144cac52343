"""Drives of a serving node: `manager` adds, retires and disables them, `health` decides when one is bad."""
