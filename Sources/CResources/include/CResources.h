// Files of the package, carried inside the binary.
#ifndef TOKEN_BROKER_CRESOURCES_H
#define TOKEN_BROKER_CRESOURCES_H

#include <stddef.h>

/// The bytes of openapi.yaml.
const unsigned char *cresources_openapi(void);
size_t cresources_openapi_size(void);

/// The bytes of api.html, the page that shows openapi.yaml.
const unsigned char *cresources_api_page(void);
size_t cresources_api_page_size(void);

/// The commit that Deploy/build has built the program from; "unknown" in other builds.
const char *cresources_commit(void);

/// The bytes of the profile of one provider, and its name.
struct cresources_profile {
  const char *name;
  const unsigned char *bytes;
  size_t size;
};

/// All profiles, ordered by name.
const struct cresources_profile *cresources_profiles(void);
size_t cresources_profile_count(void);

#endif
