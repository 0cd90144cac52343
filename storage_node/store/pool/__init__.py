"""Pool of drives.

In reading order: `open`, `drive_set` (the open drives), `placement`, `membership` (adding and removing drives),
`rebalance` (objects move to their owners), `status`.
"""
