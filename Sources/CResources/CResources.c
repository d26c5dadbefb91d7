#include "CResources.h"

// Clang takes #embed in every mode and remarks that C23 brought it.
#pragma clang diagnostic ignored "-Wc23-extensions"
static const unsigned char openapi[] = {
#embed "../../openapi.yaml"
};

const unsigned char *cresources_openapi(void) { return openapi; }

size_t cresources_openapi_size(void) { return sizeof openapi; }

// Tests/Profiles/pages writes this file: the bytes of each profile, and `profiles`, the table of them.
#include "profiles.h"

const struct cresources_profile *cresources_profiles(void) { return profiles; }

size_t cresources_profile_count(void) { return sizeof profiles / sizeof *profiles; }
