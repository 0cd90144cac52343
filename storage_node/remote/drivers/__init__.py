"""Drivers: single requests to a remote place, and what they need to reach it.

In reading order: `driver` (the interface), `destination` with `credentials` and `gate`, `remote_object`, `failures`,
`cloud_driver` over obstore, with the listings of S3 and Azure, and `folder_driver`.
"""
