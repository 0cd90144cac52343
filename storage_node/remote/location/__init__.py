"""Remote locations of buckets: requests to them with retries, limits and counters.

In reading order: `host_limiter`, `usage`, `remote_requests` (tries of one request), `remote_read` (an object as it
comes), `backend` (one location), `backends` (those of a process).
"""
