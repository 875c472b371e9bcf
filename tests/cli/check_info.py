# SPDX-License-Identifier: Apache-2.0
"""Compares what `transfuse info --json` says with the checkpoints themselves.

Usage: check_info.py INFO.json SOURCE [COMPRESSED_NAME...]   names: exactly the tensors that must be compressed
"""

import json
import sys

from read_checkpoint import read

ELEMENT_BITS = {"F32": 32, "F16": 16, "BF16": 16, "I64": 64}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        info = json.load(file)
    source = read(sys.argv[2])
    listed = {tensor["name"]: tensor for tensor in info["tensors"]}
    assert len(listed) == len(info["tensors"]) == info["num_tensors"], "a name twice"
    assert listed.keys() == source.keys(), listed.keys() ^ source.keys()
    assert {name for name, tensor in listed.items() if tensor["compressed"]} == set(sys.argv[3:]), sorted(
        name for name, tensor in listed.items() if tensor["compressed"]
    )
    assert info["compressed_tensors"] == len(sys.argv) - 3
    for name, (dtype, array) in source.items():
        tensor = listed[name]
        assert (tensor["dtype"], tensor["shape"]) == (dtype, list(array.shape)), name
        assert tensor["source_bytes"] == array.nbytes, name
        if array.size == 0:
            assert tensor["bits_per_weight"] is None, name
        else:
            assert abs(tensor["bits_per_weight"] - 8 * tensor["bytes"] / array.size) < 1e-9, name
        if tensor["compressed"]:
            assert tensor["blobs"] == (array.shape[0] if array.ndim == 3 else 1), name
            assert tensor["class_bits"] in (2, 4) and 9 <= tensor["probability_bits"] <= 12, name
            assert tensor["slab_cols"] in (128, 256), name
            assert 0 <= tensor["stored_tiles"] <= tensor["tiles"] and tensor["exceptions"] >= 0, name
        else:
            assert tensor["codec"] is None and tensor["bytes"] == array.nbytes, name
    for key in ("source_bytes", "bytes"):
        assert info[key] == sum(tensor[key] for tensor in info["tensors"]), key


if __name__ == "__main__":
    main()
