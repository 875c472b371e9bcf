# SPDX-License-Identifier: Apache-2.0
"""Compares what layers of two checkpoints compute: the cosine between x . W^T with the weights of one and of the other.

Usage: check_products.py SOURCE COPY INFO.json LABEL BOUND
INFO.json: `transfuse info --json` of the compressed COPY
BOUND, for the relative RMS error e of a layer's weights:
  bf16     half a unit in the last of 8 bits: e <= 2^-9 for normal numbers
  int8     a step s = absmax / 127 for each row leaves e^2 = sum(s^2 / 12) / sum(w^2); a tenth is allowed on top
  bits:B   a uniform quantizer with entropy coding comes within 0.2546 bit of 2^-R, the Gaussian rate-distortion
           function (Gish and Pierce 1968), and other densities do better; BITS_SPENT more is allowed for side tables,
           tile metadata and classes. Of all layers together, since the bits are those of a layer's whole blob.

If the errors are no larger than e, the angle between the two matrices is at most arcsin(e), so that their cosine is at
least sqrt(1 - e^2). For independent normal x the cosine of the products estimates that of the matrices.
"""

import json
import sys

import numpy as np
from read_checkpoint import as_float, read

INPUTS = 256
# The tolerance of the cosine's estimate, from a few thousand products with a few hundred inputs each.
SAMPLING = 1.1
# Header, table and metadata of a 384 x 384 layer take 0.1 bit a weight, a scale for each of its rows 0.08, and padding
# of its four tiles and of what stands before them 0.02; quads lose 0.2 on the classes, and lanes round up to whole
# words.
BITS_SPENT = 0.62


def cosine(a, b):
    return float(np.sum(a * b) / np.sqrt(np.sum(a * a) * np.sum(b * b)))


def expected_error(bound, weights):
    if bound == "bf16":
        return 2.0**-9
    if bound == "int8":
        steps = np.max(np.abs(weights), axis=1) / 127
        return 1.1 * float(np.sqrt(np.sum(steps**2) / 12 * weights.shape[1] / np.sum(weights**2)))
    return 2.0 ** -(float(bound.removeprefix("bits:")) - 0.2546 - BITS_SPENT)


def main():
    source, copy = read(sys.argv[1]), read(sys.argv[2])
    with open(sys.argv[3], encoding="utf-8") as file:
        info = json.load(file)
    label, bound = sys.argv[4:]
    assert source.keys() == copy.keys()
    compressed_tensors = {tensor["name"]: tensor for tensor in info["tensors"] if tensor["compressed"]}
    rng = np.random.default_rng(7)
    worst_cosine, worst_error, noise, signal = 1.0, 0.0, 0.0, 0.0
    for name, tensor in source.items():
        if name not in compressed_tensors:
            assert tensor[1].tobytes() == copy[name][1].tobytes(), f"{name} was not compressed, and yet changed"
            continue
        weights, others = as_float(tensor), as_float(copy[name])
        error = float(np.linalg.norm(weights - others) / np.linalg.norm(weights))
        x = rng.standard_normal((INPUTS, weights.shape[1]))
        similarity = cosine(x @ weights.T, x @ others.T)
        limit = expected_error(bound, weights)
        assert error <= limit, f"{name}: relative error {error:.5f}, expected at most {limit:.5f}"
        floor = np.sqrt(1 - (SAMPLING * limit) ** 2)
        assert similarity >= floor, f"{name}: cosine {similarity:.6f}, expected at least {floor:.6f}"
        worst_cosine, worst_error = min(worst_cosine, similarity), max(worst_error, error)
        noise += np.sum((weights - others) ** 2)
        signal += np.sum(weights**2)
    compressed_bytes = sum(tensor["bytes"] for tensor in compressed_tensors.values())
    count = sum(int(np.prod(tensor["shape"])) for tensor in compressed_tensors.values())
    print(
        f"{label:<32} {len(compressed_tensors):>3} tensors  {8 * compressed_bytes / count:7.3f} bits  "
        f"{info['bytes'] / 1e6:7.2f} MB of {info['source_bytes'] / 1e6:.2f}  error {np.sqrt(noise / signal):.5f}, "
        f"worst {worst_error:.5f}  cosine at least {worst_cosine:.6f}"
    )


if __name__ == "__main__":
    main()
