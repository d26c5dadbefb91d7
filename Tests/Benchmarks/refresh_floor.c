// What the calls of a refresh cost by themselves: a C program that asks PostgreSQL and the provider for what the broker asks
// them for, in the same order and in as many messages, and does nothing else. It seals nothing, checks nothing and keeps
// nothing; one thread, one epoll set, libpq. See cold_refresh.py.
//
//     refresh_floor PORT CONNECTION-STRING PROVIDER-PORT REFRESH-TOKEN...
//
// A request for `key-N` exchanges the Nth refresh token. Each has its own connection to PostgreSQL and to the provider.

#include <arpa/inet.h>
#include <libpq-fe.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FLOWS = 64, CLIENTS = 256, ROOM = 8192 };
enum kind { LISTENER, CLIENT, DATABASE, PROVIDER, NOTICES };
enum step { IDLE, CLAIMING, ASKING, STORING };

struct flow {
    PGconn *database;
    int provider, client, count;
    enum step step;
    char token[512], answer[ROOM];
};

static struct flow flows[FLOWS];
static int epoll;

static void fail(const char *reason) {
    fprintf(stderr, "refresh_floor: %s\n", reason);
    exit(1);
}

static void watch(int descriptor, enum kind kind, int number) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)kind << 32 | (uint32_t)number};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event)) fail("epoll_ctl");
}

static int dial(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address)) fail("no provider");
    return descriptor;
}

static PGconn *open_database(const char *uri) {
    PGconn *connection = PQconnectdb(uri);
    if (PQstatus(connection) != CONNECTION_OK) fail(PQerrorMessage(connection));
    return connection;
}

static void run(PGconn *connection, const char *sql) {
    PGresult *result = PQexec(connection, sql);
    if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
        fail(PQerrorMessage(connection));
    PQclear(result);
}

static void prepare(PGconn *connection, const char *name, const char *sql) {
    PGresult *result = PQprepare(connection, name, sql, 0, NULL);
    if (PQresultStatus(result) != PGRES_COMMAND_OK) fail(PQerrorMessage(connection));
    PQclear(result);
}

// One commit: as many statements, and about as many octets, as the broker's have.
static void commit(struct flow *flow, const char *statement, const char *content, int length, int event) {
    static char sealed[2048];
    char key[32];
    snprintf(key, sizeof key, "key-%d", (int)(flow - flows));
    const char *values[3] = {key, content, sealed};
    const int lengths[3] = {(int)strlen(key), length, event}, formats[3] = {1, 1, 1};
    const char *notice[1] = {"w 1795435085415167 credentials bench key-0\nl bench"};
    PQsendQueryParams(flow->database, "BEGIN ISOLATION LEVEL READ COMMITTED", 0, NULL, NULL, NULL, NULL, 1);
    PQsendQueryPrepared(flow->database, statement, 3, values, lengths, formats, 1);
    PQsendQueryParams(flow->database, "COMMIT", 0, NULL, NULL, NULL, NULL, 1);
    PQsendQueryPrepared(flow->database, "notify", 1, notice, NULL, NULL, 1);
    PQpipelineSync(flow->database);
    if (PQflush(flow->database)) fail("PostgreSQL takes no more");
}

static void asked(struct flow *flow, int client) {
    flow->client = client;
    flow->step = CLAIMING;
    commit(flow, "claim", "20466232e4e8e9091d", 18, 700);
}

static void ask_provider(struct flow *flow) {
    char request[1024], body[600];
    int length = snprintf(body, sizeof body, "grant_type=refresh_token&refresh_token=%s", flow->token);
    int count = snprintf(
        request, sizeof request,
        "POST /token HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        "Accept: application/json\r\nUser-Agent: token-broker\r\nAuthorization: Basic YmVuY2g6c2VjcmV0\r\n"
        "Accept-Encoding: identity\r\nContent-Length: %d\r\n\r\n%s", length, body);
    flow->count = 0;
    flow->step = ASKING;
    if (send(flow->provider, request, count, MSG_NOSIGNAL) != count) fail("the provider takes no more");
}

static void answer(struct flow *flow) {
    char body[400], response[1024], line[400];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int length = snprintf(body, sizeof body, "{\"token\":\"%.250s\"}", flow->token);
    int count = snprintf(
        response, sizeof response,
        "HTTP/1.1 200 OK\r\nDate: Mon, 23 Nov 2026 11:58:07 GMT\r\nContent-Type: application/json\r\n"
        "Cache-Control: no-store\r\nETag: \"1795435085415167\"\r\nContent-Length: %d\r\n\r\n%s", length, body);
    int logged = snprintf(line, sizeof line, "{\"time\":%ld,\"event\":\"credentials_renewed\"}\n", (long)now.tv_sec);
    if (write(1, line, logged) != logged) fail("the log takes no more");
    flow->step = IDLE;
    if (send(flow->client, response, count, MSG_NOSIGNAL) != count) fail("the caller takes no more");
}

