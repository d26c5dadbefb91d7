// The floor: what a request for credentials costs a server that does nothing but what no server can leave out.
//
// One thread, one edge-triggered epoll set. For each request it finds the head's end, compares the target's beginning, hashes the
// API key with SHA-256 and compares the digest, looks at the clock for the token's expiry, and answers with the fields
// that the broker answers with. One recv and one send for each batch of requests that arrived together.
//
// It leaves out what only a product needs: limits, time-outs, other routes, faults told to the client. A request that is
// not understood ends the connection.
//
//     floor --port PORT --target TARGET --key KEY --etag TAG --expires SECONDS --body FILE [--no-hash]
//
// Listens on 127.0.0.1, and runs until it is killed.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    // Where every read lands: a batch of pipelined heads fits in.
    INPUT_SIZE = 65536,
    // A head that is longer than this ends its connection.
    HEAD_LIMIT = 8192,
    EVENTS = 512,
    DIGEST_SIZE = 32,
    DATE_SIZE = 29,
    REQUEST_ID_SIZE = 32,
};

// Settings, and what is made of them once.
static const char *target, *key, *etag;
static size_t target_length, key_length, etag_length;
static time_t expires;
static uint16_t port;
static bool hashes = true;
static unsigned char key_digest[DIGEST_SIZE];
static EVP_MD *sha256;
static EVP_MD_CTX *sha256_context;

// An answer as it is sent, but for the bytes of its date and its request's identifier.
struct answer {
    char *bytes;
    size_t length, date, request_id;
};
static struct answer ok, not_modified;

// What a connection keeps between two turns: nothing at all, mostly.
struct connection {
    char *input;   // the beginning of a head whose end has not come
    size_t input_length;
    char *output;  // answers that the peer has not taken yet
    size_t output_length;
    bool ends;     // once that is sent
};
static struct connection *connections;
static size_t connection_limit;

static int epoll_descriptor;
static char input[INPUT_SIZE];
static char *output;
static size_t output_size, output_length;

static time_t date_second = -1;
static char date[DATE_SIZE + 1];
static uint64_t request_number;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void hash(const char *bytes, size_t length, unsigned char *digest) {
    unsigned int size;
    if (!EVP_DigestInit_ex(sha256_context, sha256, NULL) || !EVP_DigestUpdate(sha256_context, bytes, length) ||
        !EVP_DigestFinal_ex(sha256_context, digest, &size)) {
        fprintf(stderr, "SHA-256 failed\n");
        exit(1);
    }
}

static void make_answer(struct answer *answer, const char *status, const char *body, size_t body_length) {
    char head[1024];
    char type_and_length[128] = "";
    if (body != NULL) {
        snprintf(
            type_and_length, sizeof type_and_length, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
            body_length);
    }
    int length = snprintf(
        head, sizeof head,
        "HTTP/1.1 %s\r\nDate: %*s\r\nX-Request-ID: %*s\r\nCache-Control: no-store\r\nETag: %s\r\n%s\r\n", status,
        DATE_SIZE, "", REQUEST_ID_SIZE, "", etag, type_and_length);
    answer->length = (size_t)length + body_length;
    answer->bytes = malloc(answer->length);
    if (answer->bytes == NULL) die("malloc");
    memcpy(answer->bytes, head, (size_t)length);
    if (body != NULL) memcpy(answer->bytes + length, body, body_length);
    answer->date = (size_t)(strstr(head, "Date: ") - head) + 6;
    answer->request_id = (size_t)(strstr(head, "X-Request-ID: ") - head) + 14;
    memset(answer->bytes + answer->request_id, '0', REQUEST_ID_SIZE);
}

static void append(const struct answer *answer, time_t now) {
    if (output_length + answer->length > output_size) {
        output_size = 2 * output_size + answer->length;
        output = realloc(output, output_size);
        if (output == NULL) die("realloc");
    }
    char *place = output + output_length;
    memcpy(place, answer->bytes, answer->length);
    if (now != date_second) {
        struct tm parts;
        date_second = now;
        strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &parts));
    }
    memcpy(place + answer->date, date, DATE_SIZE);
    // The first half is the same for all.
    uint64_t number = ++request_number;
    char *digit = place + answer->request_id + REQUEST_ID_SIZE;
    for (int count = 0; count < REQUEST_ID_SIZE / 2; count++, number >>= 4) *--digit = "0123456789abcdef"[number & 15];
    output_length += answer->length;
}

