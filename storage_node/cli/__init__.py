"""Operator's commands of `ais-loader`, found by their entry points: `serve`, `cluster` with `cluster_drives`, `doctor`;
`settings` has their common options."""
