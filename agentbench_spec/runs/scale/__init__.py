"""From one machine to many: what a run will take, and runs spread over machines."""
