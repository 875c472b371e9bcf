# SPDX-License-Identifier: Apache-2.0
"""Lets each allocation and each thread that libtransfuse asks for fail under Python, once and from then on.

    LD_PRELOAD=LIBRARY PYTHONPATH=... python memory_campaign.py LIBRARY [--every N]

LIBRARY is memory_faults.c, compiled as the tests do (build/release/tests/faults/libmemory_faults.so), and the package
transfuse has to be found, with its shared library. Each act runs until nothing is left to fail. What must hold: it
raises OutOfMemoryError or succeeds with the right result, leaves no file, and the next attempt works. At the end, ten
rounds of failures must not have made the process larger.
"""

import argparse
import ctypes
import os
import tempfile

import numpy as np
import transfuse


def write_source(path):
    """A safetensors file of two BF16 matrices."""
    generator = np.random.default_rng(3)
    data = b"".join(
        (generator.normal(0, 0.02, (rows, 320)).astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        for rows in (192, 300)
    )
    first = 192 * 320 * 2
    header = (
        f'{{"a.weight":{{"dtype":"BF16","shape":[192,320],"data_offsets":[0,{first}]}},'
        f'"b.weight":{{"dtype":"BF16","shape":[300,320],"data_offsets":[{first},{len(data)}]}}}}'
    ).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def make_acts():
    """@return name -> what is done, which returns what has to be the same each time."""

    def compress():
        transfuse.compress("in.safetensors", "new", threads=2)
        return read("new")

    def decompress():
        transfuse.decompress("good", "new", threads=2)
        return read("new")

    def verify():
        return transfuse.verify("good", against="in.safetensors", threads=2).tensors

    def info():
        return [tensor.name for tensor in transfuse.info("good").tensors]

    def load():
        layer = transfuse.Layer.load("good", "b.weight")
        return layer.decode().tobytes()

    def product():
        layer = transfuse.Layer.load("good", "b.weight")
        return layer.matmul(np.ones((2, 320), np.float32)).tobytes()

    return {f.__name__: f for f in (compress, decompress, verify, info, load, product)}


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_act(faults, name, act, every, lasts):
    """@return how many failures there were, and how many of them were survived."""
    right, number, survived = act(), 1, 0
    if os.path.exists("new"):
        os.unlink("new")
    before = sorted(os.listdir("."))
    while True:
        assert faults.memory_faults_begin(number, lasts), "libtransfuse is not loaded"
        try:
            result = act()
        except transfuse.OutOfMemoryError:
            result = None
        finally:
            calls = faults.memory_faults_end()
        if result is not None:
            assert result == right, (name, number, "another result")
            survived += 1
            if os.path.exists("new"):
                os.unlink("new")
        assert sorted(os.listdir(".")) == before, (name, number, os.listdir("."))
        if calls < number:
            return number - 1, survived - 1
        number += every


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--every", type=int, default=1)
    arguments = parser.parse_args()
    faults = ctypes.CDLL(os.path.abspath(arguments.library))
    faults.memory_faults_begin.argtypes = [ctypes.c_long, ctypes.c_int]
    faults.memory_faults_end.restype = ctypes.c_long
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        write_source("in.safetensors")
        transfuse.compress("in.safetensors", "good")
        for name, act in make_acts().items():
            for lasts in (0, 1):
                calls, survived = run_act(faults, name, act, arguments.every, lasts)
                how = "and all later ones" if lasts else "alone"
                print(f"{name}: each of {calls} calls fails {how}; {survived} times the work was done all the same")
        acts = make_acts()
        run_act(faults, "load", acts["load"], 1, 0)
        size = resident_bytes()
        for _ in range(10):
            run_act(faults, "load", acts["load"], 1, 0)
        grown = resident_bytes() - size
        assert grown < 1 << 20, f"ten rounds of failures made the process {grown} bytes larger"
        os.chdir("/")


if __name__ == "__main__":
    main()
