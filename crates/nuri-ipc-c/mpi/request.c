/* request.c: requests under way, and the calls that test and wait for them. */
#include "layer.h"

#include <stdlib.h>

/* Requests by number; they do not move. */
static struct request **table;
static int made, active;
static int *vacant, vacancies;

struct request *nuri_request(MPI_Request handle) {
    uintptr_t number = (uintptr_t)handle;
#ifdef MPICH
    /* Its handles have one of the two highest bits, all but the null request, which is even. */
    bool ours = (number & 1) && (uint32_t)number >> 30 == 0;
#else
    /* Its handles are addresses. */
    bool ours = number & 1;
#endif
    return ours ? table[number >> 1] : NULL;
}

MPI_Request nuri_handle(const struct request *r) {
    return (MPI_Request)((uintptr_t)r->index << 1 | 1);
}

struct request *nuri_new(const struct transfer *what) {
    if (vacancies == 0) {
        int more = made ? 2 * made : 64;
        table = realloc(table, sizeof *table * more);
        vacant = realloc(vacant, sizeof *vacant * more);
        for (int i = more - 1; i >= made; i--) {
            table[i] = malloc(sizeof **table);
            vacant[vacancies++] = i;
        }
        made = more;
        for (int i = 0; i < vacancies; i++)
            *table[vacant[i]] = (struct request){.index = vacant[i]};
    }
    struct request *r = table[vacant[--vacancies]];
    *r = (struct request){.what = *what, .index = r->index, .state = INACTIVE};
    return r;
}

void nuri_release(struct request *r) {
    r->state = VACANT;
    vacant[vacancies++] = r->index;
}

int nuri_open(void) {
    return active;
}

/* One of its two transfers is over. */
static void outcome(struct request *r, int which, int code, const nuri_ipc_status_t *status) {
    r->moves[which] = false;
    if (code == NURI_IPC_ECANCELLED) {
        r->cancelled = true;
    } else if (code != NURI_IPC_OK) {
        r->code = nuri_code(code);
    } else if (!r->what.send) {
        r->wire_source = status->source;
        r->wire_tag = status->tag;
        r->received = status->length;
    }
}

static void finish(struct request *r) {
    active--;
    nuri_arrived(r);
    r->state = DONE;
    if (r->orphan) {
        nuri_unpack(r);
        nuri_release(r);
    }
}

static void finish_if_over(struct request *r) {
    if (r->state == ACTIVE && !r->moves[0] && !r->moves[1])
        finish(r);
}

bool nuri_ended(struct request *r, int64_t micros) {
    for (int i = 0; i < 2 && r->state == ACTIVE; i++) {
        if (!r->moves[i])
            continue;
        nuri_ipc_status_t status = {0};
        int done, code;
        if (micros == 0) {
            code = nuri_ipc_test(nuri_end, r->number[i], &done, &status);
        } else {
            code = nuri_ipc_wait(nuri_end, r->number[i], micros, &status);
            done = code != NURI_IPC_ETIMEDOUT;
        }
        if (!done)
            return false;
        outcome(r, i, code, &status);
    }
    finish_if_over(r);
    return true;
}


int nuri_poll(void) {
    for (int i = 0; i < made && active > 0; i++)
        if (table[i]->state == ACTIVE)
            nuri_ended(table[i], 0);
    return active;
}

void nuri_drain(void) {
    for (int i = 0; i < made; i++)
        while (table[i]->state == ACTIVE && table[i]->what.send && !nuri_ended(table[i], SLICE))
            nuri_background();
}

/* Counts a request that has been started. */
void nuri_started(struct request *r) {
    r->state = ACTIVE;
    active++;
    finish_if_over(r);
}

/* Gives a request's end to the program. One that is not active has an empty one. */
static int take(struct request *r, MPI_Status *status) {
    bool empty = r->state == INACTIVE;
    nuri_unpack(r);
    int code = empty ? MPI_SUCCESS : r->code;
    MPI_Comm handle = r->what.handle;
    if (empty || r->what.send)
        nuri_set_status(status, MPI_ANY_SOURCE, MPI_ANY_TAG, 0, r->cancelled && !empty);
    else
        nuri_set_status(status, r->source, r->tag, r->received, r->cancelled);
    if (r->persistent)
        r->state = INACTIVE;
    else
        nuri_release(r);
    return nuri_fail(handle, code);
}

