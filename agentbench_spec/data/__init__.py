"""Files shipped with the core: presets, the paper's values, the page, and drafters for the embedded model."""
