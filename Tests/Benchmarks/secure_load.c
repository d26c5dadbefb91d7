// A load generator for servers that speak TLS 1.3: one thread, one epoll set, a closed loop. Prints one line of JSON.
//
//     secure_load --port PORT --requests-from FILE [options]
//
// FILE holds the head of one request, which each connection sends again as soon as it has the answer.
//   --handshakes       instead: a full handshake on a new connection each time, without a request. The client then says
//                      that it has finished, and counts the handshake when the server has closed the connection
//   --connections N    how many at once (64)
//   --seconds S        of measurement (1), after --warm-up S (0.2) that does not count
//   --cpu-of PID       whose CPU time is read at both ends of the measurement; can be repeated
//
// It ends with an error where a handshake is not what both servers are compared by: full, with X25519 and
// TLS_AES_256_GCM_SHA384.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "clocks.h"
#include "latency.h"

enum {
    REQUEST_LIMIT = 8192,
    ANSWER_LIMIT = 32768,
    EVENTS = 256,
    // Clients' addresses, 127.0.0.2 and up: one alone has too few ports for connections that are made all the time.
    SOURCES = 16,
};
static const char *const group = "X25519", *const suite = "TLS_AES_256_GCM_SHA384";

static uint16_t port;
static size_t connection_count = 64;
static bool only_handshakes;
static double seconds = 1, warm_up = 0.2;
static char request[REQUEST_LIMIT];
static size_t request_length;

struct connection {
    int descriptor;
    SSL *ssl;
    enum { SHAKING_HANDS, ASKING, ENDING } phase;
    uint64_t since;
    size_t length;
    char answer[ANSWER_LIMIT];
};
static struct connection *connections;
static SSL_CTX *context;
static int epoll_descriptor;

static struct {
    uint64_t done, unavailable, other;
    struct latency latency;
} seen;

static void die(const char *what) {
    perror(what);
    ERR_print_errors_fp(stderr);
    exit(1);
}

// --- Connections ----------------------------------------------------------------------------------------------------

static void advance(struct connection *connection);

static void open_connection(struct connection *connection) {
    static unsigned source;
    connection->since = now();
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (descriptor < 0) die("socket");
    if (setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) die("TCP_NODELAY");
    // The port is chosen when the other end is known: the same one can serve towards several.
    if (setsockopt(descriptor, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on) != 0) die("bind without port");
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + source++ % SOURCES);
    if (bind(descriptor, (struct sockaddr *)&address, sizeof address) != 0) die("bind");
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    // On loopback the kernel answers at once, and the server accepts later.
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address) != 0) die("connect");
    if (fcntl(descriptor, F_SETFL, O_NONBLOCK) != 0) die("fcntl");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, descriptor, &event) != 0) die("epoll_ctl");
    connection->descriptor = descriptor;
    connection->phase = SHAKING_HANDS;
    connection->ssl = SSL_new(context);
    if (connection->ssl == NULL || SSL_set_fd(connection->ssl, descriptor) != 1) die("SSL_new");
    SSL_set_connect_state(connection->ssl);
    advance(connection);
}

static void close_connection(struct connection *connection) {
    SSL_free(connection->ssl);
    if (close(connection->descriptor) != 0) die("close");
}

static void count_done(struct connection *connection) {
    uint64_t time = now();
    seen.done++;
    latency_add(&seen.latency, time - connection->since);
    connection->since = time;
}

static void send_request(struct connection *connection) {
    connection->length = 0;
    // So little always fits into an empty buffer.
    if (SSL_write(connection->ssl, request, (int)request_length) != (int)request_length) die("SSL_write");
}

static void check_handshake(SSL *ssl) {
    bool is_same = SSL_version(ssl) == TLS1_3_VERSION && SSL_session_reused(ssl) == 0 &&
        SSL_get_negotiated_group(ssl) == NID_X25519 && strcmp(SSL_get_cipher_name(ssl), suite) == 0;
    if (is_same) return;
    fprintf(stderr, "secure_load: the handshake is not a full one with %s and %s\n", group, suite);
    exit(1);
}

// Whether the whole answer is there.
static bool is_complete(const struct connection *connection) {
    static const char field[] = "\r\nContent-Length: ";
    const char *end = memmem(connection->answer, connection->length, "\r\n\r\n", 4);
    if (end == NULL) return false;
    size_t head = (size_t)(end - connection->answer) + 4;
    const char *length = memmem(connection->answer, head, field, sizeof field - 1);
    if (length == NULL) {
        fprintf(stderr, "secure_load: an answer without a length\n");
        exit(1);
    }
    return connection->length >= head + strtoull(length + sizeof field - 1, NULL, 10);
}

static void count_answer(struct connection *connection) {
    int status = connection->length > 12 ? atoi(connection->answer + 9) : 0;
    if (status == 503) seen.unavailable++;
    else if (status != 200) seen.other++;
    count_done(connection);
}

// Ends the program unless `SSL_read` or `SSL_do_handshake` lacks nothing but the server's next bytes.
static void expect_input(struct connection *connection, int result) {
    if (SSL_get_error(connection->ssl, result) != SSL_ERROR_WANT_READ) die("the connection broke");
}

