// A load generator that costs less than what it measures: one thread, one epoll set, requests formatted in advance, and
// answers that are framed by looking at three places once their shape is known. Prints one line of JSON.
//
//     load --port PORT --requests-from FILE [options]
//
// FILE holds request heads, with contents where they have any, separated by NUL; they are sent in turn. A run of `#` in
// one becomes a decimal number, one of --numbers from --first on, with leading zeros: many storage keys without many
// heads.
//
// How requests are sent:
//   (nothing)          closed loop: a connection sends again as soon as it has all answers
//   --rate R           open loop: R requests a second fall due, whatever the server does; latency counts from then
//   --reconnect        closed loop with a new connection for each request; the server is to close it
//   --connections N    how many at once (64)
//   --pipeline P       requests that a connection sends in one go (1)
//   --sequential       numbers in turn, not at random
//   --first N          all numbers are so much more (0)
//   --drop             open loop: what falls due while no connection is free is left out, not kept waiting
// How long:
//   --seconds S        of measurement (1), after --warm-up S (0.2) that does not count
//   --count N          instead: so many requests, all of which count
// What is looked at:
//   --cpu-of PID       whose CPU time is read at both ends of the measurement; can be repeated
//   --spin             closed loop: never sleep; then waking the generator up is no cost of the server's
//   --sleep            open loop: do sleep; then others can use the processor, but requests are sent a little late

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
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "clocks.h"
#include "latency.h"

enum {
    HEAD_LIMIT = 8192,
    INPUT_SIZE = 262144,
    EVENTS = 512,
    // Clients' addresses, 127.0.0.2 and up: one alone has too few ports for connections that are made all the time.
    SOURCES = 16,
    MOST_ERRORS = 1000000,
};
// How long answers that are still missing at the end are waited for.
static const uint64_t patience = 2 * second;
// How often the clock is looked at while nothing happens.
static const uint64_t tick = 1000000;

// --- Settings -------------------------------------------------------------------------------------------------------

static uint16_t port;
static uint64_t rate, count_limit, numbers, first_number;
static size_t connection_count = 64, pipeline = 1;
static bool reconnects, sequential, drops, spins, sleeps;
static double seconds = 1, warm_up = 0.2;

struct request {
    const char *bytes;
    size_t length, number, digits;  // where the number stands, and how long it is: 0 for none
};
static struct request *requests;
static size_t request_count, longest_request;

// --- State ----------------------------------------------------------------------------------------------------------

struct connection {
    int descriptor;
    bool is_open, must_close;
    uint32_t awaited;     // answers to what has been sent
    uint64_t since;       // when that was sent or due; for a batch, for all of it
    size_t skip;          // bytes of content that are still to come
    int status;           // of that answer
    const char *unsent;
    size_t unsent_length;
    char *output;         // where requests are put together, unless all are the same
    char *partial;        // the beginning of an answer's head
    size_t partial_length;
};
static struct connection *connections;
static int epoll_descriptor;

// Connections without a request, for the open loop: a ring, so that all are used in turn.
static size_t *idle, idle_first, idle_count;

// Room in front, for the beginning of a head that an earlier read has left.
static char input[HEAD_LIMIT + INPUT_SIZE];
// One batch, where all requests are the same.
static char *batch;
static size_t batch_length;

static uint64_t issued, answered, next_number, random_state = 88172645463325252;
static size_t next_request;
static bool is_ending;

// What has been counted since the measurement began.
static struct {
    uint64_t ok, not_modified, unavailable, other, errors, dropped, opened;
    struct latency latency;
} seen;
// Only answers to what was due in here have their latency counted.
static uint64_t measured_from, measured_to;

static void die(const char *what) {
    perror(what);
    exit(1);
}

// --- Requests -------------------------------------------------------------------------------------------------------

static uint64_t take_number(void) {
    if (sequential) return first_number + next_number++ % numbers;
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return first_number + random_state % numbers;
}

static size_t put_request(char *place) {
    const struct request *request = &requests[next_request];
    if (++next_request == request_count) next_request = 0;
    memcpy(place, request->bytes, request->length);
    if (request->digits > 0) {
        uint64_t number = take_number();
        for (size_t digit = request->digits; digit-- > 0; number /= 10) {
            place[request->number + digit] = (char)('0' + number % 10);
        }
    }
    return request->length;
}

