/* world.c: whether the library is used, and for which communicators. */
#include "layer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NAME = 40 };

nuri_ipc_t *nuri_end;
uint64_t nuri_sent, nuri_got;

static struct comm *all; /* MPI_COMM_WORLD */
static int key = MPI_KEYVAL_INVALID;
static uint32_t next_context = 2;
static bool verbose;

/* The communicator asked for last. */
static struct {
    MPI_Comm handle;
    struct comm *comm;
} last;

struct comm *nuri_comm(MPI_Comm handle) {
    if (nuri_end == NULL)
        return NULL;
    if (handle == MPI_COMM_WORLD)
        return all;
    if (handle == MPI_COMM_NULL)
        return NULL;
    if (handle != last.handle) {
        void *value = NULL;
        int found = 0;
        PMPI_Comm_get_attr(handle, key, &value, &found);
        last.handle = handle;
        last.comm = found ? value : NULL;
    }
    return last.comm;
}

static int forget(MPI_Comm handle, int keyval, void *value, void *state) {
    (void)keyval, (void)value, (void)state;
    if (last.handle == handle)
        last.handle = MPI_COMM_NULL;
    return MPI_SUCCESS;
}

int nuri_fail(MPI_Comm handle, int code) {
    if (code != MPI_SUCCESS)
        PMPI_Comm_call_errhandler(handle, code);
    return code;
}

int nuri_code(int number) {
    switch (number) {
    case NURI_IPC_OK:
        return MPI_SUCCESS;
    case NURI_IPC_ETRUNCATED:
        return MPI_ERR_TRUNCATE;
    default:
        fprintf(stderr, "nuri-mpi: %s\n", nuri_ipc_error(number));
        return MPI_ERR_OTHER;
    }
}

/* A communicator's ranks in MPI_COMM_WORLD and back; null if some are not in it. */
static struct comm *describe(MPI_Comm handle) {
    int size, worlds;
    MPI_Group group, world;
    PMPI_Comm_size(handle, &size);
    PMPI_Comm_size(MPI_COMM_WORLD, &worlds);
    struct comm *comm = malloc(sizeof *comm);
    int *ranks = malloc(sizeof(int) * size);
    *comm = (struct comm){0, size, malloc(sizeof(int) * size), malloc(sizeof(int) * worlds)};
    for (int i = 0; i < size; i++)
        ranks[i] = i;
    PMPI_Comm_group(handle, &group);
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    PMPI_Group_translate_ranks(group, size, ranks, world, comm->world);
    PMPI_Group_free(&group);
    PMPI_Group_free(&world);
    free(ranks);
    for (int i = 0; i < size; i++)
        comm->local[comm->world[i]] = i;
    return comm;
}

/* Gives a new communicator a context that none of its ranks has used. Its parent is ours, so all its
 * ranks come here. */
static void adopt(MPI_Comm handle) {
    if (handle == MPI_COMM_NULL)
        return;
    uint32_t context;
    nuri_enter();
    PMPI_Allreduce(&next_context, &context, 1, MPI_UINT32_T, MPI_MAX, handle);
    nuri_leave();
    if (context >= CONTEXTS)
        return;
    next_context = context + 1;
    struct comm *comm = describe(handle);
    comm->context = context;
    PMPI_Comm_set_attr(handle, key, comm);
    last.handle = MPI_COMM_NULL;
}

