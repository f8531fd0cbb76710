/* layer.h: what the files of libnuri_mpi share.
 *
 * The library stands before an MPI library and carries point-to-point messages of communicators whose
 * ranks are all on this node through nuri-ipc. All else goes to the MPI library. One rule decides:
 * a communicator has a context, then all its point-to-point messages are ours, or it has none, then
 * they are all the MPI library's. So any-source receives see every message, and both ends agree. */
#ifndef NURI_MPI_LAYER_H
#define NURI_MPI_LAYER_H

#include <mpi.h>
#include <nuri_ipc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A communicator that is ours. Kept as long as the process lives: there are at most CONTEXTS. */
struct comm {
    uint32_t context;
    int size;
    int *world; /* of each rank the one in MPI_COMM_WORLD */
    int *local; /* and back */
};

enum { CONTEXTS = 1 << 16 };

/* How long a wait lasts before the MPI library and other requests get their turn, in microseconds. */
enum { SLICE = 1000 };

/* Our endpoint; null while all goes to the MPI library. */
extern nuri_ipc_t *nuri_end;

/* The communicator if it is ours. */
struct comm *nuri_comm(MPI_Comm handle);
/* Calls the communicator's error handler. Returns the code, or MPI_SUCCESS at once. */
int nuri_fail(MPI_Comm handle, int code);
/* Lets others move on: requests that wait for nobody's call, and the MPI library. */
void nuri_background(void);
/* Around calls of the MPI library that may wait: our requests move on meanwhile. */
void nuri_enter(void);
void nuri_leave(void);

/* Kinds of sends. */
enum mode { STANDARD, SYNCHRONOUS, BUFFERED };

/* The arguments of a transfer. */
struct transfer {
    bool send;
    enum mode mode;
    void *bytes;
    int count;
    MPI_Datatype type;
    int peer, tag;
    MPI_Comm handle;
    struct comm *comm;
};

/* A request of ours, named by an odd number: no handle of an MPI library is one. */
struct request {
    struct transfer what;
    int index;
    enum { VACANT, INACTIVE, ACTIVE, DONE } state;
    bool persistent;
    bool orphan;    /* the program has freed it */
    bool cancelled;
    /* Transfers of nuri-ipc still under way: the message, the answer to a synchronous one. */
    bool moves[2];
    nuri_ipc_request_t number[2];
    void *packed;  /* the message, where the program does not have it as it travels */
    size_t length; /* of the message, or of the room for it */
    int code, source, tag;
    size_t received;
    nuri_ipc_message_t *matched; /* a message that was probed and taken */
    uint64_t wire_tag;           /* its tag in nuri-ipc */
    uint32_t wire_source;
};

/* The request of a handle; null if it is the MPI library's. */
struct request *nuri_request(MPI_Request handle);
MPI_Request nuri_handle(const struct request *r);
struct request *nuri_new(const struct transfer *what);
void nuri_release(struct request *r);
/* Starts its transfer. */
void nuri_start(struct request *r);
/* Counts it among those under way. */
void nuri_started(struct request *r);
/* Waits that long for its end; without time it looks once. */
bool nuri_ended(struct request *r, int64_t micros);
/* Waits for its end and gives it back. */
int nuri_wait(struct request *r, MPI_Status *status);
/* Moves all on; returns how many are open. */
int nuri_poll(void);
int nuri_open(void);
/* Waits until all that was sent has gone. */
void nuri_drain(void);

/* A transfer is over: says what it was, without the MPI library. */
void nuri_arrived(struct request *r);
/* Puts what came in where the program wants it; for the program's thread. */
void nuri_unpack(struct request *r);
/* Tells the sender of a synchronous message that it was received. */
void nuri_answer(uint32_t source, uint64_t tag);
void nuri_set_status(MPI_Status *status, int source, int tag, size_t bytes, bool cancelled);
/* The MPI code of a number of nuri-ipc. */
int nuri_code(int number);

/* Tags of nuri-ipc: answer, synchronous, number of a synchronous message, context, tag. */
#define NURI_ANSWER (UINT64_C(1) << 63)
#define NURI_SYNCHRONOUS (UINT64_C(1) << 62)
#define NURI_NUMBER_AT 47
#define NURI_NUMBERS 0x7fff
#define NURI_CONTEXT_AT 31
#define NURI_TAG UINT64_C(0x7fffffff)

/* Messages so far, for the words at the end. */
extern uint64_t nuri_sent, nuri_got;

#endif
