"""From the query product to rotated attention queries and quantised index queries."""
