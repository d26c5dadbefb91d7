// A load generator for a token endpoint (RFC 6749 section 6): one thread, one epoll set, a closed loop. Each connection has
// sessions of its own, refreshes them in turn, and goes on with the refresh token of each answer that has one. Prints one
// line of JSON.
//
//     refresh --port PORT --path PATH --form FORM --tokens FILE [options]
//
// FILE has a refresh token a line, and in the end the newest ones. FORM is sent before `&refresh_token=`.
//   --connections N    how many at once (64); no more than there are tokens
//   --seconds S        of measurement (1), after --warm-up S (0.2) that does not count
//   --cpu-of PID       whose CPU time is read at both ends of the measurement; can be repeated

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "clocks.h"
#include "latency.h"

enum { TOKEN_LIMIT = 512, INPUT_LIMIT = 32768, OUTPUT_LIMIT = 4096, EVENTS = 256 };

static uint16_t port;
static const char *path, *form, *file;
static size_t connection_count = 64;
static double seconds = 1, warm_up = 0.2;

static char (*tokens)[TOKEN_LIMIT];
static size_t token_count;

struct connection {
    int descriptor;
    size_t session;  // whose answer is awaited
    uint64_t since;
    size_t length;
    char input[INPUT_LIMIT];
};
static struct connection *connections;

static struct {
    uint64_t ok, unavailable, other;
    struct latency latency;
} seen;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void send_request(struct connection *connection) {
    char body[OUTPUT_LIMIT / 2], output[OUTPUT_LIMIT];
    int size = snprintf(body, sizeof body, "%s&refresh_token=%s", form, tokens[connection->session]);
    int length = snprintf(
        output, sizeof output,
        "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nUser-Agent: benchmark\r\nAccept: application/json\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s",
        path, port, size, body);
    if (size >= (int)sizeof body || length >= (int)sizeof output) {
        fprintf(stderr, "refresh: the request is too long\n");
        exit(1);
    }
    connection->since = now();
    // So little always fits into an empty buffer.
    if (send(connection->descriptor, output, (size_t)length, MSG_NOSIGNAL) != length) die("send");
}

// The value of a member of JSON that has no escapes; false where there is none of a usable length.
static bool member(const char *json, size_t length, const char *name, char *value) {
    char quoted[64];
    size_t quoted_length = (size_t)snprintf(quoted, sizeof quoted, "\"%s\"", name);
    const char *place = memmem(json, length, quoted, quoted_length), *end = json + length;
    if (place == NULL) return false;
    place += quoted_length;
    while (place < end && (*place == ':' || *place == ' ')) place++;
    if (place == end || *place++ != '"') return false;
    const char *last = memchr(place, '"', (size_t)(end - place));
    if (last == NULL || last - place >= TOKEN_LIMIT) return false;
    memcpy(value, place, (size_t)(last - place));
    value[last - place] = 0;
    return true;
}

// Takes a whole answer out of the input; false where it has not come yet.
static bool take(struct connection *connection) {
    char *end = memmem(connection->input, connection->length, "\r\n\r\n", 4);
    if (end == NULL) return false;
    *end = 0;
    const char *field = strcasestr(connection->input, "\ncontent-length:");
    size_t size = field == NULL ? 0 : strtoul(field + 16, NULL, 10);
    *end = '\r';
    size_t whole = (size_t)(end + 4 - connection->input) + size;
    if (whole > INPUT_LIMIT) {
        fprintf(stderr, "refresh: the answer is too long\n");
        exit(1);
    }
    if (connection->length < whole) return false;
    int status = atoi(connection->input + 9);
    if (status == 200) {
        seen.ok++;
        member(end + 4, size, "refresh_token", tokens[connection->session]);
    } else if (status == 503) {
        seen.unavailable++;
    } else {
        if (seen.other++ == 0) fprintf(stderr, "refresh: %.*s\n", (int)whole, connection->input);
    }
    latency_add(&seen.latency, now() - connection->since);
    memmove(connection->input, connection->input + whole, connection->length - whole);
    connection->length -= whole;
    return true;
}

static void run_until(int epoll_descriptor, uint64_t end) {
    struct epoll_event events[EVENTS];
    while (now() < end) {
        int count = epoll_wait(epoll_descriptor, events, EVENTS, 1);
        if (count < 0 && errno != EINTR) die("epoll_wait");
        for (int index = 0; index < count; index++) {
            struct connection *connection = events[index].data.ptr;
            ssize_t length = recv(
                connection->descriptor, connection->input + connection->length, INPUT_LIMIT - connection->length, 0);
            if (length <= 0) {
                fprintf(stderr, "refresh: the server ended a connection\n");
                exit(1);
            }
            connection->length += (size_t)length;
            if (!take(connection)) continue;
            connection->session += connection_count;
            if (connection->session >= token_count) connection->session %= connection_count;
            send_request(connection);
        }
    }
}

