"""`python -m ais_loader.cli` is `ais-loader`."""

from ais_loader.cli import main

main()
