# SPDX-License-Identifier: Apache-2.0
"""What a power cut leaves of what disk_faults.c has recorded.

The model promises no more than POSIX does. A file's bytes are on the disk once the file is synced, and a folder's
entries once the folder is. Of what is not synced any part may be there: of a file any of its writes, also half of one;
of a folder any of its changes, as long as those of one name keep their order.
"""

import os
import stat
import struct

OPEN, WRITE, RESIZE, SYNC, CLOSE, RENAME, LINK, UNLINK, MKDIR, RMDIR, SYMLINK = range(1, 12)
HEAD = struct.Struct("<IiQII")
NOREPLACE, EXCHANGE = 1, 2
SECTOR = 512


class Record:
    def __init__(self, call, fd, offset, first, second):
        self.call, self.fd, self.offset, self.first, self.second = call, fd, offset, first, second

    def counts(self):
        """@return whether the call is one of those that may fail: all but opening a folder."""
        return self.call != OPEN or bool(self.offset & (os.O_CREAT | os.O_WRONLY | os.O_RDWR))


def read_log(path):
    with open(path, "rb") as file:
        text = file.read()
    at, records = 0, []
    while at < len(text):
        call, fd, offset, first, second = HEAD.unpack_from(text, at)
        at += HEAD.size
        records.append(Record(call, fd, offset, text[at : at + first], text[at + first : at + first + second]))
        at += first + second
    return records


class File:
    """A file: what is on the disk, and the writes that may be."""

    def __init__(self, content=b""):
        self.synced, self.pending = bytearray(content), []

    def apply(self, content, change):
        kind, offset, data = change
        if kind == RESIZE:
            del content[offset:]
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data

    def sync(self):
        for change in self.pending:
            self.apply(self.synced, change)
        self.pending = []

    def write_out(self, path, random):
        content, chance = bytearray(self.synced), random.choice((0, 0.5, 0.9, 1))
        for kind, offset, data in self.pending:
            if random.random() >= chance:
                continue
            if len(data) > SECTOR and random.random() < 0.2:
                data = data[: SECTOR * random.randrange(len(data) // SECTOR + 1)]
            self.apply(content, (kind, offset, data))
        with open(path, "wb") as file:
            file.write(content)


class Link:
    def __init__(self, text):
        self.text = text

    def write_out(self, path, random):
        os.symlink(self.text, path)


class Folder:
    """A folder: its entries now, those on the disk, and the changes that may be."""

    def __init__(self):
        self.now, self.synced, self.pending = {}, {}, []

    @staticmethod
    def apply(entries, change):
        """change: the names with what each is afterwards; None: nothing."""
        for name, node in change.items():
            if node is None:
                entries.pop(name, None)
            else:
                entries[name] = node

    def change(self, names):
        self.apply(self.now, names)
        self.pending.append(names)

    def sync(self):
        self.synced, self.pending = dict(self.now), []

    def write_out(self, path, random):
        entries, lost, chance = dict(self.synced), set(), random.choice((0, 0.5, 0.9, 1))
        for change in self.pending:
            if random.random() < chance and not lost & set(change):
                self.apply(entries, change)
            else:
                lost |= set(change)
        os.mkdir(path)
        for name, node in entries.items():
            node.write_out(os.path.join(path, os.fsdecode(name)), random)


def load(path):
    """@return what is in a folder, as something that has been on the disk for long."""
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        return Link(os.readlink(path))
    if not stat.S_ISDIR(info.st_mode):
        with open(path, "rb") as file:
            return File(file.read())
    folder = Folder()
    for name in os.listdir(path):
        folder.now[os.fsencode(name)] = load(os.path.join(path, name))
    folder.sync()
    return folder


class Disk:
    """A folder on which records are played. place: where it was when they were made."""

    def __init__(self, root, place):
        self.root, self.place, self.open = root, os.fsencode(place), {}

    def find(self, path):
        """@return the folder of a path, and the name in it; the name is empty for the root itself."""
        assert path.startswith(self.place), path
        parts = path[len(self.place) :].strip(b"/").split(b"/")
        node = self.root
        for part in parts[:-1]:
            node = node.now[part]
        return node, parts[-1]

    def play(self, record):
        if record.call == OPEN:
            folder, name = self.find(record.first)
            if name and name not in folder.now:
                folder.change({name: File()})
            self.open[record.fd] = folder.now[name] if name else self.root
        elif record.call in (WRITE, RESIZE):
            self.open[record.fd].pending.append((record.call, record.offset, record.first))
        elif record.call == SYNC:
            self.open[record.fd].sync()
        elif record.call == CLOSE:
            del self.open[record.fd]
        else:
            self.play_names(record)

    def play_names(self, record):
        folder, name = self.find(record.second if record.second else record.first)
        if record.call in (UNLINK, RMDIR):
            folder.change({name: None})
        elif record.call == MKDIR:
            folder.change({name: Folder()})
        elif record.call == SYMLINK:
            folder.change({name: Link(os.fsdecode(record.first))})
        else:
            other, former = self.find(record.first)
            assert other is folder, "the model has no renames from folder to folder"
            node = folder.now[former]
            if record.call == LINK:
                folder.change({name: node})
            else:
                folder.change({name: node, former: folder.now[name] if record.offset == EXCHANGE else None})


def cut_power(before, place, records, count, target, random):
    """Writes to `target` what is on the disk if the power fails after so many records. before: a copy of the folder at
    their beginning; place: where they were made."""
    disk = Disk(load(before), place)
    for record in records[:count]:
        disk.play(record)
    disk.root.write_out(target, random)
