/* A client of NFS by libnfs, as the bench of NFS uses it: client URL WORK COUNT NAME.
 * It prints one line: what it did in a second. */
#include <stdint.h>
#include <sys/time.h>

#include <fcntl.h>
#include <nfsc/libnfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MIB = 1 << 20 };

static struct nfs_context *nfs;
static char name[512];

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void check(int failed, const char *what)
{
    if (failed) {
        fprintf(stderr, "%s: %s\n", what, nfs_get_error(nfs));
        exit(1);
    }
}

/* MiB a second, with the commit at the end. */
static double write_all(int count, const char *file)
{
    char *bytes = malloc(MIB);
    struct nfsfh *open;
    memset(bytes, 7, MIB);
    snprintf(name, sizeof name, "/%s", file);
    check(nfs_creat(nfs, name, 0644, &open), "create");
    double start = now();
    for (int i = 0; i < count; i++)
        check(nfs_write(nfs, open, MIB, bytes) != MIB, "write");
    check(nfs_fsync(nfs, open), "commit");
    return count / (now() - start);
}

static double read_all(const char *file)
{
    char *bytes = malloc(MIB);
    struct nfsfh *open;
    double all = 0;
    int len;
    snprintf(name, sizeof name, "/%s", file);
    check(nfs_open(nfs, name, O_RDONLY, &open), "open");
    double start = now();
    while ((len = nfs_read(nfs, open, MIB, bytes)) > 0)
        all += len;
    check(len < 0, "read");
    return all / MIB / (now() - start);
}

static void create(void)
{
    struct nfsfh *open;
    check(nfs_creat(nfs, name, 0644, &open), "create");
    nfs_close(nfs, open);
}

static void look(void)
{
    struct nfs_stat_64 attributes;
    check(nfs_stat64(nfs, name, &attributes), "stat");
}

static void drop(void)
{
    check(nfs_unlink(nfs, name), "remove");
}

static double each(void (*act)(void), int count, const char *file)
{
    double start = now();
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "/%s-%d", file, i);
        act();
    }
    return count / (now() - start);
}

int main(int count, char **words)
{
    if (count != 5)
        return 2;
    nfs = nfs_init_context();
    struct nfs_url *url = nfs_parse_url_dir(nfs, words[1]);
    check(!url, "address");
    check(nfs_mount(nfs, url->server, url->path), "mount");
    const char *work = words[2], *file = words[4];
    int times = atoi(words[3]);
    double rate = !strcmp(work, "write")    ? write_all(times, file)
                  : !strcmp(work, "read")   ? read_all(file)
                  : !strcmp(work, "create") ? each(create, times, file)
                  : !strcmp(work, "stat")   ? each(look, times, file)
                                            : each(drop, times, file);
    printf("%.1f\n", rate);
    return 0;
}
