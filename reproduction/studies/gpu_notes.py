"""What results/gpu-train.md says around its tables."""

HEAD = """
# Training on one GPU

Made by `python reproduction/studies/gpu_train.py table` from `gpu-train.jsonl`: the useful lines of six
calls of `gpu_train.py` on an NVIDIA H200 (torch 2.11, CUDA 13). Call 1: plain loop, `torch.vmap`, stacked
layers of plain torch, first checks. Call 2: single layers, and runs of ResNet-18 before the last changes.
Calls 3 and 4: the trainer with tuned tiles. Images are made up. Times are medians of up to 8 rounds
(ResNet-18's loop: 2) after two that compile and capture. `sliding` tells which convolutions lay out no
patches: `none`, `small` (up to 16 channels in and 32 out; the default), `first` (also the first), `all`.

Ratios depend on the loop, which took 1,482 ms for LeNet-5 in call 6 (1,280 in call 1), 4,644 for ResNet-18
in call 1; in another sitting on an H200 it took 770 and 3,210 ms (vmap: 100 and 1,530), which would make the
ratios 1.4 to 1.9 times smaller. Stacked layers of plain torch took the same in calls 1 and 2 within 1%.

Call 5 is the trainer as it is: the tiles found are the defaults, models are trained in place; all 135 GPU
tests pass with it (`python -m pytest -m gpu tests/training`). Profiles, scores and accuracies are from
before. `all` is faster in bf16, but its results were not checked on the GPU, so that `small` is the default
there too.

**A defect, found after call 5 and mended before call 6.** With several processes on the GPU (MPS), about 30
of 109 whole runs of LeNet-5 ended in NaN. The compiled kernels of its two small convolutions let a
tensor-core product run on into the next turn of their loop, where its operands in registers were overwritten
(Triton 3.6 with a ptxas before 13.3; found by reading the machine code,
`tests/training/kernels/test_compiled_kernels.py`).
Each product now ends within its turn. `reproduction/studies/gpu_soak.py` on an H200, 60 rounds by one
process and by 8 at once: before, all 8 left the numbers of one alone, from rounds 1 to 4 on, and one met
NaN; now all 8 have its bits in every round. All 135 GPU tests pass (`python -m pytest -m gpu
tests/training`, with other processes training beside), and 109 of 109 runs of LeNet-5 by 8 processes
ended well. Call 6 has LeNet-5's times, gradients and accuracies as they are now: no slower, and the
latter two as before to the digits shown. The times of `first` and `all` are from before. ResNet-18 has no
such kernel.
"""

LENET = """
How far from the floor. Arithmetic: 50,000 images of 2.26 Mflop there and back are 0.11 Tflop, 0.23 ms at
TF32's nominal 495 Tflop/s and 0.11 ms at bf16's 989. Memory, counted by hand: 120 MB of maps a step (bf16:
67) and 35 MB of weights and moments, over 20 steps 0.7 ms (bf16: 0.5) at 4.3 TB/s. So 12.5 ms is 13 times
the sum of both floors and 9.8 ms 16 times. Where the rest goes: between the first and the last kernel the
device is idle for 4.0 ms (bf16: 3.9) of 613 launches; the profile does not tell gaps between kernels from
waiting for the host. Of the 9.2 ms it is busy (bf16: 5.9) 83% (79%) are the two convolutions: gradients of
weights 3.6 ms (2.3), of the map 2.6 (1.1), forward 1.1 (1.0). They do 1.9 times the arithmetic needed,
before it is rounded up to tiles: 6 channels are filled up to 8, and with pooling inside a window has 36
places for 25. Even so they are far from the units' rate, and what holds them up was not measured. All else
is 1.6 ms (1.2) in 433 launches of 3.6 us on average. The tiles of the second convolution were never tried.
"""

