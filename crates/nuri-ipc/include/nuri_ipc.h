/* nuri_ipc.h: messages between processes of one machine through shared memory.
 *
 * Processes of one user open the ranks 0 to size-1 of a named session. All calls but open, close and
 * the free functions may be made by many threads at once on one endpoint. Calls return NURI_IPC_OK or
 * a negative number; nuri_ipc_error() has words for it. Timeouts are in microseconds; a negative one
 * waits as long as there is a peer that might answer. See nuri_ipc(7). */
#ifndef NURI_IPC_H
#define NURI_IPC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum nuri_ipc_errors {
    NURI_IPC_OK = 0,
    NURI_IPC_EWRONGRANK = -1, /* the rank is not in the session */
    NURI_IPC_EGONE = -2,      /* the peer ended; what it sent before can still be received */
    NURI_IPC_EABSENT = -3,    /* the peer has not opened its endpoint in time */
    NURI_IPC_EBADPEER = -4,   /* the peer broke the protocol; its link is cut */
    NURI_IPC_ENOTREAD = -5,   /* the sender unmapped a message that was copied from its memory */
    NURI_IPC_ETRUNCATED = -6, /* the buffers are full, the rest of the message is lost */
    NURI_IPC_EFULL = -7,      /* no buffer of that length is free in the heap */
    NURI_IPC_ETIMEDOUT = -8,  /* time ran out; a request goes on */
    NURI_IPC_ECANCELLED = -9, /* the request was cancelled */
    NURI_IPC_EREQUEST = -10,  /* no such request, or its end was taken already */
    NURI_IPC_ETAKEN = -11,    /* a living process has the rank */
    NURI_IPC_ENAME = -12,     /* not a session name: 1 to 40 of A-Z a-z 0-9 _ - . */
    NURI_IPC_EINVAL = -13,    /* an argument is out of range */
    NURI_IPC_EPRIVATE = -14,  /* the session's directory is not this user's with mode 0700 */
    NURI_IPC_ESYSTEM = -15,   /* the operating system refused; see errno */
};

typedef struct nuri_ipc nuri_ipc_t;
typedef struct nuri_ipc_loan nuri_ipc_loan_t;
typedef struct nuri_ipc_message nuri_ipc_message_t;
typedef struct nuri_ipc_window nuri_ipc_window_t;
typedef uint64_t nuri_ipc_request_t;

/* What a finished transfer was: the peer, the tag, the length of the message in bytes. */
typedef struct {
    uint32_t source;
    uint32_t reserved;
    uint64_t tag;
    uint64_t length;
} nuri_ipc_status_t;

/* What a receive accepts: messages of the source whose tag agrees in all bits of the mask. */
typedef struct {
    uint32_t source;
    uint32_t reserved;
    uint64_t tag;
    uint64_t mask;
} nuri_ipc_selector_t;

#define NURI_IPC_ANY_SOURCE UINT32_MAX
#define NURI_IPC_FOREVER ((int64_t)-1)

/* One source and tag; any tag; anything. */
static inline nuri_ipc_selector_t nuri_ipc_from(uint32_t source, uint64_t tag) {
    nuri_ipc_selector_t s = {source, 0, tag, UINT64_MAX};
    return s;
}
static inline nuri_ipc_selector_t nuri_ipc_any_tag(uint32_t source) {
    nuri_ipc_selector_t s = {source, 0, 0, 0};
    return s;
}
static inline nuri_ipc_selector_t nuri_ipc_any(void) {
    return nuri_ipc_any_tag(NURI_IPC_ANY_SOURCE);
}

/* Opens a rank. dir holds sessions and may be null: then $XDG_RUNTIME_DIR/nuri-ipc and its kin. */
int nuri_ipc_open(const char *session, const char *dir, uint32_t rank, uint32_t size,
                  nuri_ipc_t **out);
/* As nuri_ipc_open, with bounds in bytes; zero for the usual ones: rings of 256 KiB and 4 MiB to each
 * peer (powers of two), a heap of 64 MiB (whole pages), 64 MiB of messages kept that nobody has asked
 * for yet. */
typedef struct {
    size_t records;
    size_t bulk;
    size_t heap;
    size_t spill;
} nuri_ipc_options_t;
int nuri_ipc_open_with(const char *session, const char *dir, uint32_t rank, uint32_t size,
                       const nuri_ipc_options_t *options, nuri_ipc_t **out);
/* Closes it. Its requests end without notice; loans, messages and windows of it stay valid memory. */
void nuri_ipc_close(nuri_ipc_t *end);

/* Sends; the bytes may be changed again when it returns. */
int nuri_ipc_send(const nuri_ipc_t *end, uint32_t to, uint64_t tag, const void *bytes,
                  size_t length);
int nuri_ipc_sendv(const nuri_ipc_t *end, uint32_t to, uint64_t tag, const struct iovec *from,
                   int count);