static int take_handle(MPI_Request *handle, MPI_Status *status) {
    struct request *r = nuri_request(*handle);
    if (!r->persistent)
        *handle = MPI_REQUEST_NULL;
    return take(r, status);
}

int nuri_wait(struct request *r, MPI_Status *status) {
    while (!nuri_ended(r, SLICE))
        nuri_background();
    return take(r, status);
}

int MPI_Wait(MPI_Request *handle, MPI_Status *status) {
    struct request *r = nuri_request(*handle);
    if (r != NULL) {
        if (!r->persistent)
            *handle = MPI_REQUEST_NULL;
        return nuri_wait(r, status);
    }
    nuri_enter();
    int code = PMPI_Wait(handle, status);
    nuri_leave();
    return code;
}

int MPI_Test(MPI_Request *handle, int *flag, MPI_Status *status) {
    struct request *r = nuri_request(*handle);
    if (r == NULL) {
        nuri_poll();
        return PMPI_Test(handle, flag, status);
    }
    *flag = nuri_ended(r, 0);
    return *flag ? take_handle(handle, status) : MPI_SUCCESS;
}

static bool any_ours(int count, MPI_Request handles[]) {
    for (int i = 0; i < count; i++)
        if (nuri_request(handles[i]) != NULL)
            return true;
    return false;
}

static MPI_Status *nth(MPI_Status statuses[], int i) {
    return statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[i];
}

/* Calls for several say of each how it went. */
static int in_status(int all, MPI_Status statuses[], int i, int code) {
    if (statuses != MPI_STATUSES_IGNORE)
        statuses[i].MPI_ERROR = code;
    return code == MPI_SUCCESS ? all : MPI_ERR_IN_STATUS;
}

int MPI_Waitall(int count, MPI_Request handles[], MPI_Status statuses[]) {
    int all = MPI_SUCCESS;
    if (!any_ours(count, handles)) {
        nuri_enter();
        all = PMPI_Waitall(count, handles, statuses);
        nuri_leave();
        return all;
    }
    for (int i = 0; i < count; i++)
        all = in_status(all, statuses, i, MPI_Wait(&handles[i], nth(statuses, i)));
    return all;
}

int MPI_Request_get_status(MPI_Request handle, int *flag, MPI_Status *status) {
    struct request *r = nuri_request(handle);
    if (r == NULL)
        return PMPI_Request_get_status(handle, flag, status);
    *flag = nuri_ended(r, 0);
    if (*flag)
        nuri_unpack(r);
    if (*flag && r->state == DONE && !r->what.send)
        nuri_set_status(status, r->source, r->tag, r->received, r->cancelled);
    else if (*flag)
        nuri_set_status(status, MPI_ANY_SOURCE, MPI_ANY_TAG, 0, r->cancelled);
    return MPI_SUCCESS;
}

int MPI_Testall(int count, MPI_Request handles[], int *flag, MPI_Status statuses[]) {
    if (!any_ours(count, handles)) {
        nuri_poll();
        return PMPI_Testall(count, handles, flag, statuses);
    }
    *flag = 1;
    for (int i = 0; i < count && *flag; i++)
        if (handles[i] != MPI_REQUEST_NULL)
            MPI_Request_get_status(handles[i], flag, MPI_STATUS_IGNORE);
    return *flag ? MPI_Waitall(count, handles, statuses) : MPI_SUCCESS;
}

/* Whether anybody can wait for it. */
static bool counts(MPI_Request handle) {
    struct request *r = nuri_request(handle);
    return r == NULL ? handle != MPI_REQUEST_NULL : r->state != INACTIVE;
}

