"""`python -m gtrxl_jax.cli`."""

from gtrxl_jax.cli.main import main

main()