static void shake_hands(struct connection *connection) {
    int result = SSL_do_handshake(connection->ssl);
    if (result != 1) return expect_input(connection, result);
    check_handshake(connection->ssl);
    if (only_handshakes) {
        connection->phase = ENDING;
        if (SSL_shutdown(connection->ssl) < 0) die("SSL_shutdown");
        return;
    }
    connection->phase = ASKING;
    connection->since = now();
    send_request(connection);
}

static void read_answer(struct connection *connection) {
    do {
        int result = SSL_read(
            connection->ssl, connection->answer + connection->length, (int)(ANSWER_LIMIT - connection->length));
        if (result <= 0) return expect_input(connection, result);
        connection->length += (size_t)result;
    } while (!is_complete(connection));
    count_answer(connection);
    send_request(connection);
}

// Reads what the server still has to say, its tickets above all, until it has closed the connection.
static void await_end(struct connection *connection) {
    ssize_t count;
    do {
        count = recv(connection->descriptor, connection->answer, ANSWER_LIMIT, 0);
    } while (count > 0);
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0) die("recv");
    count_done(connection);
    close_connection(connection);
    open_connection(connection);
}

static void advance(struct connection *connection) {
    ERR_clear_error();
    switch (connection->phase) {
    case SHAKING_HANDS: return shake_hands(connection);
    case ASKING: return read_answer(connection);
    case ENDING: return await_end(connection);
    }
}

// --- Running --------------------------------------------------------------------------------------------------------

static void run_for(double duration) {
    static struct epoll_event events[EVENTS];
    uint64_t end = now() + (uint64_t)(duration * 1e9);
    while (now() < end) {
        int ready = epoll_wait(epoll_descriptor, events, EVENTS, 1);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int index = 0; index < ready; index++) advance(events[index].data.ptr);
    }
}

static void read_request(const char *path) {
    FILE *file = fopen(path, "r");
    if (file == NULL) die(path);
    request_length = fread(request, 1, sizeof request, file);
    if (ferror(file) || request_length == 0 || request_length == sizeof request) die(path);
    fclose(file);
}

static void read_arguments(int count, char **arguments) {
    const char *file = NULL;
    for (int index = 1; index < count; index++) {
        const char *name = arguments[index];
        if (strcmp(name, "--handshakes") == 0) {
            only_handshakes = true;
            continue;
        }
        if (index + 1 == count) goto wrong;
        const char *value = arguments[++index];
        if (strcmp(name, "--port") == 0) port = (uint16_t)atoi(value);
        else if (strcmp(name, "--requests-from") == 0) file = value;
        else if (strcmp(name, "--connections") == 0) connection_count = (size_t)atoi(value);
        else if (strcmp(name, "--seconds") == 0) seconds = strtod(value, NULL);
        else if (strcmp(name, "--warm-up") == 0) warm_up = strtod(value, NULL);
        else if (strcmp(name, "--cpu-of") == 0 && server_count < SERVERS) {
            if (clock_getcpuclockid((pid_t)atoi(value), &server_clocks[server_count++]) != 0) goto wrong;
        } else goto wrong;
    }
    if (port == 0 || file == NULL || connection_count == 0 || seconds <= 0) goto wrong;
    read_request(file);
    return;
wrong:
    fprintf(stderr, "secure_load: arguments make no sense; they are described in secure_load.c\n");
    exit(2);
}

int main(int count, char **arguments) {
    read_arguments(count, arguments);
    signal(SIGPIPE, SIG_IGN);
    context = SSL_CTX_new(TLS_client_method());
    if (context == NULL || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set1_groups_list(context, group) != 1 || SSL_CTX_set_ciphersuites(context, suite) != 1)
        die("SSL_CTX_new");
    // One system call for what has come, not two for each record.
    SSL_CTX_set_read_ahead(context, 1);
    epoll_descriptor = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc(connection_count, sizeof *connections);
    if (epoll_descriptor < 0 || connections == NULL) die("secure_load");
    for (size_t index = 0; index < connection_count; index++) open_connection(&connections[index]);

    run_for(warm_up);
    memset(&seen, 0, sizeof seen);
    uint64_t cpu = server_cpu(), own_cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID), began = now();
    run_for(seconds);
    double wall = (double)(now() - began) / 1e9;
    cpu = server_cpu() - cpu;
    own_cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - own_cpu;
    printf(
        "{\"requests\": %" PRIu64 ", \"unavailable\": %" PRIu64 ", \"other\": %" PRIu64 ", \"errors\": 0"
        ", \"per_second\": %.1f, \"server_cpu_us\": %.4f, \"server_busy\": %.4f, \"generator_busy\": %.4f"
        ", \"p50_us\": %.2f, \"p99_us\": %.2f}\n",
        seen.done, seen.unavailable, seen.other, (double)seen.done / wall,
        seen.done > 0 ? (double)cpu / 1e3 / (double)seen.done : 0, (double)cpu / 1e9 / wall,
        (double)own_cpu / 1e9 / wall, latency_at(&seen.latency, 0.5), latency_at(&seen.latency, 0.99));
    return 0;
}
