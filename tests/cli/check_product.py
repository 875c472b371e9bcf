# SPDX-License-Identifier: Apache-2.0
"""Compares Y.npy with X . W^T, where W is a matrix of a safetensors file.

Usage: check_product.py Y.npy X.npy CHECKPOINT TENSOR [EXPERT]
"""

import sys

import numpy as np
from read_checkpoint import as_float, read


def main():
    y, x = np.load(sys.argv[1]), np.load(sys.argv[2])
    weights = as_float(read(sys.argv[3])[sys.argv[4]])
    if len(sys.argv) > 5:
        weights = weights[int(sys.argv[5])]
    x = np.atleast_2d(x).astype(np.float64)
    assert y.dtype == np.float32 and y.shape == (len(x), len(weights)), (y.dtype, y.shape)
    # Sums of K products in F32, whose roundings are of the size of the largest partial sum.
    limit = weights.shape[1] * 2.0**-24 * (np.abs(x) @ np.abs(weights).T)
    difference = np.abs(y - x @ weights.T)
    assert np.all(difference <= limit + 1e-30), f"off by {np.max(difference / (limit + 1e-30)):.2f} times the bound"


if __name__ == "__main__":
    main()
