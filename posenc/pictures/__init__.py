"""Pictures of an encoding: measured through its hooks, drawn by Vega or written as numbers."""
