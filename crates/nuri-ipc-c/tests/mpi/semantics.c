/* semantics: what MPI promises of point-to-point messages, checked between all ranks. It holds with
 * any MPI library, with libnuri_mpi before it or not. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

#define CHECK(what)                                                                                    \
    do {                                                                                               \
        if (!(what)) {                                                                                 \
            fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #what);                          \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                              \
        }                                                                                              \
    } while (0)

static int count_of(MPI_Status *status, MPI_Datatype type) {
    int count;
    MPI_Get_count(status, type, &count);
    return count;
}

static void fill(unsigned char *bytes, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(i * 31 + (i >> 8) + seed);
}

static int is_filled(const unsigned char *bytes, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != (unsigned char)(i * 31 + (i >> 8) + seed))
            return 0;
    return 1;
}

/* Tags choose, wildcards take in order, the status tells. */
static void tags(MPI_Comm comm) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, in[4], out[4];
    MPI_Status status;
    for (int tag = 0; tag < 3; tag++) {
        out[0] = 100 * rank + tag;
        MPI_Send(out, tag + 1, MPI_INT, right, tag, comm);
    }
    for (int tag = 2; tag >= 0; tag -= 2) {
        MPI_Recv(in, 4, MPI_INT, left, tag, comm, &status);
        CHECK(in[0] == 100 * left + tag && status.MPI_SOURCE == left && status.MPI_TAG == tag);
        CHECK(count_of(&status, MPI_INT) == tag + 1 && count_of(&status, MPI_BYTE) == 4 * (tag + 1));
    }
    MPI_Recv(in, 4, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &status);
    CHECK(in[0] == 100 * left + 1 && status.MPI_SOURCE == left && status.MPI_TAG == 1);
    MPI_Send(NULL, 0, MPI_INT, right, 9, comm);
    MPI_Recv(NULL, 0, MPI_INT, left, 9, comm, &status);
    CHECK(count_of(&status, MPI_INT) == 0);
    MPI_Barrier(comm);
}

