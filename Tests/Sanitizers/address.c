// Tells AddressSanitizer to look for no leaks, in the tests and in each program that they start with an environment of its own:
// what a process still has at its end is no leak here, because caches live for as long as it does.

// AddressSanitizer calls it before main.
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }
