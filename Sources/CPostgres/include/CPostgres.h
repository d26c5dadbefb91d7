// libpq for Swift. It is not linked but loaded, and only once a database is asked for: with it come Kerberos, LDAP,
// SASL and GnuTLS, which a process that keeps its records in files would map, relocate and initialize for nothing.
#ifndef TOKEN_BROKER_CPOSTGRES_H
#define TOKEN_BROKER_CPOSTGRES_H

#if __has_include(<libpq-fe.h>)
#include <libpq-fe.h>
#elif __has_include(<postgresql/libpq-fe.h>)
// Debian's place.
#include <postgresql/libpq-fe.h>
#else
#error "libpq-fe.h is missing: install libpq-dev"
#endif

/// Loads libpq; at the first call only, which blocks for the reading of files. Any thread may call. Returns null, or in
/// one line why libpq cannot be used; the text stays. libpq's functions may be called after it has returned null; before,
/// they load for themselves, and end the process where they cannot.
const char *cpostgres_load(void);

#endif