/* Sends a message of up to 16 KiB if that needs no waiting; sent says whether it did. */
int nuri_ipc_try_send(const nuri_ipc_t *end, uint32_t to, uint64_t tag, const void *bytes,
                      size_t length, int *sent);
/* Receives. The status, here and below, may be null. */
int nuri_ipc_recv(const nuri_ipc_t *end, nuri_ipc_selector_t from, void *bytes, size_t length,
                  int64_t timeout, nuri_ipc_status_t *status);
int nuri_ipc_recvv(const nuri_ipc_t *end, nuri_ipc_selector_t from, const struct iovec *into,
                   int count, int64_t timeout, nuri_ipc_status_t *status);

/* Starts a transfer. The buffers stay as they are until test or wait has taken the request's end;
 * the iovecs need not. */
int nuri_ipc_isendv(const nuri_ipc_t *end, uint32_t to, uint64_t tag, const struct iovec *from,
                    int count, nuri_ipc_request_t *request);
int nuri_ipc_irecvv(const nuri_ipc_t *end, nuri_ipc_selector_t from, const struct iovec *into,
                    int count, nuri_ipc_request_t *request);
/* Takes a request's end. The return value is the transfer's. test: done says whether it has ended.
 * wait_any: which is the ended one's place, SIZE_MAX if there is none. */
int nuri_ipc_test(const nuri_ipc_t *end, nuri_ipc_request_t request, int *done,
                  nuri_ipc_status_t *status);
int nuri_ipc_wait(const nuri_ipc_t *end, nuri_ipc_request_t request, int64_t timeout,
                  nuri_ipc_status_t *status);
int nuri_ipc_wait_any(const nuri_ipc_t *end, const nuri_ipc_request_t *requests, size_t count,
                      int64_t timeout, size_t *which, nuri_ipc_status_t *status);
/* Takes a request back if no byte has moved for it; its end is still to be taken. */
int nuri_ipc_cancel(const nuri_ipc_t *end, nuri_ipc_request_t request, int *cancelled);
/* Looks for a message and leaves it; with timeout 0 it looks once. */
int nuri_ipc_probe(const nuri_ipc_t *end, nuri_ipc_selector_t from, int64_t timeout,
                   nuri_ipc_status_t *status);

/* Buffers that are sent without a copy. send_loan takes the loan, whatever it returns. */
int nuri_ipc_alloc(const nuri_ipc_t *end, size_t length, nuri_ipc_loan_t **loan);
void *nuri_ipc_loan_data(nuri_ipc_loan_t *loan);
void nuri_ipc_loan_free(nuri_ipc_loan_t *loan);
int nuri_ipc_send_loan(const nuri_ipc_t *end, uint32_t to, uint64_t tag, nuri_ipc_loan_t *loan);
/* Receives a message of any length up to 1 GiB, in place if it was lent. The data of a lent message is
 * read only, and as steady as its sender leaves it. Freeing gives it back. When this returns 0 or
 * NURI_IPC_ETRUNCATED there is a message to free, else there is none. */
int nuri_ipc_recv_open(const nuri_ipc_t *end, nuri_ipc_selector_t from, int64_t timeout,
                       nuri_ipc_message_t **message, nuri_ipc_status_t *status);
const void *nuri_ipc_message_data(const nuri_ipc_message_t *message);
void nuri_ipc_message_free(nuri_ipc_message_t *message);

/* Memory of one rank that peers read and write by themselves. */
int nuri_ipc_window_create(const nuri_ipc_t *end, uint64_t id, size_t length,
                           nuri_ipc_window_t **window);
int nuri_ipc_window_attach(const nuri_ipc_t *end, uint32_t rank, uint64_t id, int64_t timeout,
                           nuri_ipc_window_t **window);
void nuri_ipc_window_free(nuri_ipc_window_t *window);
int nuri_ipc_put(const nuri_ipc_window_t *window, size_t offset, const void *bytes, size_t length);
int nuri_ipc_get(const nuri_ipc_window_t *window, size_t offset, void *bytes, size_t length);
/* Adds to an aligned 64-bit word; before, if not null, gets what it was. */
int nuri_ipc_fetch_add(const nuri_ipc_window_t *window, size_t offset, uint64_t value,
                       uint64_t *before);
void nuri_ipc_fence(const nuri_ipc_window_t *window);
/* Tells the window's owner; who sees the notice sees what was put before. */
void nuri_ipc_notify(const nuri_ipc_window_t *window);
int nuri_ipc_wait_notice(const nuri_ipc_t *end, const nuri_ipc_window_t *window, uint64_t seen,
                         int64_t timeout, uint64_t *notices);

/* What is used, which ways of copying there are and why not, as text. Returns its length. */
int nuri_ipc_info(const nuri_ipc_t *end, char *text, size_t length);
const char *nuri_ipc_error(int number);

#ifdef __cplusplus
}
#endif
#endif
