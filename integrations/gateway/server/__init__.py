"""Server of the gateway: connections, limits of clients, counts and logs of requests, and several processes."""
