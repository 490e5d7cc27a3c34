"""From settings to a finished folder."""
