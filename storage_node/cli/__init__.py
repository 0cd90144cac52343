"""Operator's commands of `ais-loader`, found by their entry points: `serve`, `cluster` with `cluster_drives`, `doctor`,
`token`; `settings` has their common options."""
