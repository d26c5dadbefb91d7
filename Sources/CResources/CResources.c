#include "CResources.h"

// Clang takes #embed in every mode and remarks that C23 brought it.
#pragma clang diagnostic ignored "-Wc23-extensions"
static const unsigned char openapi[] = {
#embed "../../openapi.yaml"
};

const unsigned char *cresources_openapi(void) { return openapi; }

size_t cresources_openapi_size(void) { return sizeof openapi; }

// Tests/Support/openapi/page writes this file from openapi.yaml.
static const unsigned char api_page[] = {
#embed "api.html"
};

const unsigned char *cresources_api_page(void) { return api_page; }

size_t cresources_api_page_size(void) { return sizeof api_page; }

// Deploy/build writes this file, which defines TOKEN_BROKER_COMMIT, into a folder that other builds do not look into.
#if __has_include(<token-broker-commit.h>)
#include <token-broker-commit.h>
#else
#define TOKEN_BROKER_COMMIT "unknown"
#endif

const char *cresources_commit(void) { return TOKEN_BROKER_COMMIT; }

// Tests/Profiles/pages writes this file: the bytes of each profile, and `profiles`, the table of them.
#include "profiles.h"

const struct cresources_profile *cresources_profiles(void) { return profiles; }

size_t cresources_profile_count(void) { return sizeof profiles / sizeof *profiles; }
