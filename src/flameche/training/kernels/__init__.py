"""Stacked training on a GPU: many clients' networks in the same operations, and the Triton kernels for them.

In `training/` only `factory.py` imports from here. A network is translated once and checked against its
module (`translate`), into `layers` that know their own backward pass (`autodiff`) and whose weights lie
packed (`weight_layout`). They run on `torch_ops`, plain torch in any precision, or on `triton_ops`, which
launch `triton_kernels`; the convolutions without im2col are in `triton_conv` and `triton_conv_kernels`.
`client_stack` takes the steps, on CUDA as graphs (`cuda_graphs`), and `stacked_trainer` is the trainer.
"""
