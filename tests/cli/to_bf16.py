# SPDX-License-Identifier: Apache-2.0
"""Rewrites a checkpoint file with its F32 tensors cut to BF16. Usage: to_bf16.py IN OUT"""

import sys

import numpy as np
from make_checkpoint import write
from read_checkpoint import read


def main():
    tensors = read(sys.argv[1])
    for name, (dtype, array) in tensors.items():
        if dtype == "F32":
            tensors[name] = "BF16", (array.view(np.uint32) >> 16).astype(np.uint16)
    write(sys.argv[2], tensors)


if __name__ == "__main__":
    main()
