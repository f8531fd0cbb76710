/* bypass.h: what the files of libnuri_preload share.
 *
 * The library stands before the C library and moves the bytes of large reads and writes of files on a
 * Nuri mount straight between the program and the mount's process, past the kernel's page cache. All
 * else stays with the kernel: opening, positions, small transfers, files elsewhere. So descriptors are
 * what they always were, and whenever something here does not work the kernel does it. */
#ifndef NURI_BYPASS_H
#define NURI_BYPASS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

_Static_assert(sizeof(off_t) == 8 && sizeof(long) == 8, "64-bit machines only");

/* As in src/bypass/wire.rs. */
struct ticket {
    uint32_t version, largest;
    unsigned char secret[16];
    char name[32];
    uint64_t reserved;
};

enum direction { READ = 1, WRITE = 2 };

/* A transfer that the kernel is to do, or the rest of one. */
enum { NOT_HERE = -2 };
/* Descriptors of the library lie from here on: programs count on low ones. */
enum { HIGH = 512 };

/* files.c: gets the descriptor's ticket. False where the kernel does its transfers. */
bool nuri_file(int fd, struct ticket *ticket);
/* Its ticket is good no longer. */
void nuri_file_forget(int fd);

/* mount.c: moves bytes at an offset; how many, -1 with errno, or NOT_HERE. */
ssize_t nuri_move(enum direction what, int fd, const struct ticket *ticket, void *bytes, size_t len,
                  off_t offset);

/* A child begins without connections. */
void nuri_mount_fork_prepare(void);
void nuri_mount_fork_done(bool child);
void nuri_file_fork_prepare(void);
void nuri_file_fork_done(void);

#endif
