import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import tokenbroker.TokenBroker;

/** Calls the client for Java, one command of standard input at a time (see ../clients.py). */
final class Driver {
    public static void main(String[] arguments) throws Exception {
        TokenBroker client = null;
        TokenBroker.Credentials last = null, kept = null;
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null;) {
            var words = line.split(" ");
            try {
                switch (words[0]) {
                    case "client" -> {
                        client = new TokenBroker(arguments[0], arguments[1]);
                        client.timeout = Integer.parseInt(words[2]);
                        client.maxAge = Integer.parseInt(words[1]);
                        System.out.println("ok");
                    }
                    case "token" -> {
                        client.minTTL = Integer.parseInt(words[2]);
                        last = client.token(words[1], null, "");
                        System.out.println("token " + last.etag() + " " + last.token());
                    }
                    case "keep" -> {
                        kept = last;
                        System.out.println("ok");
                    }
                    case "refuse" -> System.out.println("tokens" + refuse(client, words[1], kept, Integer.parseInt(words[2])));
                    case "listen" -> {
                        listen(client);
                        System.out.println("ok");
                    }
                    default -> throw new IllegalArgumentException(line);
                }
            } catch (TokenBroker.BrokerException error) {
                System.out.println("error " + error.status + " " + (error.code.isEmpty() ? "-" : error.code) + " "
                    + (error.retryAfter < 0 ? "-" : error.retryAfter) + " " + (error.mustLogIn() ? "yes" : "no"));
            }
        }
        System.exit(0);
    }

    private static String refuse(TokenBroker client, String storageKey, TokenBroker.Credentials kept, int count)
            throws InterruptedException, ExecutionException {
        var threads = Executors.newFixedThreadPool(count);
        var calls = new ArrayList<Future<TokenBroker.Credentials>>();
        for (var number = 0; number < count; number++) calls.add(threads.submit(() -> client.token(storageKey, kept, "11003")));
        var tags = new StringBuilder();
        for (var call : calls) tags.append(' ').append(call.get().etag());
        threads.shutdown();
        return tags.toString();
    }

    private static void listen(TokenBroker client) {
        var thread = new Thread(() -> {
            try {
                client.events("", event -> System.out.println(
                    "event " + event.id() + " " + event.name() + " " + TokenBroker.member(event.data(), "storage_key").orElse("-")));
            } catch (Exception error) {
                System.out.println("the stream ended: " + error);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }
}