/* Until something moves among ours, for a moment if others are waited for too. */
static void rest(int count, MPI_Request handles[]) {
    enum { BRIEFLY = 50 };
    nuri_ipc_request_t *numbers = malloc(sizeof *numbers * (2 * count + 1));
    struct request **whose = malloc(sizeof *whose * (2 * count + 1));
    size_t n = 0, which;
    bool others = false;
    for (int i = 0; i < count; i++) {
        struct request *r = nuri_request(handles[i]);
        others |= r == NULL && handles[i] != MPI_REQUEST_NULL;
        for (int k = 0; r != NULL && r->state == ACTIVE && k < 2; k++)
            if (r->moves[k]) {
                whose[n] = r;
                numbers[n++] = r->number[k];
            }
    }
    nuri_ipc_status_t status = {0};
    if (n > 0) {
        int code = nuri_ipc_wait_any(nuri_end, numbers, n, others ? BRIEFLY : SLICE, &which, &status);
        if (which < n) {
            struct request *r = whose[which];
            outcome(r, r->moves[0] && r->number[0] == numbers[which] ? 0 : 1, code, &status);
            finish_if_over(r);
        } else {
            nuri_background();
        }
    }
    free(numbers);
    free(whose);
}

int MPI_Testany(int count, MPI_Request handles[], int *index, int *flag, MPI_Status *status) {
    if (!any_ours(count, handles)) {
        nuri_poll();
        return PMPI_Testany(count, handles, index, flag, status);
    }
    *index = MPI_UNDEFINED;
    *flag = 1;
    for (int i = 0; i < count; i++) {
        if (!counts(handles[i]))
            continue;
        int code = MPI_Test(&handles[i], flag, status);
        if (*flag) {
            *index = i;
            return code;
        }
    }
    if (*flag)
        nuri_set_status(status, MPI_ANY_SOURCE, MPI_ANY_TAG, 0, false);
    return MPI_SUCCESS;
}

int MPI_Waitany(int count, MPI_Request handles[], int *index, MPI_Status *status) {
    int flag, code;
    if (!any_ours(count, handles)) {
        nuri_enter();
        code = PMPI_Waitany(count, handles, index, status);
        nuri_leave();
        return code;
    }
    while ((code = MPI_Testany(count, handles, index, &flag, status)) == MPI_SUCCESS && !flag)
        rest(count, handles);
    return code;
}

int MPI_Testsome(int count, MPI_Request handles[], int *done, int indices[], MPI_Status statuses[]) {
    if (!any_ours(count, handles)) {
        nuri_poll();
        return PMPI_Testsome(count, handles, done, indices, statuses);
    }
    int all = MPI_SUCCESS, found = 0;
    bool some = false;
    for (int i = 0; i < count; i++) {
        if (!counts(handles[i]))
            continue;
        some = true;
        int flag, code = MPI_Test(&handles[i], &flag, nth(statuses, found));
        if (flag) {
            all = in_status(all, statuses, found, code);
            indices[found++] = i;
        }
    }
    *done = some ? found : MPI_UNDEFINED;
    return all;
}

int MPI_Waitsome(int count, MPI_Request handles[], int *done, int indices[], MPI_Status statuses[]) {
    int code;
    if (!any_ours(count, handles)) {
        nuri_enter();
        code = PMPI_Waitsome(count, handles, done, indices, statuses);
        nuri_leave();
        return code;
    }
    while ((code = MPI_Testsome(count, handles, done, indices, statuses)) == MPI_SUCCESS && *done == 0)
        rest(count, handles);
    return code;
}

int MPI_Request_free(MPI_Request *handle) {
    struct request *r = nuri_request(*handle);
    if (r == NULL)
        return PMPI_Request_free(handle);
    if (r->state == ACTIVE)
        r->orphan = true;
    else
        nuri_release(r);
    *handle = MPI_REQUEST_NULL;
    return MPI_SUCCESS;
}

int MPI_Cancel(MPI_Request *handle) {
    struct request *r = nuri_request(*handle);
    if (r == NULL)
        return PMPI_Cancel(handle);
    int cancelled = 0;
    if (r->state == ACTIVE && r->moves[0])
        nuri_ipc_cancel(nuri_end, r->number[0], &cancelled);
    if (cancelled && r->moves[1])
        nuri_ipc_cancel(nuri_end, r->number[1], &cancelled);
    return MPI_SUCCESS;
}

int MPI_Start(MPI_Request *handle) {
    struct request *r = nuri_request(*handle);
    if (r == NULL)
        return PMPI_Start(handle);
    nuri_start(r);
    return MPI_SUCCESS;
}

int MPI_Startall(int count, MPI_Request handles[]) {
    int code = MPI_SUCCESS;
    for (int i = 0; i < count && code == MPI_SUCCESS; i++)
        code = MPI_Start(&handles[i]);
    return code;
}
