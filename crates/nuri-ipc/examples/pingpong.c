/* pingpong SESSION DIR RANK: two processes send a message back and forth; rank 0 says how long it
 * took one way. */
#include <nuri_ipc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 2000
#define PATIENCE 20000000 /* us */
#define LOOKED 99

static void check(int code) {
    if (code != NURI_IPC_OK) {
        fprintf(stderr, "pingpong: %s\n", nuri_ipc_error(code));
        exit(1);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {4, 1024, 65536, 1 << 20};
    if (argc != 4) {
        fprintf(stderr, "usage: pingpong SESSION DIR RANK\n");
        return 2;
    }
    uint32_t rank = (uint32_t)atoi(argv[3]), peer = 1 - rank;
    char *bytes = calloc(1, 1 << 20);
    nuri_ipc_t *end;
    check(nuri_ipc_open(argv[1], argv[2], rank, 2, &end));
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t size = sizes[s];
        int rounds = size > 65536 ? ROUNDS / 20 : ROUNDS;
        double began = now();
        for (int i = 0; i < rounds; i++) {
            nuri_ipc_status_t status;
            if (rank == 0) {
                bytes[0] = bytes[size - 1] = (char)i;
                check(nuri_ipc_send(end, peer, s, bytes, size));
            }
            check(nuri_ipc_recv(end, nuri_ipc_from(peer, s), bytes, size, PATIENCE, &status));
            if (status.length != size || bytes[0] != (char)i || bytes[size - 1] != (char)i) {
                fprintf(stderr, "pingpong: not what was sent\n");
                return 1;
            }
            if (rank == 1)
                check(nuri_ipc_send(end, peer, s, bytes, size));
        }
        if (rank == 0)
            printf("%8zu bytes %10.2f us\n", size, (now() - began) / rounds / 2);
    }
    /* Rank 1 stays until rank 0 has looked at it. */
    if (rank == 0) {
        char text[512];
        nuri_ipc_info(end, text, sizeof text);
        fputs(text, stdout);
        check(nuri_ipc_send(end, peer, LOOKED, bytes, 1));
    } else {
        nuri_ipc_status_t status;
        check(nuri_ipc_recv(end, nuri_ipc_from(peer, LOOKED), bytes, 1, PATIENCE, &status));
    }
    nuri_ipc_close(end);
    free(bytes);
    return 0;
}
