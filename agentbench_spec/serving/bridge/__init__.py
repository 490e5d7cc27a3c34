"""An OpenAI-compatible endpoint over our own engine: every request of a real agent becomes a row."""
