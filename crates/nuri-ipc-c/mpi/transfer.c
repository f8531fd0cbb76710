/* transfer.c: sends, receives and probes. What travels are the bytes of a message packed by its type;
 * they are the same whatever types the two ends have. */
#include "layer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Types of the MPI library's own that lie as they travel: they are never freed, so what was found
 * stays true. */
static struct {
    MPI_Datatype type;
    size_t size; /* of it, plus one; zero if nothing was found yet */
} direct_types[64];

/* Whether a type's bytes lie as they travel; its size. */
static bool is_direct(MPI_Datatype type, size_t *size) {
    uintptr_t number = (uintptr_t)type;
    size_t slot = (number ^ number >> 6 ^ number >> 12) % 64;
    if (direct_types[slot].size != 0 && direct_types[slot].type == type) {
        *size = direct_types[slot].size - 1;
        return true;
    }
    int integers, addresses, types, combiner, bytes;
    MPI_Aint least, extent;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    PMPI_Type_get_extent(type, &least, &extent);
    PMPI_Type_size(type, &bytes);
    *size = bytes;
    if (combiner != MPI_COMBINER_NAMED || least != 0 || extent != bytes)
        return false;
    direct_types[slot].type = type;
    direct_types[slot].size = *size + 1;
    return true;
}

void nuri_set_status(MPI_Status *status, int source, int tag, size_t bytes, bool cancelled) {
    if (status == MPI_STATUS_IGNORE)
        return;
    status->MPI_SOURCE = source;
    status->MPI_TAG = tag;
    PMPI_Status_set_cancelled(status, cancelled);
    PMPI_Status_set_elements_x(status, MPI_BYTE, bytes);
}

static uint64_t wire_tag(const struct comm *comm, int tag) {
    return (uint64_t)comm->context << NURI_CONTEXT_AT | (uint64_t)tag;
}

/* What a receive accepts: the bits of a synchronous message do not matter. */
static nuri_ipc_selector_t selector(const struct comm *comm, int source, int tag) {
    bool any = tag == MPI_ANY_TAG;
    return (nuri_ipc_selector_t){
        .source = source == MPI_ANY_SOURCE ? NURI_IPC_ANY_SOURCE : (uint32_t)comm->world[source],
        .tag = wire_tag(comm, any ? 0 : tag),
        .mask = ~(NURI_SYNCHRONOUS | (uint64_t)NURI_NUMBERS << NURI_NUMBER_AT | (any ? NURI_TAG : 0)),
    };
}

void nuri_answer(uint32_t source, uint64_t tag) {
    if (tag & NURI_SYNCHRONOUS)
        nuri_ipc_send(nuri_end, source, tag | NURI_ANSWER, NULL, 0);
}

/* The arguments' faults, in the order of MPI's codes. */
static int fault(const struct comm *comm, bool send, int count, int peer, int tag) {
    if (count < 0)
        return MPI_ERR_COUNT;
    if (tag < 0 && (send || tag != MPI_ANY_TAG))
        return MPI_ERR_TAG;
    bool any = peer == MPI_PROC_NULL || (!send && peer == MPI_ANY_SOURCE);
    return any || (peer >= 0 && peer < comm->size) ? MPI_SUCCESS : MPI_ERR_RANK;
}

/* Makes the message as it travels, or room for it. A copy is made of what lies as it travels only if
 * the program may change it meanwhile. */
static int pack(struct request *r, bool copy) {
    const struct transfer *t = &r->what;
    size_t size;
    bool direct = is_direct(t->type, &size);
    int packed = 0;
    r->packed = NULL;
    r->length = size * (size_t)t->count;
    if (direct && !copy)
        return MPI_SUCCESS;
    if (r->length > INT_MAX)
        return MPI_ERR_COUNT;
    r->packed = malloc(r->length + 1);
    if (r->packed == NULL)
        return MPI_ERR_NO_MEM;
    if (!t->send)
        return MPI_SUCCESS;
    return PMPI_Pack(t->bytes, t->count, t->type, r->packed, (int)r->length, &packed, t->handle);
}

