package tokenbroker;

import static java.nio.charset.StandardCharsets.UTF_8;
import java.io.*;
import java.net.*;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import java.util.regex.*;

/** A client of token-broker for Java 17 or later (see README.md) for one tenant and one level. Threads may share it. */
public final class TokenBroker {
    private static final Set<String> LOG_IN = Set.of("level_not_available", "missing_token_container",
        "invalid_token_request", "unknown_account", "unauthenticated");
    private static final String TEXT = "\"((?:[^\"\\\\]++|\\\\.)*+)\"";
    private static final Pattern JSON = Pattern.compile(TEXT + "(?:\\s*:\\s*(" + TEXT + "|[-+.\\w]+))?|[{}\\[\\]]");
    private static final Pattern ESCAPE = Pattern.compile("\\\\(?:u(\\p{XDigit}{4})|[^u])");
    /** Why there is no token. The status is 0 where no answer came; the body, most often of JSON, is the broker's. */
    @SuppressWarnings("serial") public static final class BrokerException extends IOException {
        public final int status, retryAfter; // retryAfter: seconds; -1: none
        public final String code, body;

        BrokerException(int status, int retryAfter, String body, String detail) {
            super(detail);
            this.status = status;
            this.retryAfter = retryAfter;
            this.body = body;
            code = member(body, "code").orElse(status == 0 ? "network_error" : "");
        }
        public boolean mustLogIn() { return LOG_IN.contains(code); } // Only a login of the user helps.
        boolean isPassing() { return status == 0 || status == 429 || status == 503 || status >= 500 && code.isEmpty(); }
    }
    /** A token. The body is the broker's answer. It is valid for secondsLeft(), counted from before the request. */
    public record Credentials(String token, String etag, String body, double[] asked, double[] checked) {
        public double secondsLeft() { return Double.valueOf(member(body, "expires_in").orElse("1e9")) - age(asked); }
    }
    public record Event(String id, String name, String data) {}
    public String tenant = "", level = "user"; // "" for the API key's own tenant; user or client
    public int timeout = 30, maxAge = 30, minTTL = 60; // seconds: of a call; without a comparison; of a token's life
    private final String base, apiKey;
    private final Map<String, Credentials> memory = new ConcurrentHashMap<>();
    public TokenBroker(String base, String apiKey) {
        this.base = base.replaceAll("/+$", "");
        this.apiKey = apiKey;
    }

    /** Refused are null, or credentials that the provider's API answered with 401: all callers that name the same ones
     *  cause one renewal. The subStatus is the API's, where it says one (TIDAL), else 11003. */
    public Credentials token(String storageKey, Credentials refused, String subStatus)
            throws BrokerException, InterruptedException {
        if (memory.size() >= 10_000) memory.clear(); // It has a bound.
        var known = memory.computeIfPresent(storageKey, (key, held) ->
            held.secondsLeft() <= 0 || refused != null && held.etag.equals(refused.etag) ? null : held);
        if (known != null && age(known.checked) < maxAge && known.secondsLeft() > minTTL) return known;
        var spare = refused == null ? known : null; // It is given while the broker does not answer.
        var compared = refused == null ? spare : refused;
        var path = "/credentials?storage_key=" + URLEncoder.encode(storageKey, UTF_8) + "&level=" + level
            + "&min_ttl=" + minTTL + (refused == null ? "" : "&api_error_sub_status=" + subStatus);
        var began = now();
        var budget = spare == null ? timeout : Math.min(5, timeout);
        for (double pause = 0.2;; pause = Math.min(2 * pause, 5)) {
            var sent = now();
            var left = Math.max(1, budget - age(began));
            var fields = Map.of("Prefer", "wait=" + (int) left, "If-None-Match", compared == null ? "" : compared.etag);
            try {
                var answer = get(path, left + 2, fields);
                var body = new String(answer.getInputStream().readNBytes(1 << 20), UTF_8);
                var token = member(body, "token").orElseThrow(() -> new IOException("The answer has no token."));
                memory.put(storageKey, known = new Credentials(token, answer.getHeaderField("ETag"), body, sent, sent));
                return known;
            } catch (IOException fault) {
                var failure = fault instanceof BrokerException told ? told : new BrokerException(0, -1, "", fault + "");
                var isSame = failure.status == 304 && compared != null && compared.secondsLeft() > 0;
                if (isSame && spare != null)
                    memory.put(storageKey, new Credentials(spare.token, spare.etag, spare.body, spare.asked, sent));
                if (isSame) return compared;
                if (!failure.isPassing()) memory.remove(storageKey);
                else if (spare != null && spare.secondsLeft() > 0) return spare;
                var wait = failure.retryAfter < 0 ? pause : failure.retryAfter;
                if (!failure.isPassing() || age(began) + wait > budget) throw failure;
                Thread.sleep((long) (wait * (1000 + 100 * Math.random())));
            }
        }
    }

