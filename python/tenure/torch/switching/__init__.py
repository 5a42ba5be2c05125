"""More models than fit on a device: the switcher, its models and their CUDA graphs."""
