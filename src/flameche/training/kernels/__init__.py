"""Training of many clients at once on a GPU, by stacked layers and Triton kernels."""
