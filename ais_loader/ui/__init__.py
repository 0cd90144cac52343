"""Browser page that shows the content and the activity of a store: `ais-loader ui`."""
