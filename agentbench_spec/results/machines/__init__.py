"""Runs made on several machines: shards joined to one run, and figures machine by machine."""
