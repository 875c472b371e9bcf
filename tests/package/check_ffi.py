"""Uses the shared library through FFI. Usage: check_ffi.py LIBRARY SOURCE_DIR; Python's own modules only."""

import ctypes
import json
import re
import sys
import tempfile
from pathlib import Path

TRF_OK, TRF_ERR_NOT_FOUND = 0, 5


class Error(ctypes.Structure):
    _fields_ = [
        ("status", ctypes.c_int),
        ("cuda", ctypes.c_int32),
        ("offset", ctypes.c_uint64),
        ("message", ctypes.c_char * 1024),
    ]


def write_checkpoint(path):
    header = json.dumps({"bias": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"abc")


def main():
    library, source = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2])

    public = re.findall(r"^TRF_API .*?\b(trf_\w+)\(", (source / "include/transfuse.h").read_text(), re.MULTILINE)
    missing = [name for name in public if not hasattr(library, name)]
    assert len(public) > 50 and not missing, missing
    assert not hasattr(library, "trf_fail"), "internals are exported"

    library.trf_status_name.restype = ctypes.c_char_p
    assert library.trf_status_name(TRF_ERR_NOT_FOUND) == b"TRF_ERR_NOT_FOUND"

    open_checkpoint, error, checkpoint = library.trf_checkpoint_open, Error(), ctypes.c_void_p()
    library.trf_checkpoint_num_tensors.restype = ctypes.c_uint64
    assert open_checkpoint(b"/no/such/file", ctypes.byref(checkpoint), ctypes.byref(error)) == TRF_ERR_NOT_FOUND
    assert error.status == TRF_ERR_NOT_FOUND and b"/no/such/file" in error.message, error.message

    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.safetensors"
        write_checkpoint(plain)
        for path in (plain, source / "tests/golden/bf16_16x16.trf"):
            status = open_checkpoint(bytes(path), ctypes.byref(checkpoint), ctypes.byref(error))
            assert status == TRF_OK, error.message
            assert library.trf_checkpoint_num_tensors(checkpoint) == 1
            library.trf_checkpoint_close(checkpoint)


if __name__ == "__main__":
    main()
