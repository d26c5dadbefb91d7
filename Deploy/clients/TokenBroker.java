package tokenbroker;

import java.io.*;
import java.net.*;
import java.nio.charset.StandardCharsets;
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

        BrokerException(int status, String retryAfter, String requestID, Map<?, ?> problem, String detail) {
            super(problem.get("detail") instanceof String text ? text : detail);
            this.status = status;
            code = problem.get("code") instanceof String text ? text : status == 0 ? "network_error" : "";
            errorCode = (String) problem.get("error_code");
            this.retryAfter = retryAfter != null && retryAfter.matches("\\d{1,9}") ? Long.parseLong(retryAfter) : -1;
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

    public TokenBroker(String base, String apiKey) { this(base, apiKey, 30, 30); }

    public TokenBroker(String base, String apiKey, double timeout, double maxAge) {
        this.base = base.replaceAll("/+$", "");
        this.apiKey = apiKey;
        this.timeout = timeout;
        this.maxAge = maxAge;
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
                var answer = get(path, tenant, fields, left + 2);
                var status = answer.getResponseCode();
                var isSame = status == 304 && compared != null && compared.secondsLeft() > 0;
                if (isSame || status == 200) {
                    var found = isSame ? new Credentials(compared.etag, compared.body, compared.asked, asked)
                        : new Credentials(answer.getHeaderField("ETag"), JSON.object(text(answer.getInputStream())), asked, asked);
                    if (isSame && refused != null) return found; // The broker has no newer one.
                    if (memory.size() >= CAPACITY) memory.keySet().stream().findAny().ifPresent(memory::remove);
                    memory.put(key, found);
                    return found;
                }
                failure = failure(answer);
            } catch (IOException fault) {
                failure = new BrokerException(0, null, null, Map.of(), "The broker does not answer: " + fault);
            }
            if (!failure.isPassing()) memory.remove(key);
            else if (spare != null && spare.secondsLeft() > 0) return spare;
            var wait = failure.retryAfter >= 0 ? failure.retryAfter : failure.status == 0 ? pause : Math.max(1, pause);
            if (!failure.isPassing() || began.age() + wait > budget) throw failure;
            pause(wait);
        }
    }

    /** Calls {@code hear} with each event after {@code lastEventID} until the thread is interrupted, and connects again after
     *  a fault. Tokens that an event replaces are forgotten. */
    public void events(String tenant, String lastEventID, Consumer<Event> hear) throws BrokerException, InterruptedException {
        var retry = 1.0;
        for (double pause = 1;; pause = Math.min(2 * pause, 30)) {
            try {
                var answer = get("/events", tenant, Map.of("Last-Event-ID", lastEventID), 45); // A comment comes after 15 s.
                if (answer.getResponseCode() != 200) {
                    var failure = failure(answer);
                    if (failure.status < 500 && failure.status != 429) throw failure;
                    pause(Math.max(failure.retryAfter, pause));
                    continue;
                }
                try (var lines = new BufferedReader(new InputStreamReader(answer.getInputStream(), StandardCharsets.UTF_8))) {
                    var fields = new HashMap<String, String>();
                    for (String line; (line = lines.readLine()) != null;) {
                        var parts = line.split(": ", 2);
                        if (!line.isEmpty()) {
                            fields.put(parts[0], parts.length > 1 ? parts[1] : "");
                            continue;
                        }
                        retry = Double.parseDouble(fields.getOrDefault("retry", retry * 1000 + "")) / 1000;
                        var id = fields.getOrDefault("id", lastEventID);
                        if (fields.containsKey("data")) {
                            var event = new Event(id, fields.get("event"), JSON.object(fields.get("data")));
                            forget(event.name, event.data);
                            hear.accept(event);
                        }
                        lastEventID = id;
                        pause = retry;
                        fields.clear();
                    }
                }
            } catch (BrokerException failure) {
                throw failure;
            } catch (IOException fault) {
                // It connects again.
            }
            pause(pause);
        }
    }

    private void forget(String event, Map<String, Object> data) {
        var isUpdate = event.equals("credentials.updated");
        if (event.equals("stream.reset")) memory.clear();
        if (!isUpdate && !event.equals("credentials.deauthorized")) return;
        for (var tenant : List.of("", data.get("tenant")))
            for (var level : List.of("client", "user"))
                memory.computeIfPresent(new Key((String) tenant, (String) data.get("storage_key"), level), (key, known) ->
                    isUpdate && known.etag.equals(String.format("\"%.0f\"", data.get("version"))) ? known : null);
    }

    private HttpURLConnection get(String path, String tenant, Map<String, String> fields, double timeout) throws IOException {
        var request = (HttpURLConnection) new URL(base + path).openConnection();
        request.setInstanceFollowRedirects(false); // The key is for the broker only.
        request.setConnectTimeout((int) (timeout * 1000));
        request.setReadTimeout((int) (timeout * 1000));
        request.setRequestProperty("Authorization", "Bearer " + apiKey);
        if (!tenant.isEmpty()) request.setRequestProperty("X-Tenant", tenant);
        fields.forEach(request::setRequestProperty);
        return request;
    }

    private static String text(InputStream body) throws IOException {
        return body == null ? "" : new String(body.readNBytes(1 << 20), StandardCharsets.UTF_8);
    }

    private static BrokerException failure(HttpURLConnection answer) throws IOException {
        var status = answer.getResponseCode();
        Map<String, Object> problem = Map.of();
        try {
            problem = JSON.object(text(answer.getErrorStream()));
        } catch (IOException fault) {
            // A proxy's answer is no JSON.
        }
        return new BrokerException(status, answer.getHeaderField("Retry-After"), answer.getHeaderField("X-Request-ID"), problem,
            "The broker answered " + status + ".");
    }

    private static void pause(double seconds) throws InterruptedException {
        Thread.sleep((long) (seconds * 1000 * (1 + Math.random() / 10)));
    }

    /** Reads JSON, for which Java has no library of its own: numbers as Double, objects as Map. */
    private static final class JSON {
        private final String text;
        private int at;

        private JSON(String text) { this.text = text; }

        static Map<String, Object> object(String text) throws IOException {
            try {
                if (new JSON(text).value(0) instanceof Map<?, ?> found) {
                    var members = new HashMap<String, Object>();
                    found.forEach((name, value) -> members.put((String) name, value));
                    return members;
                }
            } catch (RuntimeException fault) {
                throw new IOException("The answer is no JSON.", fault);
            }
            throw new IOException("The answer is no JSON object.");
        }

        private char next() {
            while (Character.isWhitespace(text.charAt(at))) at++;
            return text.charAt(at);
        }

        private boolean skip(char wanted) {
            if (next() == wanted) at++;
            else return false;
            return true;
        }

        private Object value(int depth) {
            if (depth > 50) throw new IllegalArgumentException("too deep");
            if (skip('{')) {
                var members = new HashMap<String, Object>();
                while (!skip('}')) {
                    skip(',');
                    var name = (String) value(depth + 1);
                    skip(':');
                    members.put(name, value(depth + 1));
                }
                return members;
            }
            if (skip('[')) {
                var items = new ArrayList<Object>();
                while (!skip(']')) {
                    skip(',');
                    items.add(value(depth + 1));
                }
                return items;
            }
            if (skip('"')) return string();
            var start = at;
            while ("+-.".indexOf(text.charAt(at)) >= 0 || Character.isLetterOrDigit(text.charAt(at))) at++;
            var word = text.substring(start, at);
            return switch (word) {
                case "null" -> null;
                case "true", "false" -> word.equals("true");
                default -> Double.valueOf(word);
            };
        }

        private String string() {
            var found = new StringBuilder();
            for (char c; (c = text.charAt(at++)) != '"';) {
                if (c == '\\') {
                    c = text.charAt(at++);
                    var index = "bfnrt".indexOf(c);
                    if (index >= 0) c = "\b\f\n\r\t".charAt(index);
                    else if (c == 'u') c = (char) Integer.parseInt(text.substring(at, at += 4), 16);
                }
                found.append(c);
            }
            return found.toString();
        }
    }
}
