/* calls.c: the calls of the C library that programs read and write with. */
#include "bypass.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Seen by programs. */
#define OPEN __attribute__((visibility("default")))

enum { PAGE = 4096, CACHESTAT = 451, MOST = 0x7ffff000 };

/* Shorter transfers are the kernel's. */
static size_t from = 256 << 10;
static bool is_off;
/* Where to tell at the end what was moved: programs close their standard error before. */
static int teller = -1;
static struct stat teller_is;
/* Set while a thread is in here: what a signal handler does meanwhile is the kernel's. */
static _Thread_local bool inside;
static atomic_ulong moved[3];

static ssize_t (*kernel_read)(int, void *, size_t);
static ssize_t (*kernel_write)(int, const void *, size_t);
static ssize_t (*kernel_pread)(int, void *, size_t, off_t);
static ssize_t (*kernel_pwrite)(int, const void *, size_t, off_t);

static ssize_t real_read(int fd, void *bytes, size_t len) {
    return kernel_read ? kernel_read(fd, bytes, len) : syscall(SYS_read, fd, bytes, len);
}
static ssize_t real_write(int fd, const void *bytes, size_t len) {
    return kernel_write ? kernel_write(fd, bytes, len) : syscall(SYS_write, fd, bytes, len);
}
static ssize_t real_pread(int fd, void *bytes, size_t len, off_t at) {
    return kernel_pread ? kernel_pread(fd, bytes, len, at) : syscall(SYS_pread64, fd, bytes, len, at);
}
static ssize_t real_pwrite(int fd, const void *bytes, size_t len, off_t at) {
    return kernel_pwrite ? kernel_pwrite(fd, bytes, len, at) : syscall(SYS_pwrite64, fd, bytes, len, at);
}

static void fork_prepare(void) {
    nuri_file_fork_prepare();
    nuri_mount_fork_prepare();
}
static void fork_parent(void) {
    nuri_mount_fork_done(false);
    nuri_file_fork_done();
}
static void fork_child(void) {
    nuri_mount_fork_done(true);
    nuri_file_fork_done();
    moved[READ] = moved[WRITE] = 0;
}

__attribute__((constructor)) static void start(void) {
    kernel_read = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    kernel_write = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    kernel_pread = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
    kernel_pwrite = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64");
    const char *word = getenv("NURI_PRELOAD"), *least = getenv("NURI_PRELOAD_FROM");
    is_off = word && strcmp(word, "off") == 0;
    if (word && strcmp(word, "verbose") == 0) teller = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, HIGH);
    if (teller >= 0 && fstat(teller, &teller_is) != 0) teller = -1;
    if (least && atol(least) > 2 * PAGE) from = atol(least);
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

__attribute__((destructor)) static void end(void) {
    unsigned long read = moved[READ], written = moved[WRITE];
    struct stat now;
    bool is_own = teller >= 0 && fstat(teller, &now) == 0 && now.st_ino == teller_is.st_ino && now.st_dev == teller_is.st_dev;
    if (is_own) dprintf(teller, "nuri-preload: %lu bytes read, %lu bytes written\n", read, written);
}

/* Whether the kernel has some of the range in its cache, or does not say. */
static bool is_cached(int fd, size_t len, off_t at) {
    struct { uint64_t at, len; } range = {at, len};
    struct { uint64_t cache, dirty, writeback, evicted, recently; } pages;
    if (syscall(CACHESTAT, fd, &range, &pages, 0) != 0) return true;
    return pages.cache > 0;
}

/* Whether a write goes beyond what the process may write. */
static bool is_limited(size_t len, off_t at) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return true;
    return limit.rlim_cur != RLIM_INFINITY && (rlim_t)at + len > limit.rlim_cur;
}

/* The kernel's idea of the file's end, by which it maps and copies, follows what was written. */
static void note_end(int fd, off_t end) {
    struct statx about;
    int known = statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE, &about);
    if (known != 0 || about.stx_size < (uint64_t)end) statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &about);
}

static ssize_t count(enum direction what, ssize_t done) {
    if (done > 0) atomic_fetch_add_explicit(&moved[what], done, memory_order_relaxed);
    return done;
}

/* The kernel writes the rest of what was written up to here. */
static ssize_t finish(int fd, const char *bytes, size_t done, size_t len, off_t at) {
    if (done == len) return done;
    ssize_t more = real_pwrite(fd, bytes + done, len - done, at + done);
    if (more >= 0) return done + more;
    return done > 0 ? (ssize_t)done : more;
}

/* Writes whole pages past the kernel and what is left of others by it: a page that somebody else
 * changes by a mapping is written out as a whole. */
