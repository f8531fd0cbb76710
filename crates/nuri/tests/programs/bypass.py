"""What a program may ask of a mount by hand, as src/bypass/wire.rs of nuri-fuse says it."""
import array
import errno
import fcntl
import os
import socket
import struct
import sys
import time

MIB = 1 << 20
TICKET = 2 << 30 | 64 << 16 | ord("N") << 8 | 1
READ, WRITE = 1, 2


def ticket(fd):
    bytes_ = fcntl.ioctl(fd, TICKET, bytes(64))
    version, largest = struct.unpack("II", bytes_[:8])
    assert (version, largest) == (1, MIB)
    return bytes_[8:24], bytes_[24:56].rstrip(b"\0")


class Link:
    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        self.socket.connect(b"\0" + name)
        _, control, _, _ = self.socket.recvmsg(8, 64)
        ends = array.array("i")
        ends.frombytes(control[0][2])
        self.out, self.into = ends

    def ask(self, secret, what, offset, data):
        length = data if what == READ else len(data)
        self.socket.send(secret + struct.pack("IIQQ", what, 0, offset, length))
        if what == WRITE:
            os.write(self.into, data)
        answer = self.socket.recv(8)
        return struct.unpack("q", answer)[0] if answer else None


def wait_until_it_ends(secret, name, allowed):
    """The release of a file comes a moment after its close, on a busy machine a longer one."""
    link, end = Link(name), time.monotonic() + 20
    while True:
        answer = link.ask(secret, allowed, 0, 1 if allowed == READ else data[:1])
        if answer == -errno.ESTALE:
            return
        assert time.monotonic() < end, answer
        if allowed == READ:
            os.read(link.out, 1)
        time.sleep(0.01)


path = sys.argv[1]
for flags, allowed, refused in ((os.O_RDONLY, READ, WRITE), (os.O_WRONLY, WRITE, READ)):
    fd = os.open(path, flags)
    secret, name = ticket(fd)
    assert (secret, name) == ticket(fd), "the same as before"
    link = Link(name)
    before = os.stat(path)
    if allowed == READ:
        assert link.ask(secret, READ, 0, 4096) == 4096
        data = os.read(link.out, 8192)
        assert len(data) == 4096
        assert link.ask(secret, WRITE, 0, b"x" * 4096) == -errno.EBADF
    else:
        assert link.ask(secret, READ, 0, 4096) == -errno.EBADF
        assert link.ask(secret, WRITE, 0, data) == 4096
    # Nobody's ticket.
    assert link.ask(bytes(16), READ, 0, 4096) == -errno.ESTALE
    # Beyond the end, and beyond what a file can be.
    if allowed == READ:
        assert link.ask(secret, READ, 1 << 40, 4096) == 0
    else:
        assert link.ask(secret, WRITE, (1 << 63) - 1, b"x") == -errno.EFBIG
    # It ends with the open file.
    os.close(fd)
    wait_until_it_ends(secret, name, allowed)
    assert link.ask(secret, allowed, 0, 1 if allowed == READ else data[:1]) == -errno.ESTALE

# It ends between a request and its bytes.
fd = os.open(path, os.O_WRONLY)
secret, name = ticket(fd)
link = Link(name)
link.socket.send(secret + struct.pack("IIQQ", WRITE, 0, 0, 4096))
time.sleep(0.2)
os.close(fd)
wait_until_it_ends(secret, name, WRITE)
os.write(link.into, data)
assert struct.unpack("q", link.socket.recv(8))[0] == -errno.ESTALE

# A duplicate keeps it open.
fd = os.open(path, os.O_RDONLY)
secret, name = ticket(fd)
other = os.dup(fd)
os.close(fd)
link = Link(name)
assert link.ask(secret, READ, 0, 10) == 10
# Bytes that were not taken: the mount does not lend its memory a second time.
assert link.ask(secret, READ, 0, 10) is None
# What is no request ends the connection.
for garbage in (b"", b"x", b"x" * 48, b"x" * 1000, secret + struct.pack("IIQQ", READ, 0, 0, MIB + 1)):
    link = Link(name)
    link.socket.send(garbage)
    assert link.socket.recv(8) == b"", garbage
# Other ioctls are unknown, and directories have no tickets.
for target, number in ((other, TICKET + 1), (os.open(os.path.dirname(path), os.O_RDONLY), TICKET)):
    try:
        fcntl.ioctl(target, number, bytes(64))
        sys.exit("an ioctl that should be unknown")
    except OSError as error:
        assert error.errno == errno.ENOTTY, error
