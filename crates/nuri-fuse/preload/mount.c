/* mount.c: connections to the processes of mounts, and transfers over them.
 *
 * A connection is a socket for requests and two pipes for bytes. Bytes go into a pipe as references to
 * pages (vmsplice) and are copied once, when they are read out of it. A connection serves one transfer
 * at a time; those that rest are kept for the next. Their descriptors lie high, out of the way of
 * programs that count on low ones, and are looked at before each use: a program may have closed them. */
#include "bypass.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { RESTING = 16, PARTS = 3 };
enum { SOCKET, FROM, TO };

struct link {
    char name[sizeof(((struct ticket *)0)->name)];
    int fds[PARTS];
    dev_t devices[PARTS];
    ino_t inodes[PARTS];
    pid_t owner; /* a child that was made without our knowledge must not share it */
    bool used;
};

struct request {
    unsigned char secret[16];
    uint32_t what, padding;
    uint64_t offset, len;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct link resting[RESTING];

/* Whether a descriptor is still the link's. */
static bool is_own(const struct link *link, int i) {
    struct stat about;
    if (fstat(link->fds[i], &about) != 0) return false;
    return about.st_ino == link->inodes[i] && about.st_dev == link->devices[i];
}

static void drop(struct link *link) {
    for (int i = 0; i < PARTS; i++) {
        if (is_own(link, i)) close(link->fds[i]);
    }
}

static bool is_whole(const struct link *link) {
    return link->owner == getpid() && is_own(link, SOCKET) && is_own(link, FROM) && is_own(link, TO);
}

/* Mounts are root's. Anybody could take the name of one that is gone, or in another network. */
static bool is_mount(int socket) {
    struct ucred who;
    socklen_t size = sizeof who;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == 0;
}

/* Moves a descriptor up; negative where that fails. */
static int raise_fd(int fd) {
    int up = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
    close(fd);
    return up;
}

/* Takes the greeting with the program's ends of the pipes. */
static bool greet(int socket, int ends[2]) {
    int64_t hello;
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {&hello, sizeof hello};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got;
    do got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    bool complete = got == sizeof hello && !(message.msg_flags & MSG_CTRUNC);
    struct cmsghdr *rights = complete ? CMSG_FIRSTHDR(&message) : NULL;
    if (!rights || rights->cmsg_type != SCM_RIGHTS || rights->cmsg_len != CMSG_LEN(2 * sizeof(int))) return false;
    memcpy(ends, CMSG_DATA(rights), 2 * sizeof(int));
    return true;
}

static bool connect_to(const char *name, struct link *link) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strnlen(name, sizeof link->name);
    memcpy(address.sun_path + 1, name, len);
    int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), ends[2] = {-1, -1};
    if (made < 0) return false;
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + 1 + len;
    if (connect(made, (struct sockaddr *)&address, size) != 0 || !is_mount(made) || !greet(made, ends)) {
        close(made);
        return false;
    }
    int all[PARTS] = {[SOCKET] = made, [FROM] = ends[0], [TO] = ends[1]};
    bool good = true;
    for (int i = 0; i < PARTS; i++) {
        struct stat about;
        link->fds[i] = raise_fd(all[i]);
        good = good && link->fds[i] >= 0 && fstat(link->fds[i], &about) == 0;
        if (good) link->inodes[i] = about.st_ino, link->devices[i] = about.st_dev;
    }
    memcpy(link->name, name, sizeof link->name);
    link->owner = getpid();
    if (good) return true;
    for (int i = 0; i < PARTS; i++) close(link->fds[i]);
    return false;
}

/* A connection to the mount, one that rests or a new one. */
static bool take(const char *name, struct link *link) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RESTING; i++) {
        struct link *one = &resting[i];
        if (!one->used || memcmp(one->name, name, sizeof one->name) != 0) continue;
        *link = *one;
        one->used = false;
        if (is_whole(link)) {
            pthread_mutex_unlock(&lock);
            return true;
        }
        drop(link);
    }
    pthread_mutex_unlock(&lock);
    return connect_to(name, link);
}

