"""The benchmarks of the components, one module each; ``adaverify.hooks`` registers them."""
