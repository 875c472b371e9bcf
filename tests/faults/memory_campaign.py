# SPDX-License-Identifier: Apache-2.0
"""Lets each allocation and each thread that libtransfuse asks for fail under Python, once and from then on.

    LD_PRELOAD=LIBRARY PYTHONPATH=... python memory_campaign.py LIBRARY [--every N] [--torch cpu|cuda]

LIBRARY is memory_faults.c, compiled as the tests do (build/release/tests/faults/libmemory_faults.so), and the package
transfuse has to be found, with its shared library; with --torch also torch and the ops, whose acts are done on that
device instead. With --torch cuda LIBRARY may also be what the target cuda_call_faults makes
(build/release/tests/gpu/libcuda_call_faults.so): then calls of CUDA fail. Each act runs until nothing is left to fail.
What must hold: it raises OutOfMemoryError (for CUDA's calls any TransfuseError, and RuntimeError from an op) or
succeeds with the right result, leaves no file, and the next attempt works. At the end, ten rounds of failures must not
have made the process larger.
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

    def encode():
        return transfuse.Layer.encode(weights).to_bytes()

    def open_file():
        return transfuse.Layer.open("a.trf").decode().tobytes()

    def from_bytes():
        return transfuse.Layer.from_bytes(read("a.trf")).decode().tobytes()

    def choose_layouts():
        return transfuse.choose_layouts("good", "80GB", [1, 8]).microseconds

    weights = np.random.default_rng(4).normal(0, 0.02, (128, 256)).astype(np.float16)
    acts = (compress, decompress, verify, info, load, product, encode, open_file, from_bytes, choose_layouts)
    return {act.__name__: act for act in acts}


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_failure(error, of_cuda):
    """Whether an error is one that a failing call may come to. An op of torch can only raise RuntimeError."""
    if isinstance(error, transfuse.TransfuseError):
        return of_cuda or isinstance(error, transfuse.OutOfMemoryError)
    return of_cuda or "alloc" in str(error) or "memory" in str(error)


def run_act(faults, name, act, every, lasts):
    """@return how many failures there were, and how many of them were survived."""
    right, number, survived = act(), 1, 0
    of_cuda = hasattr(faults, "cuda_call_faults_begin")
    begin, end = (
        (faults.cuda_call_faults_begin, faults.cuda_call_faults_end)
        if of_cuda
        else (faults.memory_faults_begin, faults.memory_faults_end)
    )
    if os.path.exists("new"):
        os.unlink("new")
    before = sorted(os.listdir("."))
    while True:
        assert begin(number, lasts), "libtransfuse is not loaded"
        try:
            result = act()
        except (transfuse.TransfuseError, RuntimeError) as error:
            if not is_failure(error, of_cuda):
                raise
            result = None
        finally:
            calls = end()
        assert calls > 0, (name, "no call of the library's is counted")
        if result is not None:
            assert result == right, (name, number, "another result")
            survived += 1
            if os.path.exists("new"):
                os.unlink("new")
        assert sorted(os.listdir(".")) == before, (name, number, os.listdir("."))
        if of_cuda or number % 10 == 1:
            assert act() == right, (name, number, "another result of the next attempt")
            if os.path.exists("new"):
                os.unlink("new")
        if calls < number:
            return number - 1, survived - 1
        number += every


def load_faults(path):
    """@return the library that lets calls fail: memory_faults.c, or tests/gpu/cuda_call_faults.c."""
    faults = ctypes.CDLL(os.path.abspath(path))
    for name in ("memory_faults", "cuda_call_faults"):
        if hasattr(faults, f"{name}_begin"):
            getattr(faults, f"{name}_begin").argtypes = [ctypes.c_long, ctypes.c_int]
            getattr(faults, f"{name}_end").restype = ctypes.c_long
    return faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--torch", metavar="DEVICE", help="do what the torch ops are for, on cpu or cuda")
    arguments = parser.parse_args()
    faults = load_faults(arguments.library)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        write_source("in.safetensors")
        transfuse.compress("in.safetensors", "good")
        with open("a.trf", "wb") as file:
            file.write(transfuse.Layer.load("good", "a.weight").to_bytes())
        acts = make_acts()
        if arguments.torch:
            import memory_torch_acts

            acts = memory_torch_acts.make_acts(arguments.torch, os.path.abspath("good"))
        for name, act in acts.items():
            for lasts in (0, 1):
                calls, survived = run_act(faults, name, act, arguments.every, lasts)
                how = "and all later ones" if lasts else "alone"
                print(f"{name}: each of {calls} calls fails {how}; {survived} times the work was done all the same")
        # Threads of torch come with arenas of memory, also where nothing fails.
        name, act = next((name, act) for name, act in acts.items() if name.endswith("load"))
        for _ in range(3 if arguments.torch else 1):
            run_act(faults, name, act, 1, 0)
        size, most = resident_bytes(), 1 << 23 if arguments.torch else 1 << 20
        for _ in range(10):
            run_act(faults, name, act, 1, 0)
        grown = resident_bytes() - size
        assert grown < most, f"ten rounds of failures made the process {grown} bytes larger"
        os.chdir("/")


if __name__ == "__main__":
    main()
