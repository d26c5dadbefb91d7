// Connections that are merely there while others are measured: idle ones, listeners, slow and silent ones.
//
//     crowd --port PORT --connections N --behaviour NAME [--request-from FILE] [--tick MILLISECONDS]
//
//   idle      sends the request once and takes whatever comes back: idle connections, or listeners of events
//   drip      sends the request a byte a tick, and a filler without end instead of the head's end
//   greedy    sends the request again and again, has a small receive buffer, and takes a byte a tick
//   silent    connects and says nothing
//
// Prints "ready" when every connection stands (and, where it sent the request once, has been answered), or when five
// seconds have passed. Ends when its standard input ends, and prints one line of JSON then. A connection of `drip` or
// `greedy` that the server ends is made again.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
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

enum { REQUEST_LIMIT = 8192, EVENTS = 512, SOURCES = 16, SMALL_BUFFER = 4096, READY_LIMIT = 5, TURNS = 64, PORTION = 64 };

static enum { IDLE, DRIP, GREEDY, SILENT } behaviour;
static uint16_t port;
static size_t count;
static int tick = 100;
static char request[REQUEST_LIMIT];
static size_t request_length;

struct connection {
    int descriptor;  // -1 for none
    size_t sent;
    bool is_answered;
};
static struct connection *connections;
static int epoll_descriptor;
static uint64_t attempts, refused, answered, unavailable, ended, received_bytes;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void open_connection(struct connection *connection) {
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor < 0) die("socket");
    int on = 1, small = SMALL_BUFFER;
    if (behaviour == GREEDY) {
        // What it asks for is to wait with the server, and not in buffers of its own.
        if (setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) != 0) die("SO_RCVBUF");
        if (setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &small, sizeof small) != 0) die("SO_SNDBUF");
    }
    if (setsockopt(descriptor, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on) != 0) die("bind without port");
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + (uint32_t)(attempts++ % SOURCES));
    if (bind(descriptor, (struct sockaddr *)&address, sizeof address) != 0) die("bind");
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address) != 0 && errno != EINPROGRESS) {
        refused++;
        close(descriptor);
        connection->descriptor = -1;
        return;
    }
    *connection = (struct connection){.descriptor = descriptor};
    struct epoll_event event = {
        .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u64 = (uint64_t)(connection - connections)};
    if (epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, descriptor, &event) != 0) die("epoll_ctl");
}

static void end_connection(struct connection *connection) {
    close(connection->descriptor);
    connection->descriptor = -1;
    ended++;
}

// One byte of the request without the head's end, then of a field that never ends.
static void drip(struct connection *connection) {
    size_t beginning = request_length - 2;
    char byte = 'x';
    if (connection->sent < beginning) byte = request[connection->sent];
    else if (connection->sent < beginning + 3) byte = "X: "[connection->sent - beginning];
    ssize_t sent = send(connection->descriptor, &byte, 1, MSG_NOSIGNAL);
    if (sent > 0) connection->sent++;
    else if (errno != EAGAIN) end_connection(connection);
}

// Sends the request from where it stands: once, or again and again for as long as the socket takes it.
static void send_requests(struct connection *connection) {
    for (int turn = 0; turn < TURNS && (behaviour == GREEDY || connection->sent < request_length); turn++) {
        size_t from = connection->sent % request_length;
        ssize_t sent = send(connection->descriptor, request + from, request_length - from, MSG_NOSIGNAL);
        if (sent < 0) return;
        connection->sent += (size_t)sent;
    }
}

static void read_answers(struct connection *connection, size_t limit) {
    static char input[65536];
    while (connection->descriptor >= 0) {
        ssize_t received = recv(connection->descriptor, input, limit, 0);
        if (received < 0 && errno == EAGAIN) return;
        if (received <= 0) return end_connection(connection);
        received_bytes += (uint64_t)received;
        if (!connection->is_answered) {
            connection->is_answered = true;
            answered++;
            if (received >= 12 && memcmp(input + 9, "503", 3) == 0) unavailable++;
        }
        if ((size_t)received < sizeof input) return;
    }
}

static void handle(const struct epoll_event *event) {
    struct connection *connection = &connections[event->data.u64];
    if (connection->descriptor < 0) return;
    if (behaviour == IDLE || behaviour == GREEDY) send_requests(connection);
    // A greedy one reads at its own pace; the others take everything.
    bool is_over = event->events & (EPOLLHUP | EPOLLERR);
    if (behaviour == GREEDY && is_over) return end_connection(connection);
    if (behaviour != GREEDY && event->events & ~(uint32_t)EPOLLOUT) read_answers(connection, 65536);
}

