// Takes a share of a processor from whatever else runs on it, in slices so short that the rest is slow, but not
// interrupted: a server beside it can be given more than it can take by a generator that is no faster than the server.
//
//     brake PERCENT
//
// Prints "ready" and runs until its standard input ends. Wants the right to real-time scheduling; without it, exits
// with 1.

#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const int64_t second = 1000000000, period = 200000;
// How many periods pass between two looks at the standard input.
enum { PATIENCE = 250 };

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * second + time.tv_nsec;
}

int main(int count, char **arguments) {
    int percent = count == 2 ? atoi(arguments[1]) : 0;
    if (percent < 1 || percent > 90) {
        fprintf(stderr, "usage: brake PERCENT (1 to 90)\n");
        return 2;
    }
    struct sched_param priority = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &priority) != 0) {
        perror("brake: sched_setscheduler");
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    int64_t next = now();
    for (int turns = 1;; turns++) {
        int64_t busy_until = next + period * percent / 100;
        while (now() < busy_until) {}
        next += period;
        // Held up for longer than that: what is lost is not made up for.
        if (next < now()) next = now();
        struct timespec wake = {.tv_sec = next / second, .tv_nsec = next % second};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
        if (turns % PATIENCE == 0) {
            struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
            if (poll(&input, 1, 0) != 0) return 0;
        }
    }
}
