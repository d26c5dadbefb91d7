// Overwrites every block of memory when it is freed, in the program that this target is linked into. The replacements
// of free and realloc take effect by being linked; there is nothing to call.
#ifndef TOKEN_BROKER_CWIPE_H
#define TOKEN_BROKER_CWIPE_H
#endif
