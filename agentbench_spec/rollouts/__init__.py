"""What is replayed: messages rendered to tokens, how contexts grow, and traces read from elsewhere."""
