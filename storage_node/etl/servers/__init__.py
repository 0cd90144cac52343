"""A node's side of transforms that are servers of somebody's: hpush, hpull, WebSocket and gRPC stream."""
