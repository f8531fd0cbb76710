/* mpi CPU CPU SECONDS SIZE...: messages between two ranks, measured as `ipc_bench` of nuri-ipc does
 * it: blocking calls, data written before and read after each transfer, medians of batches. Prints a
 * line for each size: bytes, microseconds one way, bytes per nanosecond. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCHES_MAX (1 << 20)

/* What rank 0 asks for: nothing more of this size, or a number of round trips, or, with the lowest
 * bit set, of messages one way. */
enum { NEXT = 0, TRIPS = 0, STREAM = 1 };

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("sched_setaffinity");
        exit(1);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void touch(unsigned char *bytes, int size) {
    for (int i = 0; i < size; i += 64)
        bytes[i]++;
}

static void look(const unsigned char *bytes, int size) {
    unsigned char all = 0;
    for (int i = 0; i < size; i += 64)
        all ^= bytes[i];
    __asm__ volatile("" : : "r"(all) : "memory");
}

static void send(const void *bytes, int size, int to) {
    MPI_Send(bytes, size, MPI_BYTE, to, 1, MPI_COMM_WORLD);
}

static void receive(void *bytes, int size, int from) {
    MPI_Recv(bytes, size, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void order(uint32_t what, int count) {
    uint32_t word = (uint32_t)count << 1 | what;
    send(&word, sizeof word, 1);
}

static void follow(unsigned char *bytes, int size) {
    for (;;) {
        uint32_t word;
        receive(&word, sizeof word, 0);
        if (word == NEXT)
            return;
        for (uint32_t i = 0; i < word >> 1; i++) {
            receive(bytes, size, 0);
            if ((word & 1) == STREAM) {
                look(bytes, size);
            } else {
                touch(bytes, size);
                send(bytes, size, 0);
            }
        }
        if ((word & 1) == STREAM)
            send(&word, sizeof word, 0);
    }
}

static double trips(unsigned char *bytes, int size, int count) {
    order(TRIPS, count);
    double began = now();
    for (int i = 0; i < count; i++) {
        touch(bytes, size);
        send(bytes, size, 1);
        receive(bytes, size, 1);
    }
    return now() - began;
}

static double stream(unsigned char *bytes, int size, int count) {
    uint32_t answer;
    double began = now();
    order(STREAM, count);
    for (int i = 0; i < count; i++) {
        touch(bytes, size);
        send(bytes, size, 1);
    }
    receive(&answer, sizeof answer, 1);
    return now() - began;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef double batch(unsigned char *bytes, int size, int count);

/* Nanoseconds for each of count. */
static double median(batch *one, double time, unsigned char *bytes, int size, int count) {
    static double took[BATCHES_MAX];
    int n = 0;
    for (double began = now(); n < BATCHES_MAX && (now() - began < time || n < 3); n++)
        took[n] = one(bytes, size, count) / count;
    qsort(took, n, sizeof *took, by_size);
    return took[n / 2];
}

static void lead(unsigned char *bytes, int size, double time) {
    trips(bytes, size, 2);
    double count = time / 8 / (trips(bytes, size, 2) / 2);
    double trip = median(trips, time, bytes, size, count < 1 ? 1 : count > 200 ? 200 : (int)count);
    double message = median(stream, time, bytes, size, size <= 65536 ? 64 : 16);
    order(NEXT, 0);
    printf("%d %.4f %.4f\n", size, trip / 2e3, size / message);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    pin(atoi(argv[1 + rank]));
    double time = atof(argv[3]) * 1e9;
    for (int i = 4; i < argc; i++) {
        int size = atoi(argv[i]);
        unsigned char *bytes = malloc(size);
        memset(bytes, 1, size);
        if (rank == 0)
            lead(bytes, size, time);
        else
            follow(bytes, size);
        free(bytes);
    }
    MPI_Finalize();
    return 0;
}
