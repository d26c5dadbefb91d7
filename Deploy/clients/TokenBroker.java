package tokenbroker;

import static java.nio.charset.StandardCharsets.UTF_8;
import java.io.*;
import java.net.*;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import java.util.regex.*;

/** A client of token-broker for Java 17 or later, with the standard library only. See README.md beside it. It is for one
 *  tenant and one level. Threads may share it once its public fields are set. */
public final class TokenBroker {
    /** Why there is no token. The status is 0 where no answer came; the code and the message are the broker's. */
    @SuppressWarnings("serial")
    public static final class BrokerException extends IOException {
        private static final Set<String> LOG_IN = Set.of("level_not_available", "missing_token_container",
            "invalid_token_request", "unknown_account", "unauthenticated");
        public final int status;
        public final long retryAfter; // seconds; -1: none
        public final String code, errorCode, requestID, reconnectURI; // errorCode: what the provider said

        BrokerException(int status, long retryAfter, String requestID, Map<String, String> problem) {
            super(problem.getOrDefault("detail", "The broker answered " + status + "."));
            this.status = status;
            this.retryAfter = retryAfter;
            this.requestID = requestID;
            code = problem.getOrDefault("code", "");
            errorCode = problem.get("error_code");
            reconnectURI = problem.get("session.reconnect_uri");
        }

        /** Only a login of the user helps. */
        public boolean mustLogIn() { return LOG_IN.contains(code); }

        boolean isPassing() { return status == 0 || status == 429 || status == 503 || status >= 500 && code.isEmpty(); }
    }

    /** A token. The body has the members of the answer as texts, and those of an inner object as "session.cause". */
    public record Credentials(String etag, Map<String, String> body, double[] asked, double[] checked) {
        public String token() { return body.get("token"); }

        /** How long the token is valid, counted from the moment before it was asked for. */
        public double secondsLeft() { return Double.parseDouble(body.getOrDefault("expires_in", "1e9")) - age(asked); }
    }

    public record Event(String id, String name, Map<String, String> data) {}