/* Sends the message; a synchronous one asks for an answer first. */
static int start_send(struct request *r) {
    static uint64_t synchronous;
    const struct transfer *t = &r->what;
    uint32_t to = (uint32_t)t->comm->world[t->peer];
    uint64_t tag = wire_tag(t->comm, t->tag);
    int code = NURI_IPC_OK;
    if (t->mode == SYNCHRONOUS) {
        tag |= NURI_SYNCHRONOUS | (synchronous++ & NURI_NUMBERS) << NURI_NUMBER_AT;
        struct iovec none = {0};
        code = nuri_ipc_irecvv(nuri_end, nuri_ipc_from(to, tag | NURI_ANSWER), &none, 0, &r->number[1]);
        r->moves[1] = code == NURI_IPC_OK;
    }
    struct iovec part = {r->packed ? r->packed : t->bytes, r->length};
    if (code == NURI_IPC_OK)
        code = nuri_ipc_isendv(nuri_end, to, tag, &part, 1, &r->number[0]);
    r->moves[0] = code == NURI_IPC_OK;
    if (code != NURI_IPC_OK && r->moves[1])
        nuri_ipc_cancel(nuri_end, r->number[1], NULL);
    nuri_sent++;
    return nuri_code(code);
}

static int start_receive(struct request *r) {
    const struct transfer *t = &r->what;
    struct iovec part = {r->packed ? r->packed : t->bytes, r->length};
    int code = nuri_ipc_irecvv(nuri_end, selector(t->comm, t->peer, t->tag), &part, 1, &r->number[0]);
    r->moves[0] = code == NURI_IPC_OK;
    return nuri_code(code);
}

/* Sends a message that needs neither a copy nor an answer if there is room for it now. */
static bool went_at_once(const struct transfer *t) {
    size_t size;
    int went = 0;
    if (t->mode == STANDARD && is_direct(t->type, &size)) {
        uint32_t to = (uint32_t)t->comm->world[t->peer];
        uint64_t tag = wire_tag(t->comm, t->tag);
        nuri_ipc_try_send(nuri_end, to, tag, t->bytes, size * (size_t)t->count, &went);
        nuri_sent += went;
    }
    return went;
}

/* A buffered message is copied, and goes its way without the request. */
static int start_buffered(const struct transfer *what) {
    struct transfer own = *what;
    own.mode = STANDARD;
    struct request *r = nuri_new(&own);
    r->orphan = true;
    r->code = pack(r, true);
    int code = r->code == MPI_SUCCESS ? start_send(r) : r->code;
    nuri_started(r);
    return code;
}

void nuri_start(struct request *r) {
    r->cancelled = false;
    r->received = 0;
    r->code = MPI_SUCCESS;
    if (r->what.peer == MPI_PROC_NULL)
        ;
    else if (r->what.send && r->what.mode == BUFFERED)
        r->code = start_buffered(&r->what);
    else if (r->what.send && went_at_once(&r->what))
        ;
    else if ((r->code = pack(r, false)) == MPI_SUCCESS)
        r->code = r->what.send ? start_send(r) : start_receive(r);
    nuri_started(r);
}

void nuri_arrived(struct request *r) {
    const struct transfer *t = &r->what;
    if (!t->send && t->peer == MPI_PROC_NULL) {
        r->source = MPI_PROC_NULL;
        r->tag = MPI_ANY_TAG;
    } else if (!t->send && r->code == MPI_SUCCESS && !r->cancelled) {
        r->source = t->comm->local[r->wire_source];
        r->tag = (int)(r->wire_tag & NURI_TAG);
        nuri_got++;
        nuri_answer(r->wire_source, r->wire_tag);
    }
}

void nuri_unpack(struct request *r) {
    const struct transfer *t = &r->what;
    int size = 0, at = 0;
    if (r->packed != NULL && !t->send && r->code == MPI_SUCCESS && !r->cancelled) {
        PMPI_Type_size(t->type, &size);
        int count = size ? (int)(r->received / (size_t)size) : 0;
        r->code = PMPI_Unpack(r->packed, (int)r->received, &at, t->bytes, count, t->type, t->handle);
    }
    free(r->packed);
    r->packed = NULL;
}