/* Messages of a pair stay in order, whatever calls and lengths. */
static void order(MPI_Comm comm) {
    enum { COUNT = 400, LONGEST = 40000 };
    unsigned char *in = malloc(LONGEST), *out = malloc((size_t)COUNT * LONGEST);
    MPI_Request sends[COUNT];
    int peer = rank ^ 1;
    if (peer >= size)
        peer = MPI_PROC_NULL;
    for (int i = 0; i < COUNT; i++) {
        int length = (i * 997) % (i % 7 ? 300 : LONGEST);
        fill(out + (size_t)i * LONGEST, length, i);
        MPI_Isend(out + (size_t)i * LONGEST, length, MPI_BYTE, peer, 5, comm, &sends[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        int length = (i * 997) % (i % 7 ? 300 : LONGEST);
        MPI_Status status;
        MPI_Recv(in, LONGEST, MPI_BYTE, peer, MPI_ANY_TAG, comm, &status);
        CHECK(peer == MPI_PROC_NULL ||
              (count_of(&status, MPI_BYTE) == length && is_filled(in, length, i)));
    }
    MPI_Waitall(COUNT, sends, MPI_STATUSES_IGNORE);
    free(in);
    free(out);
    MPI_Barrier(comm);
}

/* What was sent by one type is received by another one of the same signature. */
static void types(MPI_Comm comm) {
    enum { ROWS = 50, COLUMNS = 7 };
    static double matrix[ROWS][COLUMNS], column[ROWS];
    struct pair {
        double d;
        int i;
    } pairs[3] = {{1.5, 1}, {2.5, 2}, {3.5, 3}}, got[3];
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Datatype type;
    MPI_Request sends;
    MPI_Status status;
    MPI_Type_vector(ROWS, 1, COLUMNS, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    for (int i = 0; i < ROWS; i++)
        matrix[i][2] = rank * 1000 + i;
    MPI_Isend(&matrix[0][2], 1, type, right, 1, comm, &sends);
    MPI_Recv(column, ROWS, MPI_DOUBLE, left, 1, comm, &status);
    MPI_Wait(&sends, MPI_STATUS_IGNORE);
    CHECK(count_of(&status, MPI_DOUBLE) == ROWS && column[0] == left * 1000 && column[49] == left * 1000 + 49);
    MPI_Isend(column, ROWS, MPI_DOUBLE, left, 2, comm, &sends);
    MPI_Recv(&matrix[0][5], 1, type, right, 2, comm, &status);
    MPI_Wait(&sends, MPI_STATUS_IGNORE);
    CHECK(matrix[7][5] == rank * 1000 + 7 && matrix[49][5] == rank * 1000 + 49 && matrix[7][4] == 0);
    CHECK(count_of(&status, type) == 1);
    MPI_Type_free(&type);
    memset(got, 0, sizeof got);
    MPI_Sendrecv(pairs, 3, MPI_DOUBLE_INT, right, 3, got, 3, MPI_DOUBLE_INT, left, 3, comm, &status);
    CHECK(got[2].d == 3.5 && got[2].i == 3 && count_of(&status, MPI_DOUBLE_INT) == 3);
    MPI_Barrier(comm);
}

/* Messages of one communicator are not seen in another. */
static void communicators(MPI_Comm comm) {
    MPI_Comm twin, half;
    int one = 1, two = 2, in, halves, mine;
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Status status;
    MPI_Comm_dup(comm, &twin);
    MPI_Send(&one, 1, MPI_INT, right, 7, comm);
    MPI_Send(&two, 1, MPI_INT, right, 7, twin);
    MPI_Recv(&in, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, twin, &status);
    CHECK(in == 2 && status.MPI_SOURCE == left);
    MPI_Recv(&in, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &status);
    CHECK(in == 1);
    MPI_Comm_split(twin, rank % 2, -rank, &half);
    MPI_Comm_size(half, &halves);
    MPI_Comm_rank(half, &mine);
    MPI_Comm_free(&twin);
    MPI_Request sends;
    MPI_Isend(&rank, 1, MPI_INT, (mine + 1) % halves, 3, half, &sends);
    MPI_Recv(&in, 1, MPI_INT, MPI_ANY_SOURCE, 3, half, &status);
    MPI_Wait(&sends, MPI_STATUS_IGNORE);
    CHECK(status.MPI_SOURCE == (mine + halves - 1) % halves && in % 2 == rank % 2);
    CHECK(in == rank + 2 || halves == 1 || mine == 0);
    MPI_Comm_free(&half);
    MPI_Barrier(comm);
}

/* All calls that wait for and test several, with requests of other kinds among them. */
static void several(MPI_Comm comm) {
    enum { COUNT = 8 };
    int in[COUNT], out[COUNT], index, flag, done, indices[COUNT + 3];
    MPI_Request r[COUNT + 3], sends[COUNT];
    MPI_Status status, statuses[COUNT + 3];
    int right = (rank + 1) % size, left = (rank + size - 1) % size, self_in = 0, self_out = 77;
    for (int how = 0; how < 6; how++) {
        int ended = 0, want = COUNT + (how % 3 == 0 ? 3 : 0);
        for (int i = 0; i < COUNT; i++)
            MPI_Irecv(&in[i], 1, MPI_INT, left, i, comm, &r[i]);
        r[COUNT] = r[COUNT + 1] = r[COUNT + 2] = MPI_REQUEST_NULL;
        if (how % 3 == 0) { /* others' requests are waited for beside */
            MPI_Irecv(&self_in, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &r[COUNT]);
            MPI_Isend(&self_out, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &r[COUNT + 1]);
            MPI_Ibarrier(comm, &r[COUNT + 2]);
        }
        for (int i = COUNT - 1; i >= 0; i--) {
            out[i] = 10 * rank + i;
            MPI_Isend(&out[i], 1, MPI_INT, right, i, comm, &sends[i]);
        }
        while (ended < want) {
            if (how == 0) {
                MPI_Waitall(COUNT + 3, r, statuses);
                ended = want;
            } else if (how == 1 || how == 3) {
                MPI_Waitany(COUNT + 3, r, &index, &status);
                CHECK(index >= COUNT || (status.MPI_TAG == index && status.MPI_SOURCE == left));
                ended++;
            } else if (how == 2) {
                MPI_Waitsome(COUNT + 3, r, &done, indices, statuses);
                CHECK(done > 0 && statuses[0].MPI_TAG == indices[0]);
                ended += done;
            } else if (how == 4) {
                MPI_Testany(COUNT + 3, r, &index, &flag, &status);
                ended += flag;
            } else {
                MPI_Testsome(COUNT + 3, r, &done, indices, statuses);
                ended += done;
            }
        }
        for (int i = 0; i < COUNT; i++)
            CHECK(in[i] == 10 * left + i && r[i] == MPI_REQUEST_NULL);
        for (flag = 0; !flag;)
            MPI_Testall(COUNT, sends, &flag, MPI_STATUSES_IGNORE);
        MPI_Waitany(COUNT, sends, &index, &status);
        CHECK(index == MPI_UNDEFINED);
        MPI_Barrier(comm);
    }
    CHECK(self_in == 77);
}

/* A probe leaves the message; a matched one takes it for whoever has its handle. */
static void probes(MPI_Comm comm) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, flag = 0;
    unsigned char *out = malloc(50000), *in = malloc(50000);
    MPI_Request sends[3], request;
    MPI_Message message;
    MPI_Status status;
    for (int i = 0; i < 3; i++) {
        fill(out + i * 10000, 10000, i);
        MPI_Isend(out + i * 10000, 1000 + i, MPI_BYTE, right, 4, comm, &sends[i]);
    }
    MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &status);
    CHECK(status.MPI_SOURCE == left && status.MPI_TAG == 4 && count_of(&status, MPI_BYTE) == 1000);
    while (!flag)
        MPI_Improbe(left, 4, comm, &flag, &message, &status);
    CHECK(count_of(&status, MPI_BYTE) == 1000);
    MPI_Recv(in, 50000, MPI_BYTE, left, 4, comm, &status);
    CHECK(count_of(&status, MPI_BYTE) == 1001 && is_filled(in, 1001, 1));
    MPI_Mrecv(in, 50000, MPI_BYTE, &message, &status);
    CHECK(count_of(&status, MPI_BYTE) == 1000 && is_filled(in, 1000, 0) && message == MPI_MESSAGE_NULL);
    MPI_Mprobe(MPI_ANY_SOURCE, 4, comm, &message, &status);
    MPI_Imrecv(in, 50000, MPI_BYTE, &message, &request);
    MPI_Wait(&request, &status);
    CHECK(count_of(&status, MPI_BYTE) == 1002 && is_filled(in, 1002, 2) && status.MPI_SOURCE == left);
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &flag, &status);
    CHECK(!flag);
    MPI_Waitall(3, sends, MPI_STATUSES_IGNORE);
    MPI_Barrier(comm);
    free(out);
    free(in);
}

