#include "CPostgres.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

// Every function of libpq that is called: result, name, parameters, arguments. The definitions that are made of this list
// are held against the declarations in libpq-fe.h by the compiler.
#define FUNCTIONS(F)                                                                                                   \
    F(PGconn *, PQconnectStartParams, (const char *const *names, const char *const *values, int expands),              \
      (names, values, expands))                                                                                        \
    F(PostgresPollingStatusType, PQconnectPoll, (PGconn * connection), (connection))                                   \
    F(void, PQfinish, (PGconn * connection), (connection))                                                             \
    F(int, PQsocket, (const PGconn *connection), (connection))                                                         \
    F(ConnStatusType, PQstatus, (const PGconn *connection), (connection))                                              \
    F(PGTransactionStatusType, PQtransactionStatus, (const PGconn *connection), (connection))                          \
    F(char *, PQerrorMessage, (const PGconn *connection), (connection))                                                \
    F(int, PQsetnonblocking, (PGconn * connection, int flag), (connection, flag))                                      \
    F(PGVerbosity, PQsetErrorVerbosity, (PGconn * connection, PGVerbosity verbosity), (connection, verbosity))         \
    F(PQnoticeReceiver, PQsetNoticeReceiver, (PGconn * connection, PQnoticeReceiver receiver, void *context),          \
      (connection, receiver, context))                                                                                 \
    F(int, PQsendQueryParams,                                                                                          \
      (PGconn * connection, const char *sql, int count, const Oid *types, const char *const *values,                   \
       const int *lengths, const int *formats, int format),                                                            \
      (connection, sql, count, types, values, lengths, formats, format))                                               \
    F(int, PQsendPrepare, (PGconn * connection, const char *name, const char *sql, int count, const Oid *types),       \
      (connection, name, sql, count, types))                                                                           \
    F(int, PQsendQueryPrepared,                                                                                        \
      (PGconn * connection, const char *name, int count, const char *const *values, const int *lengths,                \
       const int *formats, int format),                                                                                \
      (connection, name, count, values, lengths, formats, format))                                                     \
    F(int, PQflush, (PGconn * connection), (connection))                                                               \
    F(int, PQconsumeInput, (PGconn * connection), (connection))                                                        \
    F(int, PQisBusy, (PGconn * connection), (connection))                                                              \
    F(PGresult *, PQgetResult, (PGconn * connection), (connection))                                                    \
    F(int, PQenterPipelineMode, (PGconn * connection), (connection))                                                   \
    F(int, PQpipelineSync, (PGconn * connection), (connection))                                                        \
    F(int, PQexitPipelineMode, (PGconn * connection), (connection))                                                    \
    F(PGnotify *, PQnotifies, (PGconn * connection), (connection))                                                     \
    F(ExecStatusType, PQresultStatus, (const PGresult *result), (result))                                              \
    F(char *, PQresultErrorField, (const PGresult *result, int field), (result, field))                                \
    F(int, PQntuples, (const PGresult *result), (result))                                                              \
    F(int, PQnfields, (const PGresult *result), (result))                                                              \
    F(char *, PQcmdTuples, (PGresult * result), (result))                                                              \
    F(Oid, PQftype, (const PGresult *result, int column), (result, column))                                            \
    F(int, PQgetisnull, (const PGresult *result, int row, int column), (result, row, column))                          \
    F(int, PQgetlength, (const PGresult *result, int row, int column), (result, row, column))                          \
    F(char *, PQgetvalue, (const PGresult *result, int row, int column), (result, row, column))                        \
    F(void, PQclear, (PGresult * result), (result))                                                                    \
    F(PQconninfoOption *, PQconninfoParse, (const char *text, char **message), (text, message))                        \
    F(PQconninfoOption *, PQconndefaults, (void), ())                                                                  \
    F(void, PQconninfoFree, (PQconninfoOption * options), (options))                                                   \
    F(void, PQfreemem, (void *memory), (memory))

#define POINTER(result, name, parameters, arguments) __typeof__(&name) name;
static struct {
    FUNCTIONS(POINTER)
} loaded;

// Written by pthread_once before any thread reads it.
static char failure[512];

static void load(void) {
    // Every version of libpq since 2005 bears this number. All its symbols are wanted now: one that is missing must not end
    // the process later.
    void *library = dlopen("libpq.so.5", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        snprintf(failure, sizeof failure, "libpq cannot be loaded: %s", reason ? reason : "no reason given");
        return;
    }
#define FIND(result, name, parameters, arguments)                                                                      \
    if (!(loaded.name = (__typeof__(&name))dlsym(library, #name)))                                                     \
        snprintf(failure, sizeof failure, "libpq is older than that of PostgreSQL 14: it has no " #name);
    FUNCTIONS(FIND)
}

const char *cpostgres_load(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return failure[0] ? failure : NULL;
}

static void require(void) {
    const char *reason = cpostgres_load();
    if (!reason) return;
    fprintf(stderr, "%s\n", reason);
    abort();
}

// Hidden, so that libpq, which calls some of these itself, finds its own.
#define FORWARD(result, name, parameters, arguments)                                                                   \
    __attribute__((visibility("hidden"))) result name parameters {                                                     \
        require();                                                                                                     \
        return loaded.name arguments;                                                                                  \
    }
FUNCTIONS(FORWARD)
