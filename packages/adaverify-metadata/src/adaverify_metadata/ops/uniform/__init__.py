"""One row a request, all of one length known on the host."""