    /** Calls hear with each event after lastEventID until the thread is interrupted. Connects again after a fault. */
    public void events(String lastEventID, Consumer<Event> hear) throws BrokerException, InterruptedException {
        for (double pause = 1;; pause = Math.min(2 * pause, 30)) {
            try (var body = get("/events", 45, Map.of("Last-Event-ID", lastEventID)).getInputStream();
                    var lines = new BufferedReader(new InputStreamReader(body, UTF_8))) {
                var fields = new HashMap<String, String>();
                for (String line; (line = lines.readLine()) != null;) { // A comment comes after 15 seconds.
                    var parts = line.split(": ", 2);
                    fields.put(parts[0], parts[parts.length - 1]);
                    if (!line.isEmpty()) continue;
                    lastEventID = fields.getOrDefault("id", lastEventID);
                    pause = Double.parseDouble(fields.getOrDefault("retry", "1000")) / 1000;
                    if (fields.containsKey("data"))
                        hear.accept(heard(new Event(lastEventID, fields.get("event"), fields.get("data"))));
                    fields.clear();
                }
            } catch (BrokerException failure) {
                if (failure.status < 500 && !failure.isPassing()) throw failure;
                pause = Math.max(failure.retryAfter, pause);
            } catch (IOException fault) { /* It connects again. */ }
            Thread.sleep((long) (pause * (1000 + 100 * Math.random())));
        }
    }

    private Event heard(Event event) {
        if (event.name.equals("stream.reset")) memory.clear();
        if (event.name.equals("credentials.updated") || event.name.equals("credentials.deauthorized"))
            memory.computeIfPresent(member(event.data, "storage_key").orElse(""), (key, held) ->
                held.etag.equals('"' + member(event.data, "version").orElse("") + '"') ? held : null);
        return event;
    }

    private HttpURLConnection get(String path, double patience, Map<String, String> fields) throws IOException {
        var call = (HttpURLConnection) URI.create(base + path).toURL().openConnection();
        call.setInstanceFollowRedirects(false); // The API key is for the broker only.
        call.setConnectTimeout((int) (patience * 1000));
        call.setReadTimeout((int) (patience * 1000));
        call.setRequestProperty("Authorization", "Bearer " + apiKey);
        if (!tenant.isEmpty()) call.setRequestProperty("X-Tenant", tenant);
        fields.forEach((name, value) -> { if (!value.isEmpty()) call.setRequestProperty(name, value); });
        var status = call.getResponseCode();
        if (status == 200) return call;
        var body = call.getErrorStream() == null ? "" : new String(call.getErrorStream().readNBytes(1 << 20), UTF_8);
        throw new BrokerException(status, call.getHeaderFieldInt("Retry-After", -1), body,
            member(body, "detail").orElse("The broker answered " + status + "."));
    }

    /** The member of that name of an object of JSON, of which Java has no reader, as a text; empty for null. */
    public static Optional<String> member(String json, String name) {
        var depth = 0;
        for (var parts = JSON.matcher(json); parts.find();) {
            String part = parts.group(), value = parts.group(2);
            depth += part.matches("[{\\[]") ? 1 : part.matches("[}\\]]") ? -1 : 0;
            if (depth == 1 && name.equals(parts.group(1)) && value != null && !value.equals("null"))
                return Optional.of(ESCAPE.matcher(value.replaceAll("^\"|\"$", "")).replaceAll(c ->
                    Matcher.quoteReplacement(c.group(1) == null ? c.group().replace("\\/", "/").translateEscapes()
                        : "" + (char) Integer.parseInt(c.group(1), 16))));
        }
        return Optional.empty();
    }

    private static double[] now() { return new double[] {System.nanoTime() / 1e9, System.currentTimeMillis() / 1e3}; }
    /** In seconds. The one clock may stand still while the machine sleeps, and the other may be set back. */
    private static double age(double[] then) { return Math.max(now()[0] - then[0], now()[1] - then[1]); }
}
