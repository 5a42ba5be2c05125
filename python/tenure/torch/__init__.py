"""Stock PyTorch on Tenure's allocator."""
