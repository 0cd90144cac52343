"""ETL beside the data: transforms that run on this node, what they are given and what they make."""
