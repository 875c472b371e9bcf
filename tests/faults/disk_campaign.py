# SPDX-License-Identifier: Apache-2.0
"""Lets the disk fail under compress and decompress, at each call that changes it, and cuts the power.

    disk_campaign.py TRANSFUSE LIBRARY [--every N] [--cuts N] [--seed N]

LIBRARY is disk_faults.c, compiled as the tests do (build/release/tests/faults/libdisk_faults.so). Each scenario is a
command that makes a new output or replaces an old one. What must hold:

* The exit status is 0 only if the output is whole. Otherwise the old output, or none, is under its name, unless the
  message says that only the last sync of the folder failed.
* Nothing else is there after a failure, but for what the folder cannot lose because a removal failed, or what the
  option --resume keeps. SIGKILL and a power cut leave temporaries, whose names say so.
* The same command then succeeds (with -f or --resume) and leaves the output alone, byte for byte.

--every: one in so many calls fails, rather than each one. --cuts: power cuts, over all scenarios.
"""

import argparse
import collections
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

import disk_model

TEMPORARY = re.compile(r"^out\.transfuse-(tmp|old|resume)-[0-9a-f]{8}$")
HEAD_BYTES, RECORD_BYTES = 24, 64  # of a journal
KINDS = "ENOSPC", "EIO", "EINTR", "SHORT", "TERM", "KILL", "TORN"


def snapshot(path):
    """@return all that is at a path: bytes, a link's text, or a folder's entries; None if nothing is."""
    if os.path.islink(path):
        return ("link", os.readlink(path))
    if os.path.isdir(path):
        return {name: snapshot(os.path.join(path, name)) for name in sorted(os.listdir(path))}
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        return file.read()


class Scenario:
    """A command, with what it finds in its folder, and what it makes there."""

    def __init__(self, name, arguments, old=None, resume=False, plain_rename=False):
        self.name, self.arguments, self.old, self.resume = name, list(arguments), old, resume
        self.environment = {"TRF_FAULT_NO_RENAMEAT2": "1"} if plain_rename else {}
        self.plain_rename = plain_rename
        if old:
            self.arguments.append("-f")
        if resume:
            self.arguments.append("--resume")


class Campaign:
    def __init__(self, binary, library, place):
        self.binary, self.library, self.place = binary, library, place
        self.folder, self.log = os.path.join(place, "disk"), os.path.join(place, "log")
        self.counts = collections.Counter()

    def begin(self, scenario):
        shutil.rmtree(self.folder, ignore_errors=True)
        os.mkdir(self.folder)
        if scenario.old:
            copy = shutil.copytree if os.path.isdir(scenario.old) else shutil.copy
            copy(scenario.old, os.path.join(self.folder, "out"))

    def run(self, scenario, more=(), **faults):
        environment = os.environ | scenario.environment
        for name, value in faults.items():
            environment["TRF_FAULT_" + name.upper()] = str(value)
        if faults:
            environment |= {"TRF_FAULT_FOLDER": self.folder, "LD_PRELOAD": self.library}
        command = [self.binary, *scenario.arguments, "-T", "1", "-o", os.path.join(self.folder, "out"), *more]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)

    def state(self):
        """@return the output, and what else there is."""
        return snapshot(os.path.join(self.folder, "out")), sorted(set(os.listdir(self.folder)) - {"out"})

    def has_record(self, others):
        """@return whether a journal says that a tensor is encoded."""
        journals = [name.replace("-tmp-", "-resume-") for name in others if "-tmp-" in name]
        paths = [os.path.join(self.folder, name) for name in journals if name in others]
        return any(os.path.getsize(path) >= HEAD_BYTES + RECORD_BYTES for path in paths)

    def check_repeated(self, scenario, why):
        """The same command, unharmed, has to come to the same end as ever."""
        before, others = self.state()
        can_continue = self.has_record(others)
        process = self.run(scenario, () if scenario.old or before is None else ("-f",))
        output, left = self.state()
        assert process.returncode == 0 and output == scenario.new, (why, process.returncode, process.stderr)
        continued = "had been encoded by an earlier run" in process.stderr
        self.counts["continued"] += continued
        if scenario.resume and "power cut" not in why:
            # A former output, whose name has been exchanged, has other blobs than the journal says.
            assert continued == (can_continue and before != scenario.new), (why, others, process.stderr)
        # Without -f leftovers stay, and so does the one former folder that there was for a while. All are named.
        if scenario.old:
            assert all(".transfuse-old-" in name for name in left), (why, left, process.stderr)
        journals = [name for name in left if "-resume-" in name]
        assert all(name in process.stderr for name in set(left) - set(journals)), (why, left, process.stderr)
        assert all(name.replace("-resume-", "-tmp-") in left for name in journals), (why, left, process.stderr)

    def learn(self, scenario):
        """Runs a scenario without faults. @return its records."""
        if os.path.exists(self.log):
            os.unlink(self.log)
        self.begin(scenario)
        scenario.before = snapshot(os.path.join(self.folder, "out"))
        process = self.run(scenario, log=self.log)
        assert process.returncode == 0, (scenario.name, process.stderr)
        scenario.new, others = self.state()
        assert scenario.new is not None and not others, (scenario.name, others)
        return disk_model.read_log(self.log)

    def find_former(self, others):
        """@return former folders that gave way, where the file system cannot exchange two names."""
        return [snapshot(os.path.join(self.folder, name)) for name in others if ".transfuse-old-" in name]

    def check_output(self, scenario, output, others, why):
        """Checks what there is after a sudden end."""
        is_aside = output is None and scenario.plain_rename and scenario.before in self.find_former(others)
        assert output in (scenario.before, scenario.new) or is_aside, why

    def check_fault(self, scenario, kind, number, call, lasts):
        why = scenario.name, kind, number, call, lasts
        self.begin(scenario)
        faults = {"at": number, "kind": kind} | ({"lasts": 1} if lasts else {})
        process = self.run(scenario, **faults)
        status, (output, others) = process.returncode, self.state()
        removes = call in (disk_model.UNLINK, disk_model.RMDIR)
        self.counts[kind + (" that lasts" if lasts else "")] += 1
        assert all(TEMPORARY.match(name) for name in others), (why, others)
        if status == -signal.SIGKILL:
            assert kind in ("KILL", "TORN"), why
            self.check_output(scenario, output, others, why)
        elif status == 0:
            assert output == scenario.new, why
            assert not others or removes or lasts, (why, others)
        else:
            assert status == 128 + signal.SIGTERM if kind == "TERM" else status == 1, (why, status, process.stderr)
            assert "TRF_ERR_" in process.stderr, (why, process.stderr)
            if "the output is whole" in process.stderr:
                assert output == scenario.new and (call == disk_model.SYNC or lasts), why
            elif "the former directory is now" in process.stderr:
                assert output is None and lasts and scenario.before in self.find_former(others), why
            else:
                assert output == scenario.before, (why, process.stderr)
                kept = "kept; with resume" in process.stderr
                assert not others or removes or (scenario.resume and kept), (why, others, process.stderr)
        self.check_repeated(scenario, why)

    def check_faults(self, scenario, records, every, generator):
        calls = [record.call for record in records if record.counts()]
        for kind in KINDS:
            for lasts in (False, True) if kind in ("ENOSPC", "EIO") else (False,):
                for number in range(1 + generator.randrange(every), len(calls) + 1, every):
                    call = calls[number - 1]
                    if kind in ("SHORT", "TORN") and call != disk_model.WRITE:
                        continue
                    self.check_fault(scenario, kind, number, call, lasts)

    def check_cut(self, scenario, records, generator):
        # Many are at the end, where names change; some after it, where all has to be there.
        count = generator.randrange(len(records))
        if generator.random() < 0.4:
            count = len(records) - generator.randrange(12)
        why = scenario.name, "power cut", count, len(records)
        before = os.path.join(self.place, "before")
        shutil.rmtree(before, ignore_errors=True)
        self.begin(scenario)
        os.rename(self.folder, before)
        disk_model.cut_power(before, self.folder, records, max(count, 0), self.folder, generator)
        output, others = self.state()
        self.counts["power cut"] += 1
        assert all(TEMPORARY.match(name) for name in others), (why, others)
        if count >= len(records):
            assert output == scenario.new, why
        else:
            self.check_output(scenario, output, others, why)
        self.check_repeated(scenario, why)


