"""A user who has taken a mount's name in a network of its own, and a program that uses the library there."""
import fcntl
import os
import socket
import subprocess
import sys

path, library = sys.argv[1:3]
fd = os.open(path, os.O_RDONLY)
name = fcntl.ioctl(fd, 2 << 30 | 64 << 16 | ord("N") << 8 | 1, bytes(64))[24:56].rstrip(b"\0")
ready, tell = os.pipe()
impostor = os.fork()
if impostor == 0:
    os.setuid(65534)
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    taken.bind(b"\0" + name)
    taken.listen()
    os.write(tell, b"x")
    peer, _ = taken.accept()
    read, write = os.pipe()
    peer.settimeout(10)
    try:
        socket.send_fds(peer, [bytes(8)], [read, write])
        os._exit(1 if peer.recv(48) else 0)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)
os.read(ready, 1)
script = "import os,sys; f=os.open(sys.argv[1],os.O_RDWR); os.pwrite(f,b'n'*(1<<20),0)"
environment = dict(os.environ, LD_PRELOAD=library, NURI_PRELOAD="verbose")
ran = subprocess.run([sys.executable, "-c", script, path], env=environment, capture_output=True, text=True)
assert ran.returncode == 0 and " 0 bytes written" in ran.stderr, ran
assert os.waitpid(impostor, 0)[1] == 0, "the impostor heard something"