/* Keeps it for the next transfer, in place of another one where there is no room. */
static void rest(struct link *link) {
    static unsigned int oldest;
    pthread_mutex_lock(&lock);
    struct link *place = NULL;
    for (int i = 0; i < RESTING && !place; i++) {
        if (!resting[i].used) place = &resting[i];
    }
    if (!place) {
        place = &resting[oldest++ % RESTING];
        drop(place);
    }
    *place = *link;
    place->used = true;
    pthread_mutex_unlock(&lock);
}

/* Puts references to the bytes into the pipe. A mount that went away must not end the program. */
static bool lend(int pipe, char *bytes, size_t len) {
    sigset_t broken, before;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    bool whole = true;
    while (len > 0 && whole) {
        struct iovec part = {bytes, len};
        ssize_t moved = vmsplice(pipe, &part, 1, 0);
        if (moved < 0 && errno == EINTR) continue;
        whole = moved > 0;
        if (whole) bytes += moved, len -= moved;
    }
    if (!whole && errno == EPIPE && !sigismember(&before, SIGPIPE)) {
        struct timespec none = {0};
        sigtimedwait(&broken, NULL, &none);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return whole;
}

/* Takes bytes out of the pipe. */
static bool fill(int pipe, char *bytes, size_t len) {
    while (len > 0) {
        struct iovec part = {bytes, len};
        ssize_t got = readv(pipe, &part, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        bytes += got, len -= got;
    }
    return true;
}

/* One request: bytes moved or a negative error number. False where the connection is of no use. */
static bool call(struct link *link, const struct request *request, char *bytes, int64_t *result) {
    if (send(link->fds[SOCKET], request, sizeof *request, MSG_NOSIGNAL) != sizeof *request) return false;
    if (request->what == WRITE && !lend(link->fds[TO], bytes, request->len)) return false;
    ssize_t got;
    do got = recv(link->fds[SOCKET], result, sizeof *result, 0);
    while (got < 0 && errno == EINTR);
    if (got != sizeof *result || *result > (int64_t)request->len) return false;
    return request->what != READ || *result <= 0 || fill(link->fds[FROM], bytes, *result);
}

/* Writes out what mappings changed in the range: it is to be read, or must not come after what is
 * written now. 0, NOT_HERE, or -1 where bytes of the file were lost: nobody else would be told. */
static int settle(int fd, off_t at, size_t len) {
    unsigned int wait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (sync_file_range(fd, at, len, wait) == 0) return 0;
    return errno == EIO || errno == ENOSPC || errno == EDQUOT ? -1 : NOT_HERE;
}

/* All requests of a transfer, as nuri_move. */
static ssize_t transfer(struct link *link, struct request request, int fd, uint32_t largest, char *bytes, size_t len) {
    size_t done = 0;
    off_t offset = request.offset;
    while (done < len) {
        int64_t result;
        request.offset = offset + done;
        request.len = len - done < largest ? len - done : largest;
        int settled = settle(fd, request.offset, request.len);
        if (settled != 0) return done > 0 ? (ssize_t)done : settled;
        if (!call(link, &request, bytes + done, &result)) {
            link->owner = 0;
            return done > 0 ? (ssize_t)done : NOT_HERE;
        }
        if (result == -ESTALE) {
            nuri_file_forget(fd);
            return done > 0 ? (ssize_t)done : NOT_HERE;
        }
        if (result < 0) {
            errno = -result;
            return done > 0 ? (ssize_t)done : -1;
        }
        done += result;
        if (result < (int64_t)request.len) break;
    }
    return done;
}

ssize_t nuri_move(enum direction what, int fd, const struct ticket *ticket, void *bytes, size_t len, off_t offset) {
    struct link link;
    if (!take(ticket->name, &link)) {
        nuri_file_forget(fd);
        return NOT_HERE;
    }
    struct request request = {.what = what, .offset = offset};
    memcpy(request.secret, ticket->secret, sizeof request.secret);
    ssize_t done = transfer(&link, request, fd, ticket->largest, bytes, len);
    int error = errno;
    /* One that broke off in mid-request is of no use. */
    if (link.owner == 0) {
        drop(&link);
    } else {
        rest(&link);
    }
    errno = error;
    return done;
}

void nuri_mount_fork_prepare(void) { pthread_mutex_lock(&lock); }

void nuri_mount_fork_done(bool child) {
    for (int i = 0; child && i < RESTING; i++) {
        if (resting[i].used) drop(&resting[i]);
        resting[i].used = false;
    }
    pthread_mutex_unlock(&lock);
}
