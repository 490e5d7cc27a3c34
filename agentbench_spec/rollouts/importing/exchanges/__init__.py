"""Records of single model calls: one request a row, spans of a trace; folded into sessions."""
