// The fuzzer of LLVM, where it is linked, and what a program that reads hostile input needs of C. Part of no other program.
#ifndef TOKEN_BROKER_CFUZZING_H
#define TOKEN_BROKER_CFUZZING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// Whether LLVM's fuzzer is in the program.
bool cfuzzing_has_fuzzer(void);
/// Gives the fuzzer's inputs to `target` until the fuzzer ends, by the arguments of LLVM's libFuzzer (the first one is the name
/// of the program). Returns the status of the program. To be called only where the fuzzer is in the program.
int cfuzzing_run(int count, char **arguments, int (*target)(const uint8_t *bytes, size_t count));
/// From now on a signal that ends the program for a fault writes the input that was given last to the file at `path`, and
/// says so on standard output. `path` must stay as it is.
void cfuzzing_keep_failure(const char *path);
/// The input that is read from now on, until the next call. It must stay as it is that long.
void cfuzzing_begin(const uint8_t *bytes, size_t count);
/// Nanoseconds of the processor that all threads of this process have used.
int64_t cfuzzing_processor_time(void);

#endif