static void read_requests(const char *path) {
    FILE *file = fopen(path, "r");
    if (file == NULL) die(path);
    size_t size = 0, capacity = 1 << 20;
    char *bytes = malloc(capacity);
    while (bytes != NULL) {
        size += fread(bytes + size, 1, capacity - size, file);
        if (size < capacity) break;
        bytes = realloc(bytes, capacity *= 2);
    }
    if (bytes == NULL || ferror(file)) die(path);
    fclose(file);
    bytes[size++] = 0;
    for (size_t start = 0; start < size;) {
        struct request request = {.bytes = bytes + start, .length = strlen(bytes + start)};
        start += request.length + 1;
        if (request.length == 0) continue;
        const char *mark = strchr(request.bytes, '#');
        if (mark != NULL) {
            request.number = (size_t)(mark - request.bytes);
            request.digits = strspn(mark, "#");
        }
        if (request_count % 1024 == 0) {
            requests = realloc(requests, (request_count + 1024) * sizeof *requests);
            if (requests == NULL) die("realloc");
        }
        requests[request_count++] = request;
        if (request.length > longest_request) longest_request = request.length;
    }
    if (request_count == 0) {
        fprintf(stderr, "load: no request in %s\n", path);
        exit(2);
    }
    if (request_count == 1 && requests[0].digits == 0) {
        batch_length = pipeline * requests[0].length;
        batch = malloc(batch_length);
        if (batch == NULL) die("malloc");
        for (size_t index = 0; index < pipeline; index++) put_request(batch + index * requests[0].length);
    }
}

// --- Connections ----------------------------------------------------------------------------------------------------

static void fail(struct connection *connection);

static void open_connection(struct connection *connection) {
    static unsigned source;
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor < 0) die("socket");
    int on = 1;
    if (setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) die("TCP_NODELAY");
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + source++ % SOURCES);
    // The port is chosen when the other end is known: the same one can serve towards several.
    if (setsockopt(descriptor, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on) != 0) die("bind without port");
    if (bind(descriptor, (struct sockaddr *)&address, sizeof address) != 0) die("bind");
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address) != 0 && errno != EINPROGRESS) die("connect");
    struct epoll_event event = {
        .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u64 = (uint64_t)(connection - connections)};
    if (epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, descriptor, &event) != 0) die("epoll_ctl");
    connection->descriptor = descriptor;
    connection->is_open = true;
    connection->must_close = false;
    seen.opened++;
}

static void close_connection(struct connection *connection) {
    if (close(connection->descriptor) != 0) die("close");
    connection->is_open = false;
    connection->awaited = 0;
    connection->skip = 0;
    connection->unsent_length = 0;
    connection->partial_length = 0;
}

static void send_rest(struct connection *connection) {
    ssize_t sent = send(connection->descriptor, connection->unsent, connection->unsent_length, MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno != EAGAIN) fail(connection);
        return;
    }
    connection->unsent += sent;
    connection->unsent_length -= (size_t)sent;
}

// Sends the next batch, whose latency counts from `since`.
static void issue(struct connection *connection, uint64_t since) {
    size_t number = pipeline;
    if (count_limit > 0) {
        if (issued >= count_limit) {
            is_ending = answered >= issued;
            return;
        }
        if (number > count_limit - issued) number = count_limit - issued;
    }
    if (!connection->is_open) open_connection(connection);
    connection->since = since;
    connection->awaited = (uint32_t)number;
    issued += number;
    if (batch != NULL) {
        connection->unsent = batch;
        connection->unsent_length = number * requests[0].length;
    } else {
        if (connection->output == NULL) connection->output = malloc(pipeline * longest_request);
        if (connection->output == NULL) die("malloc");
        size_t length = 0;
        for (size_t index = 0; index < number; index++) length += put_request(connection->output + length);
        connection->unsent = connection->output;
        connection->unsent_length = length;
    }
    send_rest(connection);
}

// The connection is free again, with an answer to all that it asked for or without.
static void become_idle(struct connection *connection) {
    if (rate == 0) {
        issue(connection, now());
        return;
    }
    idle[(idle_first + idle_count++) % connection_count] = (size_t)(connection - connections);
}