/* A transfer from its start to its end. */
static int at_once(const struct transfer *what, MPI_Status *status) {
    struct request *r = nuri_new(what);
    nuri_start(r);
    return nuri_wait(r, status);
}

static int send_now(const struct transfer *t) {
    int code = fault(t->comm, true, t->count, t->peer, t->tag);
    if (code != MPI_SUCCESS || t->peer == MPI_PROC_NULL)
        return nuri_fail(t->handle, code);
    return went_at_once(t) ? MPI_SUCCESS : at_once(t, MPI_STATUS_IGNORE);
}

static int receive_now(const struct transfer *t, MPI_Status *status) {
    size_t size;
    nuri_ipc_status_t got;
    int code = fault(t->comm, false, t->count, t->peer, t->tag);
    if (code != MPI_SUCCESS)
        return nuri_fail(t->handle, code);
    if (t->peer == MPI_PROC_NULL || !is_direct(t->type, &size))
        return at_once(t, status);
    nuri_ipc_selector_t from = selector(t->comm, t->peer, t->tag);
    size_t room = size * (size_t)t->count;
    while ((code = nuri_ipc_recv(nuri_end, from, t->bytes, room, SLICE, &got)) == NURI_IPC_ETIMEDOUT)
        nuri_background();
    if (code != NURI_IPC_OK)
        return nuri_fail(t->handle, nuri_code(code));
    nuri_got++;
    nuri_answer(got.source, got.tag);
    nuri_set_status(status, t->comm->local[got.source], (int)(got.tag & NURI_TAG), got.length, false);
    return MPI_SUCCESS;
}

static int start(const struct transfer *t, MPI_Request *handle, bool persistent) {
    int code = fault(t->comm, t->send, t->count, t->peer, t->tag);
    if (code != MPI_SUCCESS)
        return nuri_fail(t->handle, code);
    struct request *r = nuri_new(t);
    r->persistent = persistent;
    *handle = nuri_handle(r);
    if (!persistent)
        nuri_start(r);
    return MPI_SUCCESS;
}

#define SENDS(prefix, mode)                                                                            \
    int MPI_##prefix##end(const void *bytes, int count, MPI_Datatype type, int to, int tag,            \
                          MPI_Comm handle) {                                                           \
        struct comm *comm = nuri_comm(handle);                                                         \
        if (comm == NULL) {                                                                            \
            nuri_enter();                                                                              \
            int code = PMPI_##prefix##end(bytes, count, type, to, tag, handle);                        \
            nuri_leave();                                                                              \
            return code;                                                                               \
        }                                                                                              \
        return send_now(&(struct transfer){true, mode, (void *)bytes, count, type, to, tag, handle, comm}); \
    }

#define STARTS(name, send, mode, buffer, persistent)                                                   \
    int MPI_##name(buffer bytes, int count, MPI_Datatype type, int peer, int tag, MPI_Comm handle,     \
                   MPI_Request *request) {                                                             \
        struct comm *comm = nuri_comm(handle);                                                         \
        if (comm == NULL)                                                                              \
            return PMPI_##name(bytes, count, type, peer, tag, handle, request);                        \
        return start(&(struct transfer){send, mode, (void *)bytes, count, type, peer, tag, handle, comm}, \
                     request, persistent);                                                             \
    }

SENDS(S, STANDARD)
SENDS(Ss, SYNCHRONOUS)
SENDS(Rs, STANDARD)
SENDS(Bs, BUFFERED)
STARTS(Isend, true, STANDARD, const void *, false)
STARTS(Issend, true, SYNCHRONOUS, const void *, false)
STARTS(Irsend, true, STANDARD, const void *, false)
STARTS(Ibsend, true, BUFFERED, const void *, false)
STARTS(Irecv, false, STANDARD, void *, false)
STARTS(Send_init, true, STANDARD, const void *, true)
STARTS(Ssend_init, true, SYNCHRONOUS, const void *, true)
STARTS(Rsend_init, true, STANDARD, const void *, true)
STARTS(Bsend_init, true, BUFFERED, const void *, true)
STARTS(Recv_init, false, STANDARD, void *, true)

