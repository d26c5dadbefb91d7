#include "CResources.h"

static const unsigned char openapi[] = {
#embed "../../openapi.yaml"
};

const unsigned char *cresources_openapi(void) { return openapi; }

size_t cresources_openapi_size(void) { return sizeof openapi; }
