"""Row kernels of the device tables: Triton on CUDA, the same arithmetic in plain torch everywhere else."""