    private static final Pattern JSON = Pattern.compile("\"((?:[^\"\\\\]++|\\\\.)*+)\"(\\s*:)?|[{}\\[\\]]|[-+.\\w]+");
    private static final Pattern ESCAPE = Pattern.compile("\\\\(?:u(\\p{XDigit}{4})|[\"\\\\/bfnrt])");
    public String tenant = "", level = "user"; // "" for the API key's own tenant; user or client
    public double timeout = 30, maxAge = 30; // the most seconds that a call takes, and that a token is not compared
    public int minTTL = 60, capacity = 10_000; // the seconds for which a token is valid; the most tokens in memory
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
        if (memory.size() >= capacity) memory.clear();
        var known = memory.computeIfPresent(storageKey, (key, held) ->
            held.secondsLeft() <= 0 || refused != null && held.etag.equals(refused.etag) ? null : held);
        if (known != null && age(known.checked) < maxAge && known.secondsLeft() > minTTL) return known;
        var spare = refused == null ? known : null; // It is given while the broker does not answer.
        var compared = refused == null ? known : refused;
        var path = "/credentials?storage_key=" + URLEncoder.encode(storageKey, UTF_8) + "&level=" + level
            + "&min_ttl=" + minTTL + (refused == null ? "" : "&api_error_sub_status=" + subStatus);
        var began = clocks();
        var budget = spare == null ? timeout : Math.min(5, timeout);
        for (double pause = 0.2;; pause = Math.min(2 * pause, 5)) {
            var asked = clocks();
            var left = Math.max(1, budget - age(began));
            try {
                var answer = get(path, left + 2, "wait=" + (int) left, "If-None-Match", compared == null ? "" : compared.etag);
                var isSame = answer.getResponseCode() == 304;
                if (isSame && compared.secondsLeft() <= 0) throw new IOException("The token has ended.");
                var found = isSame ? new Credentials(compared.etag, compared.body, compared.asked, asked)
                    : new Credentials(answer.getHeaderField("ETag"), members(text(answer.getInputStream())), asked, asked);
                if (found.token() == null) throw new IOException("The answer has no token.");
                if (!isSame || refused == null) memory.put(storageKey, found); // Else the broker has no newer one.
                return found;
            } catch (IOException fault) {
                var failure = fault instanceof BrokerException refusal ? refusal : new BrokerException(0, -1, null,
                    Map.of("code", "network_error", "detail", "The broker does not answer: " + fault));
                if (!failure.isPassing()) memory.remove(storageKey);
                else if (spare != null && spare.secondsLeft() > 0) return spare;
                var wait = failure.retryAfter < 0 ? pause : failure.retryAfter;
                if (!failure.isPassing() || age(began) + wait > budget) throw failure;
                pause(wait);
            }
        }
    }

    /** Calls hear with each event after lastEventID until the thread is interrupted, and connects again after a fault.
     *  Tokens that an event replaces are forgotten. */
    public void events(String lastEventID, Consumer<Event> hear) throws BrokerException, InterruptedException {
        for (double pause = 1;; pause = Math.min(2 * pause, 30)) {
            try (var body = get("/events", 45, "", "Last-Event-ID", lastEventID).getInputStream(); // of silence
                    var lines = new BufferedReader(new InputStreamReader(body, UTF_8))) {
                var fields = new HashMap<String, String>();
                for (String line; (line = lines.readLine()) != null;) {
                    var parts = line.split(": ", 2);
                    fields.put(parts[0], parts[parts.length - 1]);
                    if (!line.isEmpty()) continue;
                    lastEventID = fields.getOrDefault("id", lastEventID);
                    pause = Double.parseDouble(fields.getOrDefault("retry", "1000")) / 1000;
                    if (fields.containsKey("data"))
                        hear.accept(heard(new Event(lastEventID, fields.get("event"), members(fields.get("data")))));
                    fields.clear();
                }
            } catch (IOException fault) { // It connects again.
                if (fault instanceof BrokerException failure && failure.status < 500 && !failure.isPassing()) throw failure;
                if (fault instanceof BrokerException failure) pause = Math.max(failure.retryAfter, pause);
            }
            pause(pause);
        }
    }

    private Event heard(Event event) {
        if (event.name.equals("stream.reset")) memory.clear();
        if (event.name.equals("credentials.updated") || event.name.equals("credentials.deauthorized"))
            memory.computeIfPresent(event.data.get("storage_key"), (key, held) ->
                held.etag.equals('"' + event.data.get("version") + '"') ? held : null);
        return event;
    }

    /** An answer of status 200 or 304. It may be silent for so many seconds. */
    private HttpURLConnection get(String path, double patience, String prefer, String name, String value)
            throws IOException {
        var request = (HttpURLConnection) URI.create(base + path).toURL().openConnection();
        request.setInstanceFollowRedirects(false); // The API key is for the broker only.
        request.setConnectTimeout((int) (patience * 1000));
        request.setReadTimeout((int) (patience * 1000));
        var fields = Map.of("Authorization", "Bearer " + apiKey, "X-Tenant", tenant, "Prefer", prefer, name, value);
        fields.forEach((field, text) -> { if (!text.isEmpty()) request.setRequestProperty(field, text); });
        var status = request.getResponseCode();
        if (status == 200 || status == 304 && fields.containsKey("If-None-Match")) return request;
        throw new BrokerException(status, request.getHeaderFieldLong("Retry-After", -1),
            request.getHeaderField("X-Request-ID"), members(text(request.getErrorStream())));
    }

    private static String text(InputStream body) throws IOException {
        return body == null ? "" : new String(body.readNBytes(1 << 20), UTF_8);
    }

    /** The members of an object of JSON, of which Java has no reader. Those that are null are left out. */
    private static Map<String, String> members(String json) {
        var found = new HashMap<String, String>();
        var outer = new ArrayDeque<String>(List.of(""));
        var name = "";
        for (var tokens = JSON.matcher(json); tokens.find() && !outer.isEmpty();) {
            var token = tokens.group();
            if (tokens.group(2) != null) name = outer.peek() + tokens.group(1);
            else if (tokens.group(1) != null) found.put(name, ESCAPE.matcher(tokens.group(1)).replaceAll(escape ->
                Matcher.quoteReplacement(escape.group(1) != null ? (char) Integer.parseInt(escape.group(1), 16) + ""
                    : escape.group().equals("\\/") ? "/" : escape.group().translateEscapes())));
            else if ("{[".contains(token)) outer.push(name.isEmpty() ? "" : name + ".");
            else if ("}]".contains(token)) outer.pop();
            else if (!token.equals("null")) found.put(name, token);
        }
        return found;
    }

    private static void pause(double seconds) throws InterruptedException {
        Thread.sleep((long) (seconds * (1000 + 100 * Math.random())));
    }

    private static double[] clocks() { return new double[] {System.nanoTime() / 1e9, System.currentTimeMillis() / 1e3}; }

    private static double age(double[] then) { // The one clock may stand still, and the other may be set back.
        return Math.max(clocks()[0] - then[0], clocks()[1] - then[1]);
    }
}