static ssize_t write_at(int fd, const struct ticket *ticket, char *bytes, size_t len, off_t at) {
    size_t head = -(size_t)at % PAGE, pages = (len - head) / PAGE * PAGE;
    if (head > 0) {
        ssize_t done = real_pwrite(fd, bytes, head, at);
        if (done < (ssize_t)head) return done;
    }
    ssize_t done = count(WRITE, nuri_move(WRITE, fd, ticket, bytes + head, pages, at + head));
    if (done == NOT_HERE) return finish(fd, bytes, head, len, at);
    if (done < 0) return head > 0 ? (ssize_t)head : done;
    note_end(fd, at + head + done);
    if (done < (ssize_t)pages) return head + done;
    return finish(fd, bytes, head + pages, len, at);
}

/* Moves bytes past the kernel, if that is the better way. NOT_HERE, or as the call. */
static ssize_t move_at(enum direction what, int fd, const struct ticket *ticket, void *bytes, size_t len, off_t at) {
    if (at < 0 || at > INT64_MAX - MOST) return NOT_HERE;
    if (what == WRITE) return is_limited(len, at) ? NOT_HERE : write_at(fd, ticket, bytes, len, at);
    return is_cached(fd, len, at) ? NOT_HERE : count(READ, nuri_move(READ, fd, ticket, bytes, len, at));
}

/* Where the descriptor is. The range is taken at first, as others may share the position. */
static ssize_t move_here(enum direction what, int fd, const struct ticket *ticket, void *bytes, size_t len) {
    off_t end = lseek(fd, len, SEEK_CUR);
    if (end < 0) return NOT_HERE;
    off_t at = end - (off_t)len;
    ssize_t done = move_at(what, fd, ticket, bytes, len, at);
    if (done == NOT_HERE) {
        done = what == READ ? real_pread(fd, bytes, len, at) : real_pwrite(fd, bytes, len, at);
    }
    if (done < (ssize_t)len) {
        int error = errno;
        lseek(fd, (done > 0 ? done : 0) - (off_t)len, SEEK_CUR);
        errno = error;
    }
    return done;
}

/* At an offset, or (-1) where the descriptor is. */
static ssize_t move(enum direction what, int fd, void *bytes, size_t len, off_t at) {
    if (len < from || len > MOST || is_off || inside) return NOT_HERE;
    int error = errno, cancel;
    struct ticket ticket;
    inside = true;
    /* Nobody ends the thread while it holds a connection. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    ssize_t done = NOT_HERE;
    if (nuri_file(fd, &ticket)) {
        done = at < 0 ? move_here(what, fd, &ticket, bytes, len) : move_at(what, fd, &ticket, bytes, len, at);
    }
    pthread_setcancelstate(cancel, NULL);
    inside = false;
    if (done != -1) errno = error;
    return done;
}

OPEN ssize_t read(int fd, void *bytes, size_t len) {
    ssize_t done = move(READ, fd, bytes, len, -1);
    return done == NOT_HERE ? real_read(fd, bytes, len) : done;
}

OPEN ssize_t write(int fd, const void *bytes, size_t len) {
    ssize_t done = move(WRITE, fd, (void *)bytes, len, -1);
    return done == NOT_HERE ? real_write(fd, bytes, len) : done;
}

OPEN ssize_t pread(int fd, void *bytes, size_t len, off_t at) {
    ssize_t done = at < 0 ? NOT_HERE : move(READ, fd, bytes, len, at);
    return done == NOT_HERE ? real_pread(fd, bytes, len, at) : done;
}

OPEN ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) {
    ssize_t done = at < 0 ? NOT_HERE : move(WRITE, fd, (void *)bytes, len, at);
    return done == NOT_HERE ? real_pwrite(fd, bytes, len, at) : done;
}

/* Other names of the same. */
OPEN ssize_t pread64(int fd, void *bytes, size_t len, off_t at) __attribute__((alias("pread")));
OPEN ssize_t pwrite64(int fd, const void *bytes, size_t len, off_t at) __attribute__((alias("pwrite")));

/* Those of programs that are built with checks of their buffers' sizes. */
static void check(size_t len, size_t room) {
    if (len > room) abort();
}

OPEN ssize_t __read_chk(int fd, void *bytes, size_t len, size_t room) {
    check(len, room);
    return read(fd, bytes, len);
}

OPEN ssize_t __pread_chk(int fd, void *bytes, size_t len, off_t at, size_t room) {
    check(len, room);
    return pread(fd, bytes, len, at);
}

OPEN ssize_t __pread64_chk(int fd, void *bytes, size_t len, off_t at, size_t room) {
    check(len, room);
    return pread(fd, bytes, len, at);
}