// The connection broke, or says what is no HTTP.
static void fail(struct connection *connection) {
    if (++seen.errors > MOST_ERRORS) {
        fprintf(stderr, "load: too many errors\n");
        exit(1);
    }
    // In the open loop, one that has nothing to do is among the idle already.
    bool was_busy = connection->awaited > 0 || connection->must_close;
    answered += connection->awaited;
    close_connection(connection);
    if (was_busy || rate == 0) become_idle(connection);
}

// --- Answers --------------------------------------------------------------------------------------------------------

// Where the last head that was parsed in full has what matters. A head that has the same bytes there is as long.
static struct {
    size_t head_length, content_length, length_place, length_digits;
    char start[12], digits[16];
    int status;
    bool must_close;
} shape;

static bool has_shape(const char *head, size_t length) {
    return length >= shape.head_length && shape.head_length > 0 && memcmp(head, shape.start, sizeof shape.start) == 0 &&
        memcmp(head + shape.length_place, shape.digits, shape.length_digits) == 0 &&
        memcmp(head + shape.head_length - 4, "\r\n\r\n", 4) == 0;
}

// Parses a head into `shape`. 1 for a head, 0 where its end is missing, -1 for what is none.
static int parse_head(const char *head, size_t length) {
    const char *end = memmem(head, length, "\r\n\r\n", 4);
    if (end == NULL) return length < HEAD_LIMIT ? 0 : -1;
    shape.head_length = 0;
    if (end - head < 12 || memcmp(head, "HTTP/1.", 7) != 0) return -1;
    memcpy(shape.start, head, sizeof shape.start);
    shape.status = atoi(head + 9);
    shape.must_close = false;
    bool has_length = shape.status == 304 || shape.status == 204;
    shape.content_length = shape.length_place = shape.length_digits = 0;
    const char *line = head;
    while ((line = memmem(line, (size_t)(end + 2 - line), "\r\n", 2)) != NULL && line < end) {
        line += 2;
        if (strncasecmp(line, "Content-Length: ", 16) == 0) {
            const char *digits = line + 16;
            shape.length_place = (size_t)(digits - head);
            shape.length_digits = strspn(digits, "0123456789") + 1;
            if (shape.length_digits > sizeof shape.digits) return -1;
            memcpy(shape.digits, digits, shape.length_digits);
            if (!has_length) shape.content_length = strtoull(digits, NULL, 10);
            has_length = true;
        } else if (strncasecmp(line, "Connection: close", 17) == 0) {
            shape.must_close = true;
        }
    }
    if (!has_length) return -1;
    shape.head_length = (size_t)(end - head) + 4;
    return 1;
}

static void count_answer(struct connection *connection, uint64_t time) {
    switch (connection->status) {
    case 200: seen.ok++; break;
    case 304: seen.not_modified++; break;
    case 503: seen.unavailable++; break;
    default: seen.other++; break;
    }
    answered++;
    connection->awaited--;
    bool counts = connection->status < 500 && connection->since >= measured_from && connection->since < measured_to;
    if (counts) latency_add(&seen.latency, time - connection->since);
}

// Takes what has been read. False where it is no answer to what was asked.
static bool take(struct connection *connection, const char *bytes, size_t length, uint64_t time) {
    while (length > 0) {
        if (connection->skip > 0) {
            size_t part = connection->skip < length ? connection->skip : length;
            connection->skip -= part;
            bytes += part;
            length -= part;
            if (connection->skip == 0) count_answer(connection, time);
            continue;
        }
        if (connection->awaited == 0) return false;
        if (!has_shape(bytes, length)) {
            int result = parse_head(bytes, length);
            if (result < 0) return false;
            if (result == 0) {
                if (connection->partial == NULL) connection->partial = malloc(HEAD_LIMIT);
                if (connection->partial == NULL) die("malloc");
                memcpy(connection->partial, bytes, length);
                connection->partial_length = length;
                return true;
            }
        }
        bytes += shape.head_length;
        length -= shape.head_length;
        connection->status = shape.status;
        connection->skip = shape.content_length;
        if (shape.must_close || reconnects) connection->must_close = true;
        if (connection->skip == 0) count_answer(connection, time);
    }
    return true;
}

