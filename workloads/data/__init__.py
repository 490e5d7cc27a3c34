"""Rollouts shipped with the repository; see NOTICE."""