static bool starts_with(const char *line, size_t line_length, const char *prefix, size_t length) {
    return line_length >= length && memcmp(line, prefix, length) == 0;
}
#define STARTS_WITH(line, length, text) starts_with(line, length, text, sizeof text - 1)

static bool is_key(const char *bytes, size_t length) {
    if (!hashes) return length == key_length && memcmp(bytes, key, length) == 0;
    unsigned char digest[DIGEST_SIZE];
    hash(bytes, length, digest);
    return CRYPTO_memcmp(digest, key_digest, DIGEST_SIZE) == 0;
}

// Answers the request that begins at `head` into `output`. Returns what follows it; `head` itself where its end has not
// come, and NULL where it is not one that is understood.
static const char *answer_request(const char *head, const char *end, bool *ends) {
    const char *key_place = NULL;
    size_t key_size = 0;
    bool is_held = false;
    const char *line = head, *line_end;
    while ((line_end = memchr(line, '\n', (size_t)(end - line))) != NULL) {
        size_t length = (size_t)(line_end - line);
        if (length == 0 || line_end[-1] != '\r') return NULL;
        length--;
        if (length == 0) break;
        if (line == head) {
            // The storage key's own part is not looked at: all have the same credentials here.
            if (!STARTS_WITH(line, length, "GET ")) return NULL;
            if (!starts_with(line + 4, length - 4, target, target_length)) return NULL;
        } else if (STARTS_WITH(line, length, "Authorization: Bearer ")) {
            key_place = line + sizeof "Authorization: Bearer " - 1;
            key_size = (size_t)(line + length - key_place);
        } else if (STARTS_WITH(line, length, "If-None-Match: ")) {
            const char *tag = line + sizeof "If-None-Match: " - 1;
            is_held = (size_t)(line + length - tag) == etag_length && memcmp(tag, etag, etag_length) == 0;
        } else if (STARTS_WITH(line, length, "Connection: close")) {
            *ends = true;
        }
        line = line_end + 1;
    }
    if (line_end == NULL) return head;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (key_place == NULL || !is_key(key_place, key_size) || now.tv_sec >= expires) return NULL;
    append(is_held ? &not_modified : &ok, now.tv_sec);
    return line_end + 1;
}

static void end_connection(int descriptor) {
    struct connection *connection = &connections[descriptor];
    free(connection->input);
    free(connection->output);
    *connection = (struct connection){0};
    close(descriptor);
}

// Sends what is in `output`, and keeps what the peer has no room for. False when the connection is over.
static bool send_output(int descriptor, struct connection *connection) {
    ssize_t sent = send(descriptor, output, output_length, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return false;
    size_t count = sent < 0 ? 0 : (size_t)sent;
    if (count == output_length) return true;
    connection->output_length = output_length - count;
    connection->output = malloc(connection->output_length);
    if (connection->output == NULL) die("malloc");
    memcpy(connection->output, output + count, connection->output_length);
    return true;
}

// Sends what an earlier send has left. False when the connection is over.
static bool send_rest(int descriptor, struct connection *connection) {
    ssize_t sent = send(descriptor, connection->output, connection->output_length, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN;
    connection->output_length -= (size_t)sent;
    memmove(connection->output, connection->output + sent, connection->output_length);
    if (connection->output_length > 0) return true;
    free(connection->output);
    connection->output = NULL;
    return !connection->ends;
}

// Reads until the socket is empty, and answers. False when the connection is over.
static bool serve(int descriptor, struct connection *connection) {
    while (connection->output_length == 0) {
        size_t held = connection->input_length;
        if (held > 0) memcpy(input, connection->input, held);
        ssize_t received = recv(descriptor, input + held, INPUT_SIZE - held, 0);
        if (received == 0) return false;
        if (received < 0) return errno == EAGAIN;
        // A short read has emptied the socket; the next byte makes a new event.
        bool is_empty = (size_t)received < INPUT_SIZE - held;
        const char *next = input, *end = input + held + received;
        output_length = 0;
        while (next < end && !connection->ends) {
            const char *rest = answer_request(next, end, &connection->ends);
            if (rest == NULL) return false;
            if (rest == next) break;
            next = rest;
        }
        size_t left = (size_t)(end - next);
        if (left > HEAD_LIMIT) return false;
        if (left > 0) {
            if (connection->input == NULL) connection->input = malloc(HEAD_LIMIT);
            if (connection->input == NULL) die("malloc");
            memcpy(connection->input, next, left);
        }
        connection->input_length = left;
        if (output_length > 0 && !send_output(descriptor, connection)) return false;
        if (connection->output_length == 0 && connection->ends) return false;
        if (is_empty) return true;
    }
    return true;
}

static void accept_connections(int listener) {
    while (true) {
        int descriptor = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (descriptor < 0) {
            if (errno == EAGAIN) return;
            if (errno == ECONNABORTED || errno == EINTR) continue;
            die("accept4");
        }
        if ((size_t)descriptor >= connection_limit) {
            close(descriptor);
            continue;
        }
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.fd = descriptor};
        if (epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, descriptor, &event) != 0) die("epoll_ctl");
    }
}

