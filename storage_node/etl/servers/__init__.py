"""Client side of transforms that are servers: hpush, hpull and WebSocket."""