def make_scenarios(binary, place):
    """Makes the inputs. @return the scenarios."""
    here = os.path.dirname(os.path.abspath(__file__))
    maker = os.path.join(here, "..", "cli", "make_checkpoint.py")
    os.chdir(place)
    for kind, name in ("several_files", "folder"), ("mixed", "file.safetensors"):
        subprocess.run([sys.executable, maker, kind, name], check=True)
    os.symlink("config.json", "folder/link.json")
    os.mkdir("folder/empty")
    for source in "folder", "file.safetensors":
        subprocess.run([binary, "compress", source, "-q", "-o", "small-" + source], check=True, capture_output=True)
        options = ["--favor", "size", "-q", "-o", "old-" + source]
        subprocess.run([binary, "compress", source, *options], check=True, capture_output=True)
    scenarios = []
    for source in "folder", "file.safetensors":
        compress, decompress = ["compress", source], ["decompress", "small-" + source]
        scenarios += [
            Scenario(f"compress {source}", compress),
            Scenario(f"compress {source} -f", compress, "old-" + source),
            Scenario(f"compress {source} --resume", compress, resume=True),
            Scenario(f"compress {source} -f --resume", compress, "old-" + source, resume=True),
            Scenario(f"decompress {source}", decompress),
            Scenario(f"decompress {source} -f", decompress, source),
            Scenario(f"compress {source}, plain rename", compress, plain_rename=True),
            Scenario(f"compress {source} -f, plain rename", compress, "old-" + source, plain_rename=True),
        ]
    return scenarios


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("library")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    generator = random.Random(arguments.seed)
    binary, library = os.path.abspath(arguments.binary), os.path.abspath(arguments.library)
    with tempfile.TemporaryDirectory() as place:
        scenarios = make_scenarios(binary, place)
        campaign = Campaign(binary, library, place)
        inputs = snapshot("folder"), snapshot("file.safetensors")
        for scenario in scenarios:
            records = campaign.learn(scenario)
            campaign.check_faults(scenario, records, arguments.every, generator)
            for _ in range(-(-arguments.cuts // len(scenarios))):
                campaign.check_cut(scenario, records, generator)
            print(f"{scenario.name}: {sum(record.counts() for record in records)} calls", flush=True)
        assert inputs == (snapshot("folder"), snapshot("file.safetensors")), "an input was changed"
        os.chdir("/")
    print(", ".join(f"{kind}: {count}" for kind, count in campaign.counts.items()))


if __name__ == "__main__":
    main()
