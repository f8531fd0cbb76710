/* halo SESSION DIR RANK SIZE: heat on a ring of cells, cut among the ranks. Each step exchanges border
 * cells with both neighbours by requests; the total is kept in a window of rank 0, and the warmest
 * part is lent to it at the end. */
#include <nuri_ipc.h>
#include <stdio.h>
#include <stdlib.h>

#define CELLS 4096
#define STEPS 500
#define PATIENCE 20000000 /* us */
enum { TO_RIGHT = 1, TO_LEFT = 2, RESULT = 3 };

static void check(int code) {
    if (code != NURI_IPC_OK) {
        fprintf(stderr, "halo: %s\n", nuri_ipc_error(code));
        exit(1);
    }
}

static nuri_ipc_t *end;

static nuri_ipc_request_t start_recv(uint32_t from, uint64_t tag, int64_t *cell) {
    struct iovec part = {cell, sizeof *cell};
    nuri_ipc_request_t request;
    check(nuri_ipc_irecvv(end, nuri_ipc_from(from, tag), &part, 1, &request));
    return request;
}

static nuri_ipc_request_t start_send(uint32_t to, uint64_t tag, int64_t *cell) {
    struct iovec part = {cell, sizeof *cell};
    nuri_ipc_request_t request;
    check(nuri_ipc_isendv(end, to, tag, &part, 1, &request));
    return request;
}

/* Waits for all, in whatever order they end. */
static void finish(nuri_ipc_request_t *requests, size_t count) {
    while (count > 0) {
        size_t which;
        check(nuri_ipc_wait_any(end, requests, count, PATIENCE, &which, NULL));
        requests[which] = requests[--count];
    }
}

/* Cells hold whole units, so that no heat is lost by rounding: each moves an eighth to its sides. */
static void step(int64_t *cell, int64_t *next, uint32_t left, uint32_t right) {
    int64_t out_left = cell[1] / 8, out_right = cell[CELLS] / 8;
    nuri_ipc_request_t requests[] = {
        start_recv(left, TO_RIGHT, &cell[0]),
        start_recv(right, TO_LEFT, &cell[CELLS + 1]),
        start_send(left, TO_LEFT, &out_left),
        start_send(right, TO_RIGHT, &out_right),
    };
    finish(requests, 4);
    for (int i = 1; i <= CELLS; i++) {
        int64_t from_left = i == 1 ? cell[0] : cell[i - 1] / 8;
        int64_t from_right = i == CELLS ? cell[CELLS + 1] : cell[i + 1] / 8;
        next[i] = cell[i] - 2 * (cell[i] / 8) + from_left + from_right;
    }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: halo SESSION DIR RANK SIZE\n");
        return 2;
    }
    uint32_t rank = (uint32_t)atoi(argv[3]), size = (uint32_t)atoi(argv[4]);
    uint32_t left = (rank + size - 1) % size, right = (rank + 1) % size;
    int64_t *cell = calloc(CELLS + 2, sizeof *cell), *next = calloc(CELLS + 2, sizeof *cell);
    nuri_ipc_window_t *total;
    check(nuri_ipc_open(argv[1], argv[2], rank, size, &end));
    if (rank == 0)
        check(nuri_ipc_window_create(end, 1, sizeof(int64_t), &total));
    else
        check(nuri_ipc_window_attach(end, 0, 1, PATIENCE, &total));
    cell[1] = 1000000 * (int64_t)(rank + 1);
    for (int i = 0; i < STEPS; i++) {
        step(cell, next, left, right);
        int64_t *swap = cell;
        cell = next;
        next = swap;
    }
    int64_t sum = 0;
    for (int i = 1; i <= CELLS; i++)
        sum += cell[i];
    check(nuri_ipc_fetch_add(total, 0, (uint64_t)sum, NULL));
    nuri_ipc_notify(total);
    if (rank != 0) {
        nuri_ipc_loan_t *loan;
        check(nuri_ipc_alloc(end, sizeof(int64_t), &loan));
        *(int64_t *)nuri_ipc_loan_data(loan) = sum;
        check(nuri_ipc_send_loan(end, 0, RESULT, loan));
    } else {
        int64_t expected = 1000000 * (int64_t)size * (size + 1) / 2, all = 0;
        uint64_t notices = 0;
        while (notices < size)
            check(nuri_ipc_wait_notice(end, total, notices, PATIENCE, &notices));
        check(nuri_ipc_get(total, 0, &all, sizeof all));
        for (uint32_t i = 1; i < size; i++) {
            nuri_ipc_message_t *message;
            nuri_ipc_selector_t any = nuri_ipc_from(NURI_IPC_ANY_SOURCE, RESULT);
            check(nuri_ipc_recv_open(end, any, PATIENCE, &message, NULL));
            sum += *(const int64_t *)nuri_ipc_message_data(message);
            nuri_ipc_message_free(message);
        }
        printf("total %lld, by messages %lld, expected %lld\n", (long long)all, (long long)sum,
               (long long)expected);
        if (all != expected || sum != expected)
            return 1;
    }
    nuri_ipc_window_free(total);
    nuri_ipc_close(end);
    free(cell);
    free(next);
    return 0;
}