/* A synchronous send ends after its receive has begun, and not before. */
static void synchronous(MPI_Comm comm) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, in, flag;
    MPI_Request request, other;
    MPI_Issend(&rank, 1, MPI_INT, right, 6, comm, &request);
    for (int i = 0; i < 20; i++) {
        MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
        CHECK(!flag);
        MPI_Barrier(comm);
    }
    MPI_Recv(&in, 1, MPI_INT, left, 6, comm, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(in == left);
    /* The receive is found while its process waits for something else. */
    MPI_Irecv(&in, 1, MPI_INT, left, 8, comm, &other);
    MPI_Ssend(&rank, 1, MPI_INT, right, 8, comm);
    MPI_Barrier(comm);
    MPI_Wait(&other, MPI_STATUS_IGNORE);
    CHECK(in == left);
}

static void other_modes(MPI_Comm comm) {
    enum { LENGTH = 100000 };
    int right = (rank + 1) % size, left = (rank + size - 1) % size, attached, in, out = 41;
    unsigned char *bytes = malloc(LENGTH), *room = malloc(4 * LENGTH), *got = malloc(LENGTH);
    void *detached;
    MPI_Status status;
    MPI_Request persistent[2];
    MPI_Buffer_attach(room, 4 * LENGTH);
    fill(bytes, LENGTH, rank);
    MPI_Bsend(bytes, LENGTH, MPI_BYTE, right, 1, comm);
    memset(bytes, 0, LENGTH);
    MPI_Recv(got, LENGTH, MPI_BYTE, left, 1, comm, &status);
    CHECK(is_filled(got, LENGTH, left));
    MPI_Buffer_detach(&detached, &attached);
    in = rank;
    MPI_Sendrecv_replace(&in, 1, MPI_INT, right, 2, left, 2, comm, &status);
    CHECK(in == left && status.MPI_SOURCE == left);
    MPI_Recv(&in, 1, MPI_INT, MPI_PROC_NULL, 1, comm, &status);
    CHECK(status.MPI_SOURCE == MPI_PROC_NULL && count_of(&status, MPI_INT) == 0 && in == left);
    MPI_Sendrecv(&out, 1, MPI_INT, rank, 3, &in, 1, MPI_INT, rank, 3, comm, &status);
    CHECK(in == 41 && status.MPI_SOURCE == rank);
    MPI_Send_init(&out, 1, MPI_INT, right, 4, comm, &persistent[0]);
    MPI_Recv_init(&in, 1, MPI_INT, left, 4, comm, &persistent[1]);
    MPI_Wait(&persistent[1], &status); /* not started: an empty status */
    CHECK(status.MPI_SOURCE == MPI_ANY_SOURCE && count_of(&status, MPI_INT) == 0);
    for (out = 50; out < 60; out++) {
        MPI_Startall(2, persistent);
        MPI_Waitall(2, persistent, MPI_STATUSES_IGNORE);
        CHECK(in == out && persistent[0] != MPI_REQUEST_NULL);
    }
    MPI_Send(&rank, 1, MPI_INT, right, 4, comm); /* a persistent receive takes ordinary messages */
    MPI_Start(&persistent[1]);
    MPI_Wait(&persistent[1], &status);
    CHECK(in == left);
    MPI_Request_free(&persistent[0]);
    MPI_Request_free(&persistent[1]);
    MPI_Barrier(comm);
    free(bytes);
    free(room);
    free(got);
}

