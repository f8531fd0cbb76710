# Calls that a program in Rust makes only with unsafe code: a line in, a line out.
import ctypes, mmap, os, platform, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
# io_setup, io_destroy, io_getevents, io_submit
SETUP, DESTROY, EVENTS, SUBMIT = {"x86_64": (206, 207, 208, 209)}.get(platform.machine(), (0, 1, 4, 2))


def call(number, *args):
    got = libc.syscall(ctypes.c_long(number), *args)
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got


def store(path, at, length, value):
    fd = os.open(path, os.O_RDWR)
    try:
        start = at // 4096 * 4096
        with mmap.mmap(fd, at + length - start, offset=start) as m:
            m[at - start:] = bytes([value]) * length
            m.flush()
    finally:
        os.close(fd)


def submit(path, at, length, value):
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    context = ctypes.c_ulong(0)
    data = mmap.mmap(-1, length)
    data[:] = bytes([value]) * length
    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
    block = ctypes.create_string_buffer(struct.pack("QIIHhIQQqQII", 0, 0, 0, 1, 0, fd, address, length, at, 0, 0, 0))
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(block))
    events = ctypes.create_string_buffer(32)
    call(SETUP, 1, ctypes.byref(context))
    try:
        call(SUBMIT, context, ctypes.c_long(1), pointers)
        call(EVENTS, context, ctypes.c_long(1), ctypes.c_long(1), events, None)
    finally:
        call(DESTROY, context)
        os.close(fd)
    wrote = struct.unpack("QQqq", events.raw)[2]
    if wrote != length:
        raise OSError(-wrote if wrote < 0 else 5, f"wrote {wrote} of {length}")


for line in sys.stdin:
    what, path, at, length, value = line.split()
    at, length, value = int(at), int(length), int(value)
    try:
        if what == "store":
            store(path, at, length, value)
        elif what == "submit":
            submit(path, at, length, value)
        print("ok", flush=True)
    except OSError as error:
        print(f"{what}: {error}", flush=True)