/* Opens the session that rank 0 names; the ranks greet each other in a circle. */
static bool open_session(int rank, int size) {
    char name[NAME] = "";
    if (rank == 0)
        snprintf(name, sizeof name, "mpi-%ld-%ld", (long)getpid(), (long)time(NULL));
    PMPI_Bcast(name, NAME, MPI_CHAR, 0, MPI_COMM_WORLD);
    /* Programs may send whatever they like before anybody asks for it. */
    nuri_ipc_options_t options = {.spill = (size_t)1 << 40};
    uint32_t after = (rank + 1) % size, before = (rank + size - 1) % size;
    int good = nuri_ipc_open_with(name, NULL, rank, size, &options, &nuri_end) == NURI_IPC_OK, all_good;
    PMPI_Allreduce(&good, &all_good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (all_good) {
        good = nuri_ipc_send(nuri_end, after, NURI_ANSWER, NULL, 0) == NURI_IPC_OK &&
               nuri_ipc_recv(nuri_end, nuri_ipc_from(before, NURI_ANSWER), NULL, 0, 10000000, NULL) ==
                   NURI_IPC_OK;
        PMPI_Allreduce(&good, &all_good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    }
    if (!all_good) {
        nuri_ipc_close(nuri_end);
        nuri_end = NULL;
    }
    return all_good;
}

/* All ranks decide the same: they are on one node, want it, and only one thread at a time calls. */
static void begin(void) {
    const char *asked = getenv("NURI_MPI");
    int rank, size, here, level, want, all_want;
    MPI_Comm node;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    PMPI_Comm_size(node, &here);
    PMPI_Comm_free(&node);
    PMPI_Query_thread(&level);
    verbose = asked != NULL && strcmp(asked, "verbose") == 0;
    want = here == size && size > 1 && level != MPI_THREAD_MULTIPLE &&
           !(asked != NULL && strcmp(asked, "off") == 0);
    PMPI_Allreduce(&want, &all_want, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    bool used = all_want && open_session(rank, size);
    if (used) {
        all = describe(MPI_COMM_WORLD);
        all->context = 1;
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &key, NULL);
        last.handle = MPI_COMM_NULL;
    }
    if (verbose && rank == 0)
        fprintf(stderr, "nuri-mpi: %s, %d ranks\n", used ? "used" : "not used", size);
}

int MPI_Init(int *argc, char ***argv) {
    int code = PMPI_Init(argc, argv);
    if (code == MPI_SUCCESS)
        begin();
    return code;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int code = PMPI_Init_thread(argc, argv, required, provided);
    if (code == MPI_SUCCESS)
        begin();
    return code;
}

/* Nobody closes before all have received what was sent to them. */
int MPI_Finalize(void) {
    if (nuri_end != NULL) {
        nuri_drain();
        PMPI_Barrier(MPI_COMM_WORLD);
        if (verbose)
            fprintf(stderr, "nuri-mpi: a rank sent %llu and received %llu messages\n",
                    (unsigned long long)nuri_sent, (unsigned long long)nuri_got);
        nuri_ipc_close(nuri_end);
        nuri_end = NULL;
    }
    return PMPI_Finalize();
}

/* Communicators made of one of ours are ours. */
#define MAKE(name, parameters, arguments)                                                              \
    int MPI_##name parameters {                                                                        \
        bool ours = nuri_comm(parent) != NULL;                                                         \
        nuri_enter();                                                                                  \
        int code = PMPI_##name arguments;                                                              \
        nuri_leave();                                                                                  \
        if (ours && code == MPI_SUCCESS)                                                               \
            adopt(*made);                                                                              \
        return code;                                                                                   \
    }

MAKE(Comm_dup, (MPI_Comm parent, MPI_Comm *made), (parent, made))
MAKE(Comm_dup_with_info, (MPI_Comm parent, MPI_Info info, MPI_Comm *made), (parent, info, made))
MAKE(Comm_split, (MPI_Comm parent, int color, int order, MPI_Comm *made), (parent, color, order, made))
MAKE(Comm_split_type, (MPI_Comm parent, int type, int order, MPI_Info info, MPI_Comm *made),
     (parent, type, order, info, made))
MAKE(Comm_create, (MPI_Comm parent, MPI_Group group, MPI_Comm *made), (parent, group, made))
MAKE(Cart_create,
     (MPI_Comm parent, int ndims, const int dims[], const int periods[], int reorder, MPI_Comm *made),
     (parent, ndims, dims, periods, reorder, made))
MAKE(Cart_sub, (MPI_Comm parent, const int remain[], MPI_Comm *made), (parent, remain, made))
MAKE(Graph_create,
     (MPI_Comm parent, int nodes, const int index[], const int edges[], int reorder, MPI_Comm *made),
     (parent, nodes, index, edges, reorder, made))

/* While the program waits in the MPI library, a thread moves our open requests on. The program's
 * thread and this one never touch requests at the same time: who holds the lock does. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t entered = PTHREAD_COND_INITIALIZER;
static bool inside, helped;

static void *help(void *unused) {
    (void)unused;
    pthread_mutex_lock(&turn);
    for (;;) {
        while (!inside || nuri_poll() == 0)
            pthread_cond_wait(&entered, &turn);
        pthread_mutex_unlock(&turn);
        nanosleep(&(struct timespec){0, 20000}, NULL);
        pthread_mutex_lock(&turn);
    }
    return NULL;
}

void nuri_enter(void) {
    if (nuri_end == NULL || nuri_open() == 0)
        return;
    pthread_mutex_lock(&turn);
    pthread_t thread;
    if (!helped && pthread_create(&thread, NULL, help, NULL) == 0) {
        pthread_detach(thread);
        helped = true;
    }
    inside = true;
    pthread_cond_signal(&entered);
    pthread_mutex_unlock(&turn);
}

void nuri_leave(void) {
    if (!helped)
        return;
    pthread_mutex_lock(&turn);
    inside = false;
    pthread_mutex_unlock(&turn);
}

void nuri_background(void) {
    int flag;
    nuri_poll();
    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
}

/* Collective calls are the MPI library's. */
#define PASS(name, parameters, arguments)                                                              \
    int MPI_##name parameters {                                                                        \
        nuri_enter();                                                                                  \
        int code = PMPI_##name arguments;                                                              \
        nuri_leave();                                                                                  \
        return code;                                                                                   \
    }
