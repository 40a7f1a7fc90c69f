"""Hook specifications, descriptors, value types and errors shared by every adaverify component."""
