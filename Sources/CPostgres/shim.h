#ifndef TOKEN_BROKER_CPOSTGRES_H
#define TOKEN_BROKER_CPOSTGRES_H
#include <libpq-fe.h>
#endif
