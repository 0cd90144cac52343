"""Clusters run by Ray. In reading order: `commands` over `node_discovery`, `ray_head`, `ray_actors` and `decommission`;
`actor`, `supervisor` and `serve` (a node's process); `status`, `drive_commands` and `rolling_settings` (calls to
running nodes); `node_file`, `settings_store` and `node_log` (files beside the drives)."""