#define TYPED const void *in, int incount, MPI_Datatype intype
#define INTO void *out, int outcount, MPI_Datatype outtype
#define REDUCE const void *in, void *out

PASS(Barrier, (MPI_Comm comm), (comm))
PASS(Bcast, (void *bytes, int count, MPI_Datatype type, int root, MPI_Comm comm),
     (bytes, count, type, root, comm))
PASS(Gather, (TYPED, INTO, int root, MPI_Comm comm),
     (in, incount, intype, out, outcount, outtype, root, comm))
PASS(Gatherv,
     (TYPED, void *out, const int counts[], const int at[], MPI_Datatype outtype, int root, MPI_Comm comm),
     (in, incount, intype, out, counts, at, outtype, root, comm))
PASS(Scatter, (TYPED, INTO, int root, MPI_Comm comm),
     (in, incount, intype, out, outcount, outtype, root, comm))
PASS(Scatterv,
     (const void *in, const int counts[], const int at[], MPI_Datatype intype, INTO, int root,
      MPI_Comm comm),
     (in, counts, at, intype, out, outcount, outtype, root, comm))
PASS(Allgather, (TYPED, INTO, MPI_Comm comm), (in, incount, intype, out, outcount, outtype, comm))
PASS(Allgatherv, (TYPED, void *out, const int counts[], const int at[], MPI_Datatype outtype, MPI_Comm comm),
     (in, incount, intype, out, counts, at, outtype, comm))
PASS(Alltoall, (TYPED, INTO, MPI_Comm comm), (in, incount, intype, out, outcount, outtype, comm))
PASS(Alltoallv,
     (const void *in, const int incounts[], const int inat[], MPI_Datatype intype, void *out,
      const int outcounts[], const int outat[], MPI_Datatype outtype, MPI_Comm comm),
     (in, incounts, inat, intype, out, outcounts, outat, outtype, comm))
PASS(Alltoallw,
     (const void *in, const int incounts[], const int inat[], const MPI_Datatype intypes[], void *out,
      const int outcounts[], const int outat[], const MPI_Datatype outtypes[], MPI_Comm comm),
     (in, incounts, inat, intypes, out, outcounts, outat, outtypes, comm))
PASS(Reduce, (REDUCE, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
     (in, out, count, type, op, root, comm))
PASS(Allreduce, (REDUCE, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
     (in, out, count, type, op, comm))
PASS(Reduce_scatter, (REDUCE, const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm),
     (in, out, counts, type, op, comm))
PASS(Reduce_scatter_block, (REDUCE, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
     (in, out, count, type, op, comm))
PASS(Scan, (REDUCE, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
     (in, out, count, type, op, comm))
PASS(Exscan, (REDUCE, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
     (in, out, count, type, op, comm))
PASS(Win_fence, (int assert, MPI_Win window), (assert, window))
