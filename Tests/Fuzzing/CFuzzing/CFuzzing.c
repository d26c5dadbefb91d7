#include "CFuzzing.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Of libclang_rt.fuzzer_no_main, which Tests/Fuzzing/run links.
int LLVMFuzzerRunDriver(int *count, char ***arguments, int (*target)(const uint8_t *, size_t)) __attribute__((weak));

static const char *failure_path;
static const uint8_t *input;
static size_t input_count;

bool cfuzzing_has_fuzzer(void) { return LLVMFuzzerRunDriver != NULL; }

int cfuzzing_run(int count, char **arguments, int (*target)(const uint8_t *, size_t)) {
    if (LLVMFuzzerRunDriver == NULL) abort();
    return LLVMFuzzerRunDriver(&count, &arguments, target);
}

static void write_all(int file, const void *bytes, size_t count) {
    const char *next = bytes;
    while (count > 0) {
        ssize_t written = write(file, next, count);
        if (written <= 0) return;
        next += written;
        count -= (size_t)written;
    }
}

static void keep(int number) {
    int file = open(failure_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file >= 0) {
        write_all(file, input, input_count);
        close(file);
        write_all(STDOUT_FILENO, "The input is in ", 16);
        write_all(STDOUT_FILENO, failure_path, strlen(failure_path));
        write_all(STDOUT_FILENO, "\n", 1);
    }
    // The default action ends the program: SA_RESETHAND has set it.
    raise(number);
}

void cfuzzing_keep_failure(const char *path) {
    failure_path = path;
    struct sigaction action = {.sa_handler = keep, .sa_flags = SA_RESETHAND | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    static const int numbers[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};
    for (size_t index = 0; index < sizeof numbers / sizeof *numbers; index++) sigaction(numbers[index], &action, NULL);
}

void cfuzzing_begin(const uint8_t *bytes, size_t count) {
    input = bytes;
    input_count = count;
}

int64_t cfuzzing_processor_time(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}