static int make_listener(void) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0) die("socket");
    // Connections inherit it: no answer waits for another's acknowledgement, and no connection pays a call for that.
    int on = 1;
    if (setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) die("TCP_NODELAY");
    if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) die("SO_REUSEADDR");
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0) die("bind");
    if (listen(listener, 4096) != 0) die("listen");
    return listener;
}

static char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "r");
    if (file == NULL) die(path);
    char *bytes = malloc(65536);
    if (bytes == NULL) die("malloc");
    *length = fread(bytes, 1, 65536, file);
    fclose(file);
    return bytes;
}

static void read_arguments(int count, char **arguments) {
    const char *body_file = NULL;
    for (int index = 1; index < count; index++) {
        const char *name = arguments[index];
        if (strcmp(name, "--no-hash") == 0) {
            hashes = false;
            continue;
        }
        const char *value = index + 1 < count ? arguments[++index] : "";
        if (strcmp(name, "--port") == 0) port = (uint16_t)atoi(value);
        else if (strcmp(name, "--target") == 0) target = value;
        else if (strcmp(name, "--key") == 0) key = value;
        else if (strcmp(name, "--etag") == 0) etag = value;
        else if (strcmp(name, "--expires") == 0) expires = strtoll(value, NULL, 10);
        else if (strcmp(name, "--body") == 0) body_file = value;
        else goto wrong;
    }
    if (port == 0 || target == NULL || key == NULL || etag == NULL || expires == 0 || body_file == NULL) goto wrong;
    target_length = strlen(target);
    key_length = strlen(key);
    etag_length = strlen(etag);
    size_t body_length;
    char *body = read_file(body_file, &body_length);
    make_answer(&ok, "200 OK", body, body_length);
    make_answer(&not_modified, "304 Not Modified", NULL, 0);
    free(body);
    return;
wrong:
    fprintf(stderr, "usage: floor --port P --target T --key K --etag E --expires SECONDS --body FILE [--no-hash]\n");
    exit(2);
}

int main(int count, char **arguments) {
    read_arguments(count, arguments);
    // Fetched once: a lookup for each request would cost several times what the hash does.
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    sha256_context = EVP_MD_CTX_new();
    if (sha256 == NULL || sha256_context == NULL) {
        fprintf(stderr, "no SHA-256\n");
        return 1;
    }
    hash(key, key_length, key_digest);

    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) die("setrlimit");
    connection_limit = limit.rlim_cur < 65536 ? limit.rlim_cur : 65536;
    connections = calloc(connection_limit, sizeof *connections);
    if (connections == NULL) die("calloc");
    output_size = INPUT_SIZE;
    output = malloc(output_size);
    if (output == NULL) die("malloc");

    epoll_descriptor = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_descriptor < 0) die("epoll_create1");
    int listener = make_listener();
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = listener};
    if (epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, listener, &event) != 0) die("epoll_ctl");

    static struct epoll_event events[EVENTS];
    while (true) {
        int ready = epoll_wait(epoll_descriptor, events, EVENTS, -1);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int index = 0; index < ready; index++) {
            int descriptor = events[index].data.fd;
            if (descriptor == listener) {
                accept_connections(listener);
                continue;
            }
            struct connection *connection = &connections[descriptor];
            bool goes_on = true;
            if (connection->output_length > 0) goes_on = send_rest(descriptor, connection);
            if (goes_on && events[index].events & ~(uint32_t)EPOLLOUT) goes_on = serve(descriptor, connection);
            if (!goes_on) end_connection(descriptor);
        }
    }
}
