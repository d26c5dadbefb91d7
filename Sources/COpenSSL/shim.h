// OpenSSL 3 for Swift. Its function-like macros do not import, so each one that is used has an inline twin here.
#ifndef TOKEN_BROKER_COPENSSL_H
#define TOKEN_BROKER_COPENSSL_H

#include <openssl/sha.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/rsa.h>
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

/// Of the ciphers that both sides permit, the server's order decides, and a client that prefers ChaCha20 gets it.
static inline void copenssl_ctx_prefer_own_ciphers(SSL_CTX *context) {
    SSL_CTX_set_options(context, SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
}

/// The most octets of plaintext that one record holds, 512 to 16384.
static inline void copenssl_ctx_set_longest_record(SSL_CTX *context, long count) {
    SSL_CTX_set_max_send_fragment(context, count);
}

/// Sessions are in the tickets that clients keep, and not in the server's memory.
static inline void copenssl_ctx_keep_no_sessions(SSL_CTX *context) {
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
}

/// Has `target` use the certificate, the chain and the key of `source`, which is not changed. Both refer to the same objects.
static inline int copenssl_ctx_copy_certificate(SSL_CTX *target, SSL_CTX *source) {
    STACK_OF(X509) *chain = NULL;
    return SSL_CTX_get0_chain_certs(source, &chain) == 1 &&
           SSL_CTX_use_cert_and_key(
               target, SSL_CTX_get0_certificate(source), SSL_CTX_get0_privatekey(source), chain, 1) == 1;
}

/// The store by which the certificates of clients are verified, and nothing else is: not the server's own chain.
static inline int copenssl_ctx_set_verify_store(SSL_CTX *context, X509_STORE *store) {
    return (int)SSL_CTX_set1_verify_cert_store(context, store);
}

/// The longest Certificate message of a peer, in octets.
static inline void copenssl_ctx_set_longest_chain(SSL_CTX *context, long count) {
    SSL_CTX_set_max_cert_list(context, count);
}

/// The alternative names of a certificate as an untyped stack, which copenssl_free_names frees; NULL where it has none.
static inline OPENSSL_STACK *copenssl_alternative_names(const X509 *certificate) {
    return (OPENSSL_STACK *)X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
}

static inline void copenssl_free_names(OPENSSL_STACK *names) { GENERAL_NAMES_free((GENERAL_NAMES *)names); }

/// The type of a name of the stack: GEN_DNS, GEN_URI, or another one, whose octets are not given.
static inline int copenssl_name(
    const OPENSSL_STACK *names, int index, const unsigned char **bytes, int *count) {
    int type = -1;
    const void *value = GENERAL_NAME_get0_value((const GENERAL_NAME *)OPENSSL_sk_value(names, index), &type);
    *bytes = NULL;
    *count = 0;
    if (type == GEN_DNS || type == GEN_URI) {
        *bytes = ASN1_STRING_get0_data((const ASN1_STRING *)value);
        *count = ASN1_STRING_length((const ASN1_STRING *)value);
    }
    return type;
}

static inline int copenssl_select_http11(
    SSL *ssl, const unsigned char **chosen, unsigned char *chosen_count, const unsigned char *offered,
    unsigned int offered_count, void *unused) {
    static const unsigned char name[] = "\x08http/1.1";
    (void)ssl;
    (void)unused;
    int found = SSL_select_next_proto(
        (unsigned char **)chosen, chosen_count, name, sizeof name - 1, offered, offered_count);
    // RFC 7301 3.2: no_application_protocol, where the client offers only others.
    return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

/// Of the protocols that a client offers, the server chooses HTTP/1.1.
static inline void copenssl_ctx_select_http11(SSL_CTX *context) {
    SSL_CTX_set_alpn_select_cb(context, copenssl_select_http11, NULL);
}

/// Adds an extension to a certificate. The value is in the notation of OpenSSL's configuration.
static inline int copenssl_add_extension(X509 *certificate, X509 *issuer, int number, const char *value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, number, value);
    if (extension == NULL) return 0;
    // The certificate takes a copy.
    int is_added = X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
    return is_added;
}

/// When a certificate expires, in seconds since 1970; 0 where that cannot be told.
static inline long long copenssl_expiry_seconds(const X509 *certificate) {
    ASN1_TIME *start = ASN1_TIME_set(NULL, 0);
    int days = 0, seconds = 0;
    int is_known = certificate != NULL && start != NULL &&
                   ASN1_TIME_diff(&days, &seconds, start, X509_get0_notAfter(certificate)) == 1;
    ASN1_TIME_free(start);
    return is_known ? days * 86400LL + seconds : 0;
}

static inline void copenssl_bio_clear_retry(BIO *bio) { BIO_clear_retry_flags(bio); }

static inline void copenssl_bio_retry_read(BIO *bio) { BIO_set_retry_read(bio); }

static inline void copenssl_ctx_set_mode(SSL_CTX *context, long mode) { SSL_CTX_set_mode(context, mode); }

/// HKDF with SHA-256. In C, because each OSSL_PARAM keeps the pointer to its name, and Swift lends a string to C for the
/// length of one call only.
static inline int copenssl_hkdf_sha256(
    EVP_KDF *algorithm, const void *key, size_t key_count, const void *salt, size_t salt_count, const void *info,
    size_t info_count, unsigned char *output, size_t output_count) {
    EVP_KDF_CTX *context = EVP_KDF_CTX_new(algorithm);
    if (context == NULL) return 0;
    char digest[] = "SHA256";
    OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)key, key_count),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)salt, salt_count),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)info, info_count),
        OSSL_PARAM_construct_end()};
    int is_done = EVP_KDF_derive(context, output, output_count, parameters);
    EVP_KDF_CTX_free(context);
    return is_done;
}

// New keys, or NULL. The functions behind these macros take their arguments by `...`.
static inline EVP_PKEY *copenssl_generate_elliptic(const char *curve) { return EVP_EC_gen(curve); }

static inline EVP_PKEY *copenssl_generate_rsa(size_t bits) {
    return EVP_PKEY_Q_keygen(NULL, NULL, "RSA", bits);
}

static inline EVP_PKEY *copenssl_generate_ed25519(void) { return EVP_PKEY_Q_keygen(NULL, NULL, "ED25519"); }

// SHA-256 without an allocation. EVP, the interface that OpenSSL prefers, allocates a context for every digest.
static inline int copenssl_sha256(const void *bytes, size_t count, unsigned char *digest) {
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
    SHA256_CTX context;
    return SHA256_Init(&context) == 1 && SHA256_Update(&context, bytes, count) == 1 &&
           SHA256_Final(digest, &context) == 1;
#pragma clang diagnostic pop
}

#endif
