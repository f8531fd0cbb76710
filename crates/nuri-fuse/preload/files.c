/* files.c: which descriptors are files of a Nuri mount.
 *
 * Descriptors are closed and made anew in ways that no library sees. So what is remembered of one
 * counts only while it is the same inode, opened for the same: a cheap question to the kernel. */
#include "bypass.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

enum { VERSION = 1, REMEMBERED = 4096, FUSE = 0x65735546 };
#define TICKET _IOR('N', 1, struct ticket)

struct file {
    dev_t device;
    uint64_t inode;
    int flags; /* 0: nothing is known */
    bool ours;
    struct ticket ticket;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file files[REMEMBERED];

enum { KNOWN = 1 << 30, KINDS = O_ACCMODE | O_APPEND | O_SYNC | O_DSYNC | O_NOATIME | O_PATH };

/* What the descriptor is now. False where it is no file that may be ours. */
static bool look(int fd, struct file *now) {
    struct statx about;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &about) != 0) return false;
    if (!S_ISREG(about.stx_mode)) return false;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0) return false;
    now->device = makedev(about.stx_dev_major, about.stx_dev_minor);
    now->inode = about.stx_ino;
    now->flags = (flags & KINDS) | KNOWN;
    return true;
}

static bool ask(int fd, struct ticket *ticket) {
    struct statfs about;
    if (fstatfs(fd, &about) != 0 || about.f_type != FUSE) return false;
    return ioctl(fd, TICKET, ticket) == 0 && ticket->version == VERSION && ticket->largest > 0;
}

/* Writes to the end, writes that are to be durable at once, and access times that are to stay are the
 * kernel's to tell the mount of. */
static bool is_plain(const struct file *file) {
    return (file->flags & (O_APPEND | O_SYNC | O_DSYNC | O_NOATIME | O_PATH)) == 0;
}

/* Gets what is remembered of the descriptor, if it is still that. */
static bool recall(int fd, const struct file *now, struct file *known) {
    pthread_mutex_lock(&lock);
    *known = files[fd];
    pthread_mutex_unlock(&lock);
    return known->flags == now->flags && known->inode == now->inode && known->device == now->device;
}

bool nuri_file(int fd, struct ticket *ticket) {
    struct file now = {0}, known;
    if (fd < 0 || fd >= REMEMBERED || !look(fd, &now)) return false;
    if (!recall(fd, &now, &known)) {
        /* Without the lock: a file system of somebody else may hang. */
        now.ours = is_plain(&now) && ask(fd, &now.ticket);
        known = now;
        pthread_mutex_lock(&lock);
        files[fd] = now;
        pthread_mutex_unlock(&lock);
    }
    *ticket = known.ticket;
    return known.ours;
}

void nuri_file_forget(int fd) {
    pthread_mutex_lock(&lock);
    files[fd].flags = 0;
    pthread_mutex_unlock(&lock);
}

void nuri_file_fork_prepare(void) { pthread_mutex_lock(&lock); }
void nuri_file_fork_done(void) { pthread_mutex_unlock(&lock); }
