"""What to run: tasks, protocols, studies and the config of a single run."""