int MPI_Recv(void *bytes, int count, MPI_Datatype type, int from, int tag, MPI_Comm handle,
             MPI_Status *status) {
    struct comm *comm = nuri_comm(handle);
    if (comm != NULL)
        return receive_now(
            &(struct transfer){false, STANDARD, bytes, count, type, from, tag, handle, comm}, status);
    nuri_enter();
    int code = PMPI_Recv(bytes, count, type, from, tag, handle, status);
    nuri_leave();
    return code;
}

int MPI_Sendrecv(const void *out, int outcount, MPI_Datatype outtype, int to, int outtag, void *in,
                 int incount, MPI_Datatype intype, int from, int intag, MPI_Comm handle,
                 MPI_Status *status) {
    if (nuri_comm(handle) == NULL) {
        nuri_enter();
        int code = PMPI_Sendrecv(out, outcount, outtype, to, outtag, in, incount, intype, from, intag,
                                 handle, status);
        nuri_leave();
        return code;
    }
    MPI_Request receives, sends;
    int code = MPI_Irecv(in, incount, intype, from, intag, handle, &receives);
    if (code == MPI_SUCCESS)
        code = MPI_Isend(out, outcount, outtype, to, outtag, handle, &sends);
    if (code == MPI_SUCCESS)
        code = MPI_Wait(&sends, MPI_STATUS_IGNORE);
    return code == MPI_SUCCESS ? MPI_Wait(&receives, status) : code;
}

int MPI_Sendrecv_replace(void *bytes, int count, MPI_Datatype type, int to, int outtag, int from,
                         int intag, MPI_Comm handle, MPI_Status *status) {
    int size, packed = 0;
    if (nuri_comm(handle) == NULL) {
        nuri_enter();
        int code = PMPI_Sendrecv_replace(bytes, count, type, to, outtag, from, intag, handle, status);
        nuri_leave();
        return code;
    }
    PMPI_Type_size(type, &size);
    if (count > 0 && size > INT_MAX / count)
        return nuri_fail(handle, MPI_ERR_COUNT);
    void *copy = malloc((size_t)size * (size_t)count + 1);
    int code = PMPI_Pack(bytes, count, type, copy, size * count, &packed, handle);
    if (code == MPI_SUCCESS)
        code = MPI_Sendrecv(copy, packed, MPI_BYTE, to, outtag, bytes, count, type, from, intag, handle,
                            status);
    free(copy);
    return code;
}

/* Looks for a message. Programs that only look must let the MPI library move on too. */
static bool look(const struct comm *comm, int source, int tag, nuri_ipc_status_t *found) {
    static unsigned misses;
    if (nuri_ipc_probe(nuri_end, selector(comm, source, tag), 0, found) == NURI_IPC_OK)
        return true;
    if (++misses % 64 == 0)
        nuri_background();
    return false;
}

static void probed(const struct comm *comm, const nuri_ipc_status_t *found, MPI_Status *status) {
    int tag = (int)(found->tag & NURI_TAG);
    nuri_set_status(status, comm->local[found->source], tag, found->length, false);
}

int MPI_Iprobe(int source, int tag, MPI_Comm handle, int *flag, MPI_Status *status) {
    struct comm *comm = nuri_comm(handle);
    if (comm == NULL)
        return PMPI_Iprobe(source, tag, handle, flag, status);
    int code = fault(comm, false, 0, source, tag);
    nuri_ipc_status_t found;
    *flag = 0;
    if (code == MPI_SUCCESS && source == MPI_PROC_NULL) {
        *flag = 1;
        nuri_set_status(status, MPI_PROC_NULL, MPI_ANY_TAG, 0, false);
    } else if (code == MPI_SUCCESS && look(comm, source, tag, &found)) {
        *flag = 1;
        probed(comm, &found, status);
    }
    return nuri_fail(handle, code);
}

