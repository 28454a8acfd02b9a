"""A window into an agent's memory: what it attends to, and on which steps its actions depend."""
