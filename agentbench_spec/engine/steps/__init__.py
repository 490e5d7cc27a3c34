"""The steps of a round: launched one by one, or static, so that a CUDA graph can hold each."""
