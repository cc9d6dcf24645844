"""What is computed, as plain data that shows, saves and loads itself."""
