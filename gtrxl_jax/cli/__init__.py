"""The command line, `gtrxl`."""