int MPI_Probe(int source, int tag, MPI_Comm handle, MPI_Status *status) {
    struct comm *comm = nuri_comm(handle);
    if (comm == NULL) {
        nuri_enter();
        int code = PMPI_Probe(source, tag, handle, status);
        nuri_leave();
        return code;
    }
    int flag, code = MPI_Iprobe(source, tag, handle, &flag, status);
    nuri_ipc_status_t found;
    if (code != MPI_SUCCESS || flag)
        return code;
    while (nuri_ipc_probe(nuri_end, selector(comm, source, tag), SLICE, &found) == NURI_IPC_ETIMEDOUT)
        nuri_background();
    probed(comm, &found, status);
    return MPI_SUCCESS;
}

/* Takes the message that a probe found: the oldest one with exactly its tag. */
int MPI_Improbe(int source, int tag, MPI_Comm handle, int *flag, MPI_Message *message,
                MPI_Status *status) {
    struct comm *comm = nuri_comm(handle);
    if (comm == NULL)
        return PMPI_Improbe(source, tag, handle, flag, message, status);
    int code = fault(comm, false, 0, source, tag);
    nuri_ipc_status_t found;
    *flag = code == MPI_SUCCESS && source == MPI_PROC_NULL;
    if (*flag) {
        *message = MPI_MESSAGE_NO_PROC;
        nuri_set_status(status, MPI_PROC_NULL, MPI_ANY_TAG, 0, false);
    } else if (code == MPI_SUCCESS && look(comm, source, tag, &found)) {
        struct transfer what = {.handle = handle, .comm = comm};
        struct request *r = nuri_new(&what);
        nuri_ipc_selector_t one = nuri_ipc_from(found.source, found.tag);
        code = nuri_code(nuri_ipc_recv_open(nuri_end, one, NURI_IPC_FOREVER, &r->matched, &found));
        r->wire_source = found.source;
        r->wire_tag = found.tag;
        r->received = found.length;
        *message = (MPI_Message)nuri_handle(r);
        *flag = 1;
        probed(comm, &found, status);
    }
    return nuri_fail(handle, code);
}

int MPI_Mprobe(int source, int tag, MPI_Comm handle, MPI_Message *message, MPI_Status *status) {
    if (nuri_comm(handle) == NULL) {
        nuri_enter();
        int code = PMPI_Mprobe(source, tag, handle, message, status);
        nuri_leave();
        return code;
    }
    int flag, code = MPI_Probe(source, tag, handle, status);
    return code == MPI_SUCCESS ? MPI_Improbe(source, tag, handle, &flag, message, status) : code;
}

/* The request becomes the receive of its message. */
static void receive_matched(struct request *r, void *bytes, int count, MPI_Datatype type) {
    size_t size;
    r->what.bytes = bytes;
    r->what.count = count;
    r->what.type = type;
    r->code = pack(r, false);
    if (r->code == MPI_SUCCESS && r->received > r->length) {
        r->code = MPI_ERR_TRUNCATE;
    } else if (r->code == MPI_SUCCESS) {
        bool direct = is_direct(type, &size);
        memcpy(direct ? bytes : r->packed, nuri_ipc_message_data(r->matched), r->received);
    }
    nuri_ipc_message_free(r->matched);
    r->matched = NULL;
    nuri_started(r);
}

int MPI_Imrecv(void *bytes, int count, MPI_Datatype type, MPI_Message *message, MPI_Request *request) {
    struct request *r = *message == MPI_MESSAGE_NO_PROC ? NULL : nuri_request((MPI_Request)*message);
    if (r == NULL)
        return PMPI_Imrecv(bytes, count, type, message, request);
    receive_matched(r, bytes, count, type);
    *request = nuri_handle(r);
    *message = MPI_MESSAGE_NULL;
    return MPI_SUCCESS;
}

int MPI_Mrecv(void *bytes, int count, MPI_Datatype type, MPI_Message *message, MPI_Status *status) {
    struct request *r = *message == MPI_MESSAGE_NO_PROC ? NULL : nuri_request((MPI_Request)*message);
    if (r == NULL)
        return PMPI_Mrecv(bytes, count, type, message, status);
    receive_matched(r, bytes, count, type);
    *message = MPI_MESSAGE_NULL;
    return nuri_wait(r, status);
}
