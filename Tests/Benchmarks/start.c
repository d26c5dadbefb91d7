// How long a server takes from being started to its first answer: starts a program, asks again and again, and prints
// the milliseconds until a whole answer with status 200 was there, and how many of CPU time the program has taken until
// then. Then it ends the program with SIGTERM and waits.
//
//     start PORT REQUEST-FILE PROGRAM [ARGUMENT...]

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { REQUEST_LIMIT = 8192, ANSWER_LIMIT = 65536, ASK_EVERY_US = 50, PATIENCE_MS = 30000 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double milliseconds(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time) != 0) die("clock_gettime");
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

// Asks once. False if no process listens, or the answer is not 200 yet.
static bool ask(uint16_t port, const char *request, size_t length) {
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) die("socket");
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    bool is_well = false;
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address) == 0 &&
        send(descriptor, request, length, MSG_NOSIGNAL) == (ssize_t)length) {
        char answer[ANSWER_LIMIT];
        // The answers compared here are sent in one piece.
        ssize_t received = recv(descriptor, answer, sizeof answer, 0);
        is_well = received > 12 && memcmp(answer, "HTTP/1.1 200", 12) == 0;
    }
    close(descriptor);
    return is_well;
}

int main(int count, char **arguments) {
    if (count < 4) {
        fprintf(stderr, "usage: start PORT REQUEST-FILE PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    uint16_t port = (uint16_t)atoi(arguments[1]);
    char request[REQUEST_LIMIT];
    FILE *file = fopen(arguments[2], "r");
    if (file == NULL) die(arguments[2]);
    size_t length = fread(request, 1, sizeof request, file);
    fclose(file);

    pid_t process;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    double began = milliseconds(CLOCK_MONOTONIC);
    int failure = posix_spawnp(&process, arguments[3], &actions, NULL, arguments + 3, environ);
    if (failure != 0) {
        errno = failure;
        die(arguments[3]);
    }
    bool is_well = false;
    while (!(is_well = ask(port, request, length)) && milliseconds(CLOCK_MONOTONIC) - began < PATIENCE_MS) {
        if (waitpid(process, NULL, WNOHANG) == process) {
            fprintf(stderr, "start: %s has ended\n", arguments[3]);
            return 1;
        }
        usleep(ASK_EVERY_US);
    }
    double took = milliseconds(CLOCK_MONOTONIC) - began;
    clockid_t clock;
    double cpu = clock_getcpuclockid(process, &clock) == 0 ? milliseconds(clock) : 0;
    kill(process, SIGTERM);
    waitpid(process, NULL, 0);
    if (!is_well) {
        fprintf(stderr, "start: no answer\n");
        return 1;
    }
    printf("%.3f %.3f\n", took, cpu);
    return 0;
}
