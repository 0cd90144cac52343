"""One folder for each library that ais-loader serves; importing ais_loader imports none of them."""