static void read_answers(struct connection *connection) {
    while (connection->is_open) {
        size_t held = connection->partial_length;
        ssize_t received = recv(connection->descriptor, input + HEAD_LIMIT, INPUT_SIZE, 0);
        if (received < 0) {
            if (errno != EAGAIN) fail(connection);
            return;
        }
        if (received == 0) {
            // In order where the server said so, or where nothing was asked for.
            bool is_regular = connection->awaited == 0 && (connection->must_close || rate > 0);
            if (!is_regular) return fail(connection);
            bool was_busy = connection->must_close;
            close_connection(connection);
            if (was_busy) become_idle(connection);
            return;
        }
        if (held > 0) memcpy(input + HEAD_LIMIT - held, connection->partial, held);
        connection->partial_length = 0;
        bool was_busy = connection->awaited > 0;
        if (!take(connection, input + HEAD_LIMIT - held, held + (size_t)received, now())) return fail(connection);
        // One that the server closes is free once it has done so.
        if (was_busy && connection->awaited == 0 && !connection->must_close) become_idle(connection);
        if (received < INPUT_SIZE && !connection->must_close) return;
    }
}

// --- Running --------------------------------------------------------------------------------------------------------

// Handles what is ready; waits for it for so many nanoseconds at most.
static void turn(uint64_t timeout) {
    static struct epoll_event events[EVENTS];
    struct timespec limit = {.tv_sec = (time_t)(timeout / second), .tv_nsec = (long)(timeout % second)};
    int ready = epoll_pwait2(epoll_descriptor, events, EVENTS, &limit, NULL);
    if (ready < 0 && errno != EINTR) die("epoll_wait");
    for (int index = 0; index < ready; index++) {
        struct connection *connection = &connections[events[index].data.u64];
        if (connection->is_open && connection->unsent_length > 0) send_rest(connection);
        if (connection->is_open && events[index].events & ~(uint32_t)EPOLLOUT) read_answers(connection);
    }
}

// Until `end`; in the open loop, requests fall due from `*due` on.
static void run_until(uint64_t end, uint64_t *due) {
    if (rate == 0) {
        while (!is_ending && now() < end) turn(spins ? 0 : tick);
        return;
    }
    uint64_t interval = second / rate;
    while (true) {
        uint64_t time = now();
        if (time >= end) return;
        while (*due <= time) {
            if (idle_count == 0) {
                if (!drops) break;
                seen.dropped++;
            } else {
                struct connection *connection = &connections[idle[idle_first]];
                idle_first = (idle_first + 1) % connection_count;
                idle_count--;
                // Who drops does not measure how long requests wait here.
                issue(connection, drops ? time : *due);
            }
            *due += interval;
        }
        turn(sleeps && *due > time ? *due - time : 0);
    }
}

static uint64_t awaited_answers(void) {
    uint64_t sum = 0;
    for (size_t index = 0; index < connection_count; index++) sum += connections[index].awaited;
    return sum;
}

static void begin_measurement(void) {
    memset(&seen, 0, sizeof seen);
    measured_from = now();
}

static uint64_t number_of(const char *text) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno != 0 || *end != 0 || end == text) {
        fprintf(stderr, "load: not a number: %s\n", text);
        exit(2);
    }
    return value;
}

static void read_arguments(int count, char **arguments) {
    const char *file = NULL;
    for (int index = 1; index < count; index++) {
        const char *name = arguments[index];
        if (strcmp(name, "--reconnect") == 0) reconnects = true;
        else if (strcmp(name, "--sequential") == 0) sequential = true;
        else if (strcmp(name, "--drop") == 0) drops = true;
        else if (strcmp(name, "--spin") == 0) spins = true;
        else if (strcmp(name, "--sleep") == 0) sleeps = true;
        else if (index + 1 == count) goto wrong;
        else {
            const char *value = arguments[++index];
            if (strcmp(name, "--port") == 0) port = (uint16_t)number_of(value);
            else if (strcmp(name, "--requests-from") == 0) file = value;
            else if (strcmp(name, "--numbers") == 0) numbers = number_of(value);
            else if (strcmp(name, "--first") == 0) first_number = number_of(value);
            else if (strcmp(name, "--rate") == 0) rate = number_of(value);
            else if (strcmp(name, "--connections") == 0) connection_count = number_of(value);
            else if (strcmp(name, "--pipeline") == 0) pipeline = number_of(value);
            else if (strcmp(name, "--count") == 0) count_limit = number_of(value);
            else if (strcmp(name, "--seconds") == 0) seconds = strtod(value, NULL);
            else if (strcmp(name, "--warm-up") == 0) warm_up = strtod(value, NULL);
            else if (strcmp(name, "--cpu-of") == 0 && server_count < SERVERS) {
                if (clock_getcpuclockid((pid_t)number_of(value), &server_clocks[server_count++]) != 0) goto wrong;
            } else goto wrong;
        }
    }
    bool is_sound = port > 0 && file != NULL && connection_count > 0 && pipeline > 0 && seconds > 0;
    if (!is_sound || (rate > 0 && (count_limit > 0 || pipeline > 1)) || (reconnects && pipeline > 1)) goto wrong;
    read_requests(file);
    for (size_t index = 0; index < request_count; index++) {
        if (requests[index].digits > 0 && numbers == 0) goto wrong;
    }
    return;
wrong:
    fprintf(stderr, "load: arguments make no sense; they are described in load.c\n");
    exit(2);
}

