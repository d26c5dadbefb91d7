// OpenSSL 3 for Swift. Its function-like macros do not import, so each one that is used has an inline twin here.
#ifndef TOKEN_BROKER_COPENSSL_H
#define TOKEN_BROKER_COPENSSL_H

#include <openssl/sha.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

static inline int copenssl_ctx_set_min_tls12(SSL_CTX *context) {
    return (int)SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
}

static inline int copenssl_set_server_name(SSL *ssl, const char *name) {
    return (int)SSL_set_tlsext_host_name(ssl, name);
}

/// No renegotiation in either direction, and no compression (RFC 9325 3.3, 3.5).
static inline void copenssl_ctx_forbid_renegotiation_and_compression(SSL_CTX *context) {
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
}

/// The verified chain as an untyped stack, which OPENSSL_sk_num and OPENSSL_sk_value take.
static inline const OPENSSL_STACK *copenssl_verified_chain(const SSL *ssl) {
    return (const OPENSSL_STACK *)SSL_get0_verified_chain(ssl);
}

static inline void copenssl_ctx_set_mode(SSL_CTX *context, long mode) { SSL_CTX_set_mode(context, mode); }

/// Has a MAC be HMAC with SHA-256. In C, because a parameter keeps the pointer to its own name, and Swift lends a text to C
/// for one call only.
static inline int copenssl_set_digest_sha256(EVP_MAC_CTX *context) {
    char digest[] = "SHA256";
    OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0), OSSL_PARAM_construct_end()};
    return EVP_MAC_CTX_set_params(context, parameters);
}

// SHA-256 without an allocation. EVP, which OpenSSL prefers, makes its state anew for every digest.
static inline int copenssl_sha256(const void *bytes, size_t count, unsigned char *digest) {
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
    SHA256_CTX context;
    return SHA256_Init(&context) == 1 && SHA256_Update(&context, bytes, count) == 1 &&
           SHA256_Final(digest, &context) == 1;
#pragma clang diagnostic pop
}

#endif
