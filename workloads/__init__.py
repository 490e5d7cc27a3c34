"""Built-in workloads. They come through the same entry points as a third party's."""