static void ends(MPI_Comm comm) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, in[2], out[4] = {1, 2, 3, 4}, flag, class;
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(in, 2, MPI_INT, left, 11, comm, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &flag);
    CHECK(flag);
    MPI_Isend(out, 2, MPI_INT, right, 12, comm, &request);
    MPI_Request_free(&request);
    MPI_Recv(in, 2, MPI_INT, left, 12, comm, &status);
    CHECK(in[1] == 2 && request == MPI_REQUEST_NULL);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Isend(out, 4, MPI_INT, right, 13, comm, &request);
    int code = MPI_Recv(in, 2, MPI_INT, left, 13, comm, &status);
    CHECK(code != MPI_SUCCESS && (MPI_Error_class(code, &class), class == MPI_ERR_TRUNCATE));
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
    MPI_Barrier(comm);
}

/* Long messages move on while one end is in a collective call, and others pass those that nobody wants
 * yet. */
static void progress(MPI_Comm comm) {
    enum { LENGTH = 9 << 20, HUGE_LENGTH = 80 << 20 };
    int right = (rank + 1) % size, left = (rank + size - 1) % size, in;
    unsigned char *out = malloc(LENGTH), *got = malloc(LENGTH);
    MPI_Request request, sends[2];
    fill(out, LENGTH, rank);
    for (int turn = 0; turn < 2; turn++) {
        if (rank % 2 == turn && left % 2 != turn) {
            MPI_Irecv(got, LENGTH, MPI_BYTE, left, 20 + turn, comm, &request);
            MPI_Barrier(comm);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            CHECK(is_filled(got, LENGTH, left));
        } else {
            if (right % 2 == turn && rank % 2 != turn)
                MPI_Send(out, LENGTH, MPI_BYTE, right, 20 + turn, comm);
            MPI_Barrier(comm);
        }
    }
    if (rank < 2) {
        unsigned char *huge = malloc(HUGE_LENGTH);
        if (rank == 0) {
            fill(huge, HUGE_LENGTH, 3);
            MPI_Isend(huge, HUGE_LENGTH, MPI_BYTE, 1, 30, comm, &sends[0]);
            MPI_Isend(&rank, 1, MPI_INT, 1, 31, comm, &sends[1]);
            MPI_Waitall(2, sends, MPI_STATUSES_IGNORE);
        } else {
            MPI_Recv(&in, 1, MPI_INT, 0, 31, comm, MPI_STATUS_IGNORE);
            MPI_Recv(huge, HUGE_LENGTH, MPI_BYTE, 0, 30, comm, MPI_STATUS_IGNORE);
            CHECK(is_filled(huge, HUGE_LENGTH, 3));
        }
        free(huge);
    }
    MPI_Barrier(comm);
    free(out);
    free(got);
}

/* Everybody to everybody, received from anybody. */
static void crowd(MPI_Comm comm) {
    enum { ROUNDS = 30, LONGEST = 100000 };
    unsigned char *in = malloc(LONGEST), *out = malloc((size_t)size * LONGEST);
    MPI_Request *sends = malloc(sizeof *sends * size);
    for (int round = 0; round < ROUNDS; round++) {
        for (int to = 0; to < size; to++) {
            int length = (round * 3571 + to * 977 + rank * 131) % LONGEST;
            fill(out + (size_t)to * LONGEST, length, rank + to + round);
            MPI_Isend(out + (size_t)to * LONGEST, length, MPI_BYTE, to, round, comm, &sends[to]);
        }
        for (int i = 0; i < size; i++) {
            MPI_Status status;
            MPI_Recv(in, LONGEST, MPI_BYTE, MPI_ANY_SOURCE, round, comm, &status);
            int from = status.MPI_SOURCE, length = (round * 3571 + rank * 977 + from * 131) % LONGEST;
            CHECK(count_of(&status, MPI_BYTE) == length);
            CHECK(is_filled(in, length, from + rank + round));
        }
        MPI_Waitall(size, sends, MPI_STATUSES_IGNORE);
    }
    MPI_Barrier(comm);
    free(in);
    free(out);
    free(sends);
}

int main(int argc, char **argv) {
    static void (*const parts[])(MPI_Comm) = {tags,        order,       types,    communicators,
                                              several,     probes,      synchronous, other_modes,
                                              ends,        progress,    crowd};
    MPI_Comm twin;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_dup(MPI_COMM_WORLD, &twin);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        parts[i](MPI_COMM_WORLD);
        parts[i](twin);
    }
    MPI_Comm_free(&twin);
    if (rank == 0)
        puts("semantics: ok");
    MPI_Finalize();
    return 0;
}
