"""Client side of transforms that are servers: hpush, hpull, WebSocket and gRPC stream."""
