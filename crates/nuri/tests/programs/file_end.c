/* Makes a file longer by large writes, and uses what the kernel thinks of its end without asking. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MIB = 1 << 20, LEN = 4 * MIB };

static void check(int good, const char *what) {
    if (good) return;
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    check(argc == 3, "usage: file_end FILE COPY");
    char *bytes = malloc(LEN);
    memset(bytes, 7, LEN);
    int fd = open(argv[1], O_RDWR | O_CREAT, 0644), copy = open(argv[2], O_RDWR | O_CREAT, 0644);
    check(write(fd, bytes, LEN) == LEN, "write");
    char *mapped = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(mapped != MAP_FAILED && mapped[LEN - 1] == 7, "mmap");
    munmap(mapped, LEN);
    check(pwrite(fd, bytes, MIB, LEN) == MIB, "pwrite");
    off_t from = LEN, to = 0;
    check(copy_file_range(fd, &from, copy, &to, MIB, 0) == MIB, "copy_file_range");
    /* Another descriptor appends where the file ends now. */
    FILE *log = fopen(argv[1], "a+");
    char page[4096];
    memset(page, 9, sizeof page);
    setvbuf(log, NULL, _IONBF, 0);
    check(fwrite(page, 1, sizeof page, log) == sizeof page, "append");
    for (off_t at = 0; at < LEN + MIB; at += sizeof page) {
        check(pread(fd, page, sizeof page, at) == sizeof page && page[0] == 7 && page[4095] == 7, "old bytes");
    }
    check(pread(fd, page, sizeof page, LEN + MIB) == sizeof page && page[0] == 9, "appended bytes");
    return 0;
}
