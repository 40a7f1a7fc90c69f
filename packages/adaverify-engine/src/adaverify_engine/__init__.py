"""Reference decode engine with paged KV, drafters and a sampler, on CPU and CUDA."""
