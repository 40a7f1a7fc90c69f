"""Which experts each token goes to, and its rows laid out by expert."""
