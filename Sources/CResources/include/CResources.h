// Files of the package's top folder, carried inside the binary.
#ifndef TOKEN_BROKER_CRESOURCES_H
#define TOKEN_BROKER_CRESOURCES_H

#include <stddef.h>

/// The bytes of openapi.yaml.
const unsigned char *cresources_openapi(void);
size_t cresources_openapi_size(void);

#endif