int main(int count, char **arguments) {
    read_arguments(count, arguments);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) die("setrlimit");

    epoll_descriptor = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc(connection_count, sizeof *connections);
    idle = calloc(connection_count, sizeof *idle);
    if (epoll_descriptor < 0 || connections == NULL || idle == NULL) die("load");
    measured_to = UINT64_MAX;
    begin_measurement();
    uint64_t cpu = server_cpu(), own_cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t index = 0; index < connection_count; index++) {
        if (!reconnects) open_connection(&connections[index]);
        become_idle(&connections[index]);
    }

    uint64_t due = now(), end;
    if (count_limit > 0) {
        while (!is_ending && answered < count_limit) turn(spins ? 0 : tick);
        end = now();
    } else {
        run_until(now() + (uint64_t)(warm_up * 1e9), &due);
        begin_measurement();
        cpu = server_cpu();
        own_cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
        end = measured_from + (uint64_t)(seconds * 1e9);
        if (rate > 0) measured_to = end;
        run_until(end, &due);
        end = now();
    }
    cpu = server_cpu() - cpu;
    own_cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - own_cpu;
    uint64_t answers = seen.ok + seen.not_modified + seen.unavailable + seen.other;
    double wall = (double)(end - measured_from) / 1e9;

    // Who is late is late: in the open loop, the slowest answers are those that are missing now.
    uint64_t unanswered = 0;
    if (rate > 0) {
        uint64_t last = now() + patience;
        while (awaited_answers() > 0 && now() < last) turn(tick);
        unanswered = awaited_answers();
        uint64_t never_sent = due < measured_to ? (measured_to - due) / (second / rate) : 0;
        for (uint64_t index = 0; index < unanswered; index++) latency_add(&seen.latency, patience);
        for (uint64_t index = 0; index < never_sent && !drops; index++) latency_add(&seen.latency, patience);
        unanswered += never_sent;
    }

    printf(
        "{\"requests\": %" PRIu64 ", \"ok\": %" PRIu64 ", \"not_modified\": %" PRIu64 ", \"unavailable\": %" PRIu64
        ", \"other\": %" PRIu64 ", \"errors\": %" PRIu64 ", \"dropped\": %" PRIu64 ", \"unanswered\": %" PRIu64
        ", \"opened\": %" PRIu64 ", \"seconds\": %.6f, \"per_second\": %.1f, \"server_cpu_us\": %.4f"
        ", \"server_busy\": %.4f, \"generator_busy\": %.4f, \"p50_us\": %.2f, \"p99_us\": %.2f, \"p999_us\": %.2f"
        ", \"max_us\": %.2f}\n",
        answers, seen.ok, seen.not_modified, seen.unavailable, seen.other, seen.errors, seen.dropped, unanswered,
        seen.opened, wall, (double)answers / wall, answers > 0 ? (double)cpu / 1e3 / (double)answers : 0,
        (double)cpu / 1e9 / wall, (double)own_cpu / 1e9 / wall, latency_at(&seen.latency, 0.5),
        latency_at(&seen.latency, 0.99), latency_at(&seen.latency, 0.999), latency_at(&seen.latency, 1));
    return 0;
}
