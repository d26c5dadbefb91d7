package tokenbroker;

import java.io.*;
import java.net.*;
import java.net.http.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.Consumer;

/** A client of token-broker for Java 17 or later, with the standard library only. See README.md beside it.
 *  Threads may share one. A call takes {@code timeout} at most. For {@code maxAge} a token is given from memory before the
 *  broker is asked whether it is still current. */
public final class TokenBroker {
    /** Why there is no token. {@code status} is 0 where no answer came; {@code code} and the message are the broker's. */
    public static final class BrokerException extends IOException {
        private static final long serialVersionUID = 1;
        private static final Set<String> LOG_IN = Set.of("level_not_available", "missing_token_container",
            "invalid_token_request", "unknown_account", "unauthenticated");
        public final int status;
        public final String code, errorCode, requestID, reconnectURI; // errorCode: what the provider said
        public final long retryAfter; // seconds; -1: none

        BrokerException(int status, String retryAfter, String requestID, Map<String, Object> problem, String detail) {
            super(problem.get("detail") instanceof String text ? text : detail);
            this.status = status;
            code = problem.get("code") instanceof String text ? text : status == 0 ? "network_error" : "";
            errorCode = (String) problem.get("error_code");
            this.retryAfter = retryAfter.matches("\\d{1,9}") ? Long.parseLong(retryAfter) : -1;
            this.requestID = requestID;
            reconnectURI = problem.get("session") instanceof Map<?, ?> session ? (String) session.get("reconnect_uri") : null;
        }

        /** Only a login of the user helps. */
        public boolean mustLogIn() { return LOG_IN.contains(code); }

        boolean isPassing() { return status == 0 || status == 429 || status == 503 || status >= 500 && code.isEmpty(); }
    }

    /** A token and what belongs to it. {@code body} is the whole answer of {@code GET /credentials}. */
    public record Credentials(String etag, Map<String, Object> body, Clocks asked, Clocks checked) {
        public String token() { return (String) body.get("token"); }

        /** How long the token is valid, counted from the moment before it was asked for. */
        public double secondsLeft() {
            return body.get("expires_in") instanceof Double lifetime ? lifetime - asked.age() : Double.POSITIVE_INFINITY;
        }
    }

    /** The one clock may stand still while the machine sleeps, and the other may be set back. */
    record Clocks(long steady, long wall) {
        static Clocks now() { return new Clocks(System.nanoTime(), System.currentTimeMillis()); }

        double age() { return Math.max((System.nanoTime() - steady) / 1e9, (System.currentTimeMillis() - wall) / 1e3); }
    }

    public record Event(String id, String name, Map<String, Object> data) {}

    private record Key(String tenant, String storageKey, String level) {}

    /** The most tokens in memory. */
    private static final int CAPACITY = 10_000;
    private final String base, apiKey;
    private final double timeout, maxAge;
    private final Map<Key, Credentials> memory = new ConcurrentHashMap<>();
    // No redirect is followed: the key is for the broker only.
    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
        .followRedirects(HttpClient.Redirect.NEVER).connectTimeout(Duration.ofSeconds(10)).build();

    public TokenBroker(String base, String apiKey) { this(base, apiKey, Duration.ofSeconds(30), Duration.ofSeconds(30)); }

    public TokenBroker(String base, String apiKey, Duration timeout, Duration maxAge) {
        this.base = base.replaceAll("/+$", "");
        this.apiKey = apiKey;
        this.timeout = timeout.toMillis() / 1e3;
        this.maxAge = maxAge.toMillis() / 1e3;
    }

    /** The user's credentials under a storage key of the API key's own tenant, valid for 60 seconds. */
    public Credentials token(String storageKey) throws BrokerException, InterruptedException {
        return token("", storageKey, "user", 60, null, "");
    }

    /** Credentials after the provider's API has answered 401 to the refused ones. All callers that name the same ones cause
     *  one renewal. */
    public Credentials token(String storageKey, Credentials refused) throws BrokerException, InterruptedException {
        return token("", storageKey, "user", 60, refused, "11003");
    }

    /** {@code refused} may be null; {@code subStatus} is the API's, where it says one (TIDAL), else 11003. */
    public Credentials token(String tenant, String storageKey, String level, int minTTL, Credentials refused, String subStatus)
            throws BrokerException, InterruptedException {
        var key = new Key(tenant, storageKey, level);
        if (refused != null)
            memory.computeIfPresent(key, (name, found) -> found.etag.equals(refused.etag) ? null : found);
        var known = memory.get(key);
        if (known != null && known.checked.age() < maxAge && known.secondsLeft() > Math.max(0, minTTL)) return known;
        var path = "/credentials?storage_key=" + URLEncoder.encode(storageKey, StandardCharsets.UTF_8) + "&level=" + level
            + "&min_ttl=" + minTTL + (refused == null ? "" : "&api_error_sub_status=" + subStatus);
        var spare = refused == null && known != null && known.secondsLeft() > 0 ? known : null; // while the broker is away
        var compared = refused == null ? spare : refused;
        var began = Clocks.now();
        var budget = spare == null ? timeout : Math.min(5, timeout);
        for (double pause = 0.2;; pause = Math.min(2 * pause, 5)) {
            var asked = Clocks.now();
            var left = Math.max(1, budget - began.age());
            var fields = new HashMap<String, String>(Map.of("Prefer", "wait=" + (int) left));
            if (compared != null) fields.put("If-None-Match", compared.etag);
            BrokerException failure;
            try {
                var answer = get(path, tenant, fields, HttpResponse.BodyHandlers.ofString(), left + 2);
                var isSame = answer.statusCode() == 304 && compared != null && compared.secondsLeft() > 0;
                if (isSame || answer.statusCode() == 200) {
                    var found = isSame ? new Credentials(compared.etag, compared.body, compared.asked, asked)
                        : new Credentials(answer.headers().firstValue("ETag").orElse(""), JSON.object(answer.body()), asked, asked);
                    if (isSame && refused != null) return found; // The broker has no newer one.
                    if (memory.size() >= CAPACITY) memory.keySet().stream().findAny().ifPresent(memory::remove);
                    memory.put(key, found);
                    return found;
                }
                failure = failure(answer, answer.body());
            } catch (IOException | IllegalArgumentException fault) {
                failure = new BrokerException(0, "", null, Map.of(), "The broker does not answer: " + fault);
            }
            if (!failure.isPassing()) memory.remove(key);
            else if (spare != null && spare.secondsLeft() > 0) return spare;
            var wait = failure.retryAfter >= 0 ? failure.retryAfter : failure.status == 0 ? pause : Math.max(1, pause);
            if (!failure.isPassing() || began.age() + wait > budget) throw failure;
            sleep(wait);
        }
    }

    /** Calls {@code hear} with each event after {@code lastEventID} until the thread is interrupted, and connects again after
     *  a fault. Tokens that an event replaces are forgotten. */
    public void events(String tenant, String lastEventID, Consumer<Event> hear) throws BrokerException, InterruptedException {
        var retry = 1.0;
        var watch = Executors.newSingleThreadScheduledExecutor(work -> { var t = new Thread(work); t.setDaemon(true); return t; });
        try {
            for (double pause = 1;; pause = Math.min(2 * pause, 30)) {
                var fields = Map.of("Last-Event-ID", lastEventID);
                try (var body = get("/events", tenant, fields, HttpResponse.BodyHandlers.ofInputStream(), 45)) {
                }
            }
        } finally {
            watch.shutdownNow();
        }
    }
}
