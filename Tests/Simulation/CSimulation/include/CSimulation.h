// What the simulation takes over from Swift's runtime and from the system. Part of no other program.
#ifndef TOKEN_BROKER_CSIMULATION_H
#define TOKEN_BROKER_CSIMULATION_H

#include <stdint.h>

/// Has the runtime give every job that it would run on its threads to `enqueue` instead, from now on. To be called
/// before the first task is made.
void csimulation_take_jobs(void (*enqueue)(void *job));
/// Runs a job that `enqueue` was given, until it suspends or ends. Each job once.
void csimulation_run(void *job);
/// Begins the sequence again that stands in place of the kernel's random numbers.
void csimulation_seed(uint64_t seed);
/// Starts the program anew in its own place where Swift's dictionaries have an order by addresses. Does not return then.
void csimulation_order_dictionaries(char *const arguments[]);

/// fork(2), which Swift leaves out: the program has one thread. What was printed is written before.
int csimulation_fork(void);

#endif
