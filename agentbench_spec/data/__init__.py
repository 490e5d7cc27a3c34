"""Files shipped with the core: chat templates."""
