// What pipelines can save at all: the reads that cold.swift makes, by a C program that does nothing but libpq's calls, on
// one connection, in a round trip each and in batches. See cold.sh.
//
//     cold_floor CONNECTION-STRING ROUNDS

#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { READS = 8192, KEYS = 10000, BATCHES = 4 };

static const int batches[BATCHES] = {0, 8, 32, 128};

static const char *const statement =
    "SELECT tenant, key, version, sealed, lookup, expires, due, lease_holder,"
    " lease_expires - (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    " FROM token_broker_records WHERE kind = $1 AND tenant = $2 AND key = $3";

static void fail(PGconn *connection) {
    fprintf(stderr, "cold_floor: %s\n", PQerrorMessage(connection));
    exit(1);
}

static double micros(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static double processor(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static void ask(PGconn *connection, int number) {
    char key[32];
    snprintf(key, sizeof key, "user-%d", number * 7 % KEYS);
    const char *values[3] = {"credentials", "bench", key};
    if (!PQsendQueryPrepared(connection, "read", 3, values, NULL, NULL, 1)) fail(connection);
}

static PGresult *answer(PGconn *connection) {
    struct pollfd wait = {PQsocket(connection), POLLIN, 0};
    PQflush(connection);
    while (PQisBusy(connection)) {
        poll(&wait, 1, -1);
        if (!PQconsumeInput(connection)) fail(connection);
    }
    return PQgetResult(connection);
}

static int take(PGresult *result) {
    int rows = PQresultStatus(result) == PGRES_TUPLES_OK ? PQntuples(result) : 0;
    PQclear(result);
    return rows;
}

// Returns the rows that came.
static int read_all(PGconn *connection, int batch) {
    int rows = 0;
    if (batch == 0) {
        for (int number = 0; number < READS; number++) {
            ask(connection, number);
            for (PGresult *result; (result = answer(connection));) rows += take(result);
        }
        return rows;
    }
    PQenterPipelineMode(connection);
    for (int first = 0; first < READS; first += batch) {
        for (int number = first; number < first + batch; number++) ask(connection, number);
        PQpipelineSync(connection);
        for (int isDone = 0; !isDone;) {
            PGresult *result = answer(connection);
            if (!result) continue;
            isDone = PQresultStatus(result) == PGRES_PIPELINE_SYNC;
            rows += take(result);
        }
    }
    PQexitPipelineMode(connection);
    return rows;
}

static int rising(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static double median(double *values, int count) {
    qsort(values, count, sizeof *values, rising);
    return values[count / 2];
}

int main(int argc, char **argv) {
    int rounds = argc > 2 ? atoi(argv[2]) : 7;
    if (argc < 2 || rounds < 1) return 2;
    PGconn *connection = PQconnectdb(argv[1]);
    if (PQstatus(connection) != CONNECTION_OK) fail(connection);
    PGresult *prepared = PQprepare(connection, "read", statement, 3, NULL);
    if (PQresultStatus(prepared) != PGRES_COMMAND_OK) fail(connection);
    PQclear(prepared);
    PQsetnonblocking(connection, 1);
    double *times[BATCHES], *loads[BATCHES], *ratios[BATCHES];
    for (int way = 0; way < BATCHES; way++) {
        times[way] = calloc(rounds, sizeof(double));
        loads[way] = calloc(rounds, sizeof(double));
        ratios[way] = calloc(rounds, sizeof(double));
    }
    // The first round has both sides' memory filled.
    for (int round = -1; round < rounds; round++)
        for (int way = 0; way < BATCHES; way++) {
            double began = micros(), used = processor();
            if (read_all(connection, batches[way]) != READS) fail(connection);
            if (round < 0) continue;
            times[way][round] = (micros() - began) / READS;
            loads[way][round] = (processor() - used) / READS;
            ratios[way][round] = times[0][round] / times[way][round];
        }
    printf("\nlibpq alone, one connection\nmicroseconds per read: time, CPU of this process; medians of %d rounds\n", rounds);
    printf("%12s%12s%12s%12s\n", "batch", "time", "CPU", "x 1");
    for (int way = 0; way < BATCHES; way++)
        printf(
            "%12d%12.1f%12.1f%12.1f\n", batches[way] ? batches[way] : 1, median(times[way], rounds),
            median(loads[way], rounds), median(ratios[way], rounds));
    PQfinish(connection);
    return 0;
}
