"""Speed of a published geometry with random weights, for where no checkpoint can be had."""
