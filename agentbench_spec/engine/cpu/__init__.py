"""What makes rounds fast on a CPU: kernels that are raced once on each machine."""