// Takes the answers that are under way, so that the newest tokens are known.
static void finish(void) {
    for (size_t index = 0; index < connection_count; index++) {
        struct connection *connection = &connections[index];
        while (!take(connection)) {
            ssize_t length = recv(
                connection->descriptor, connection->input + connection->length, INPUT_LIMIT - connection->length, 0);
            if (length <= 0) die("recv");
            connection->length += (size_t)length;
        }
        close(connection->descriptor);
    }
}

static void read_tokens(void) {
    FILE *stream = fopen(file, "r");
    if (stream == NULL) die(file);
    size_t room = 1024;
    tokens = malloc(room * TOKEN_LIMIT);
    while (tokens != NULL && fgets(tokens[token_count], TOKEN_LIMIT, stream) != NULL) {
        tokens[token_count][strcspn(tokens[token_count], "\n")] = 0;
        if (++token_count < room) continue;
        room *= 2;
        tokens = realloc(tokens, room * TOKEN_LIMIT);
    }
    fclose(stream);
    if (tokens == NULL || token_count < connection_count) die("too few tokens");
}

static void write_tokens(void) {
    FILE *stream = fopen(file, "w");
    if (stream == NULL) die(file);
    for (size_t index = 0; index < token_count; index++) fprintf(stream, "%s\n", tokens[index]);
    if (fclose(stream) != 0) die(file);
}

int main(int count, char **arguments) {
    for (int index = 1; index + 1 < count; index += 2) {
        const char *name = arguments[index], *value = arguments[index + 1];
        if (strcmp(name, "--port") == 0) port = (uint16_t)atoi(value);
        else if (strcmp(name, "--path") == 0) path = value;
        else if (strcmp(name, "--form") == 0) form = value;
        else if (strcmp(name, "--tokens") == 0) file = value;
        else if (strcmp(name, "--connections") == 0) connection_count = strtoul(value, NULL, 10);
        else if (strcmp(name, "--seconds") == 0) seconds = strtod(value, NULL);
        else if (strcmp(name, "--warm-up") == 0) warm_up = strtod(value, NULL);
        else if (strcmp(name, "--cpu-of") != 0 || server_count == SERVERS ||
                 clock_getcpuclockid((pid_t)atoi(value), &server_clocks[server_count++]) != 0) count = 0;
    }
    if (count % 2 == 0 || port == 0 || path == NULL || form == NULL || file == NULL || connection_count == 0) {
        fprintf(stderr, "refresh: arguments make no sense; they are described in refresh.c\n");
        return 2;
    }
    read_tokens();
    int epoll_descriptor = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc(connection_count, sizeof *connections);
    if (epoll_descriptor < 0 || connections == NULL) die("refresh");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    for (size_t index = 0; index < connection_count; index++) {
        struct connection *connection = &connections[index];
        connection->session = index;
        connection->descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int one = 1;
        if (connection->descriptor < 0 ||
            connect(connection->descriptor, (struct sockaddr *)&address, sizeof address) != 0) die("connect");
        setsockopt(connection->descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        if (epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, connection->descriptor, &event) != 0) die("epoll_ctl");
        send_request(connection);
    }
    run_until(epoll_descriptor, now() + (uint64_t)(warm_up * 1e9));
    uint64_t failed = seen.other + seen.unavailable;
    memset(&seen, 0, sizeof seen);
    uint64_t start = now(), cpu = server_cpu(), own = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
    run_until(epoll_descriptor, start + (uint64_t)(seconds * 1e9));
    double wall = (double)(now() - start) / 1e9;
    cpu = server_cpu() - cpu;
    own = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - own;
    uint64_t answers = seen.ok + seen.unavailable + seen.other;
    printf(
        "{\"requests\": %" PRIu64 ", \"ok\": %" PRIu64 ", \"unavailable\": %" PRIu64 ", \"other\": %" PRIu64
        ", \"errors\": %" PRIu64 ", \"per_second\": %.1f, \"server_cpu_us\": %.4f, \"server_busy\": %.4f"
        ", \"generator_busy\": %.4f, \"p50_us\": %.2f, \"p99_us\": %.2f}\n",
        answers, seen.ok, seen.unavailable, seen.other, failed, (double)answers / wall,
        answers > 0 ? (double)cpu / 1e3 / (double)answers : 0, (double)cpu / 1e9 / wall, (double)own / 1e9 / wall,
        latency_at(&seen.latency, 0.5), latency_at(&seen.latency, 0.99));
    finish();
    write_tokens();
    return 0;
}
