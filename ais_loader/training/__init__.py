"""Parts around the datasets that a trainer needs: concatenation, collating without placeholders, the end of workers."""
