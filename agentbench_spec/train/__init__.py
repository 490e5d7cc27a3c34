"""Training of drafters: anchors, losses, schedule, data, features, the loop. Public: `interface`."""
