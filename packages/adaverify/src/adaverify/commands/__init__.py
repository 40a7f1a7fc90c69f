"""One module a command; each offers plain functions that ``adaverify.cli`` registers."""