RESNET = """
How far from the floor. Arithmetic: without weights that no image meets the products of a round are 15.6
Tflop, 32 ms at TF32's nominal 495 Tflop/s and 16 ms at bf16's 989 (with all weights 22 Tflop, 44 and 22 ms;
the estimate before was 30 to 60). Memory: moving every map once takes 4.8 ms a round at 4.3 TB/s (bf16:
2.4); by a count by hand each is moved 14 times there and back, 68 ms (34), and Adam takes 11. So tf32's 279
ms is 9 times the arithmetic and 3.5 times the memory floor, bf16's 191 ms 12 and 4.2 times. Launches are
not it: the device is busy for 273 of 279 ms (182 of 191). Where it goes, in tf32: products at least 110 ms,
over three times their floor, for they read patches: in the 8x8 layers a product takes 199 us, of which
moving its matrices is 196, at 122 Tflop/s; laying patches out and folding them back 74; BatchNorm 50, by 8
moves of each map 39 were needed; Adam 11. In bf16: products at least 50, patches and folding 50, of which
16 turn bytes into the first layer's patches (tf32: 9); BatchNorm 48, where 19 were needed: the kernels that
sum take 33 ms, more than tf32's 25 from twice the bytes. `all` spares patches and folding, but its
gradients of weights are slower than cuBLAS's, 544 us against 212 in an 8x8 layer in tf32, 127 against 101
in bf16: in all it loses 28 ms in tf32 and gains 21 in bf16.
"""

RUNS = """
100 clients, 20 a round, four clusters averaged and scored on 10,000 images each after every round.
Call 5 has runs of 100 rounds as the trainer is now. Kernels had been compiled before; where they had not,
first rounds took up to 15 s (above). The task is easy: that all runs end at an accuracy of 1.0 shows nothing.
"""

SCORES = """
Four models, 10,000 images each, median of five. What takes the time beyond the device's was not taken
apart; the same call under the profiler was up to 10 ms faster.
"""

SCALE = """
tf32, `small`; of 1,000 clients of 500 samples. Time a client stays the same from 50 clients on; ResNet-18
in 8 GiB takes some 15% longer than in 80. The peak is all that torch's allocator held. The budget bounds the
clients in training; images (3.6 GiB in two layouts) and a trained model for each client of the round (200 of
ResNet-18: 8.3 GiB) come on top of it (docs/config.md). **So ResNet-18 held 22.6 GiB with a budget of 8**, and
33.1 in call 4, before models were trained in place. The budget's own estimate, 0.93 GiB a client, is
cautious: 0.53 were used.
"""

ACCURACY = """
LeNet-5, 20 rounds of 10 clients of 250 samples, hard made-up images, 5,000 of them to score on; a seed is
another dataset and start. Round-off alone (fused fp32) moves a seed by up to 0.0024, tf32 by 0.0026, bf16
by 0.0046; mean gaps are at most 0.0006. Three seeds are too few to rule out a bias of that size. ResNet-18
has no such test.
"""

CHECKS = """
The plain loop in float64 is the truth. Float64 runs on plain torch's primitives: that checks the stacking,
not Triton's kernels. These are checked by the gradient of one SGD step, shown to six digits. ResNet-18's is
off by 0.3% in fp32, with plain torch as with Triton, but by 12% in tf32 and 37% in bf16, at batches of 33
to 65 images, presumably since BatchNorm over few values amplifies round-off; how much of it is the
precision's fault in any trainer was not measured. Call 1 had no `sliding`: it laid out patches. Each
gradient was taken three times (run, capture, replay) with the same result.
"""

TILES = """
rows/places/outputs, warps, stages; the last column is what the rule before gave. LeNet-5's are the defaults
now as they stand here; so are ResNet-18's except where a simpler rule is within 2% (w8, s2 of `back`, s4).
LeNet-5's second convolution was not tried and keeps what it had; maps below 8x8 follow the 8x8 layers,
untried.
"""

NOTES = [HEAD, LENET, RESNET, RUNS, SCORES, SCALE, ACCURACY, CHECKS, TILES]