static void from_provider(struct flow *flow) {
    ssize_t count = recv(flow->provider, flow->answer + flow->count, ROOM - 1 - flow->count, 0);
    if (count <= 0) fail("the provider has closed");
    flow->count += count;
    flow->answer[flow->count] = 0;
    char *body = strstr(flow->answer, "\r\n\r\n"), *length = strstr(flow->answer, "Content-Length: ");
    if (!body || !length || flow->answer + flow->count - body - 4 < atol(length + 16)) return;
    if (strncmp(flow->answer, "HTTP/1.1 200", 12)) fail(flow->answer);
    // The old one stays where the provider gives no other.
    char *token = strstr(body, "\"refresh_token\":\"");
    if (token && sscanf(token + 17, "%511[^\"]", flow->token) != 1) fail(flow->answer);
    flow->step = STORING;
    commit(flow, "store", body, 600, 1000);
}

static void from_database(struct flow *flow) {
    if (!PQconsumeInput(flow->database)) fail(PQerrorMessage(flow->database));
    while (!PQisBusy(flow->database)) {
        PGresult *result = PQgetResult(flow->database);
        if (!result) continue;
        ExecStatusType status = PQresultStatus(result);
        PQclear(result);
        if (status == PGRES_FATAL_ERROR) fail(PQerrorMessage(flow->database));
        if (status != PGRES_PIPELINE_SYNC) continue;
        if (flow->step == CLAIMING) ask_provider(flow);
        else answer(flow);
        return;
    }
}

static void from_client(int client) {
    char request[ROOM];
    ssize_t count = recv(client, request, sizeof request - 1, 0);
    if (count <= 0) {
        close(client);
        return;
    }
    request[count] = 0;
    char *key = strstr(request, "storage_key=key-");
    int number = key ? atoi(key + 16) : -1;
    if (number < 0 || number >= FLOWS || !flows[number].database || flows[number].step != IDLE) fail("unknown key");
    asked(&flows[number], client);
}

static void hear(PGconn *notices) {
    if (!PQconsumeInput(notices)) fail(PQerrorMessage(notices));
    for (PGnotify *notice; (notice = PQnotifies(notices));) PQfreemem(notice);
}

int main(int count, char **arguments) {
    if (count < 5 || count - 4 > FLOWS) fail("refresh_floor PORT CONNECTION-STRING PROVIDER-PORT REFRESH-TOKEN...");
    epoll = epoll_create1(0);
    PGconn *notices = open_database(arguments[2]);
    run(notices, "CREATE TABLE IF NOT EXISTS floor_records (key text PRIMARY KEY, content bytea)");
    run(notices, "CREATE TABLE IF NOT EXISTS floor_events (position bigserial PRIMARY KEY, key text, sealed bytea)");
    for (int number = 0; number < count - 4; number++) {
        struct flow *flow = &flows[number];
        flow->database = open_database(arguments[2]);
        char insert[200];
        snprintf(insert, sizeof insert, "INSERT INTO floor_records VALUES ('key-%d', '') ON CONFLICT DO NOTHING", number);
        run(flow->database, insert);
        static const char *const names[2] = {"claim", "store"};
        for (int name = 0; name < 2; name++)
            prepare(
                flow->database, names[name],
                "WITH changed AS (UPDATE floor_records SET content = $2::bytea WHERE key = $1::text RETURNING 1),"
                " appended AS (INSERT INTO floor_events (key, sealed) VALUES ($1::text, $3::bytea))"
                " SELECT 1 FROM changed");
        prepare(flow->database, "notify", "SELECT pg_notify('refresh_floor', $1)");
        PQsetnonblocking(flow->database, 1);
        PQenterPipelineMode(flow->database);
        flow->provider = dial(atoi(arguments[3]));
        snprintf(flow->token, sizeof flow->token, "%s", arguments[4 + number]);
        watch(PQsocket(flow->database), DATABASE, number);
        watch(flow->provider, PROVIDER, number);
    }
    run(notices, "LISTEN refresh_floor");
    watch(PQsocket(notices), NOTICES, 0);
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, CLIENTS)) fail("the port is taken");
    watch(listener, LISTENER, 0);
    struct epoll_event events[64];
    while (1) {
        int ready = epoll_wait(epoll, events, 64, -1);
        for (int index = 0; index < ready; index++) {
            int number = (int)(events[index].data.u64 & UINT32_MAX);
            switch ((enum kind)(events[index].data.u64 >> 32)) {
            case LISTENER: {
                int client = accept(listener, NULL, NULL);
                if (client >= 0) watch(client, CLIENT, client);
                break;
            }
            case CLIENT: from_client(number); break;
            case DATABASE: from_database(&flows[number]); break;
            case PROVIDER: from_provider(&flows[number]); break;
            case NOTICES: hear(notices); break;
            }
        }
    }
}
