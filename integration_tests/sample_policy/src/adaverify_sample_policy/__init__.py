"""A budget policy for adaverify."""