static void act_on_tick(size_t opened) {
    for (size_t index = 0; index < opened; index++) {
        struct connection *connection = &connections[index];
        if (connection->descriptor < 0) {
            if (behaviour == DRIP || behaviour == GREEDY) open_connection(connection);
        } else if (behaviour == DRIP) {
            drip(connection);
        } else if (behaviour == GREEDY) {
            send_requests(connection);
            if (connection->descriptor >= 0) read_answers(connection, 1);
        }
    }
}

static int64_t milliseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void read_arguments(int argument_count, char **arguments) {
    static const char *const names[] = {"idle", "drip", "greedy", "silent"};
    int chosen = -1;
    for (int index = 1; index + 1 < argument_count; index += 2) {
        const char *name = arguments[index], *value = arguments[index + 1];
        if (strcmp(name, "--port") == 0) port = (uint16_t)atoi(value);
        else if (strcmp(name, "--connections") == 0) count = strtoul(value, NULL, 10);
        else if (strcmp(name, "--tick") == 0) tick = atoi(value);
        else if (strcmp(name, "--behaviour") == 0) {
            for (int number = 0; number < 4; number++) {
                if (strcmp(value, names[number]) == 0) chosen = number;
            }
        } else if (strcmp(name, "--request-from") == 0) {
            FILE *file = fopen(value, "r");
            if (file == NULL) die(value);
            request_length = fread(request, 1, sizeof request, file);
            fclose(file);
        }
    }
    if (port == 0 || count == 0 || chosen < 0 || tick <= 0 || (chosen != SILENT && request_length < 4)) {
        fprintf(stderr, "crowd: arguments make no sense; they are described in crowd.c\n");
        exit(2);
    }
    behaviour = (typeof(behaviour))chosen;
}

int main(int argument_count, char **arguments) {
    read_arguments(argument_count, arguments);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) die("setrlimit");
    connections = calloc(count, sizeof *connections);
    epoll_descriptor = epoll_create1(EPOLL_CLOEXEC);
    if (connections == NULL || epoll_descriptor < 0) die("crowd");
    const uint64_t input_mark = UINT64_MAX;
    struct epoll_event input_event = {.events = EPOLLIN, .data.u64 = input_mark};
    if (epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, STDIN_FILENO, &input_event) != 0) die("epoll_ctl");

    static struct epoll_event events[EVENTS];
    size_t opened = 0;
    bool is_ready = false, is_over = false;
    int64_t began = milliseconds(), next_tick = began + tick;
    while (!is_over) {
        // In portions: what the first ones are answered is read while the last ones are made. Who waits for an answer
        // to each does not ask for all at once.
        for (size_t portion = 0; portion < PORTION && opened < count; portion++) {
            if (behaviour == IDLE && opened - (answered + refused + ended) >= PORTION) break;
            open_connection(&connections[opened++]);
        }
        int64_t now = milliseconds();
        bool is_waiting = opened == count || behaviour == IDLE;
        int wait = is_waiting && next_tick > now ? (int)(next_tick - now) : 0;
        int ready = epoll_wait(epoll_descriptor, events, EVENTS, wait);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int index = 0; index < ready; index++) {
            if (events[index].data.u64 != input_mark) {
                handle(&events[index]);
                continue;
            }
            char byte;
            is_over = read(STDIN_FILENO, &byte, 1) <= 0;
        }
        now = milliseconds();
        if (now >= next_tick) {
            act_on_tick(opened);
            next_tick = now + tick;
        }
        bool is_complete = opened == count && (behaviour != IDLE || answered + refused + ended >= count);
        if (!is_ready && (is_complete || now > began + READY_LIMIT * 1000)) {
            is_ready = true;
            printf("ready\n");
            fflush(stdout);
        }
    }
    size_t open = 0;
    for (size_t index = 0; index < count; index++) open += connections[index].descriptor >= 0;
    printf(
        "{\"attempts\": %" PRIu64 ", \"refused\": %" PRIu64 ", \"answered\": %" PRIu64 ", \"unavailable\": %" PRIu64
        ", \"ended\": %" PRIu64 ", \"open\": %zu, \"received_bytes\": %" PRIu64 "}\n",
        attempts, refused, answered, unavailable, ended, open, received_bytes);
    return 0;
}
