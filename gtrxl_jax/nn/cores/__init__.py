"""Memory cores."""
