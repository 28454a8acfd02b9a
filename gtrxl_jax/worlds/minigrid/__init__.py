"""MiniGrid-Memory: layouts, tiles and the environment."""
