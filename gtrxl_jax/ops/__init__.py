"""Pure functions on arrays: no Flax modules, no state, no I/O."""
