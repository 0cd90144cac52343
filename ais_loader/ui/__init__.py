"""Page in the browser that shows what a store holds and does: `ais-loader ui`."""
