"""What is special about a task beside language modelling: one file per task."""
