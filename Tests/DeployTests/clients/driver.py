"""Calls the client for Python, one command of standard input at a time (see ../clients.py)."""
import concurrent.futures
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "Deploy/clients"))
from token_broker import BrokerError, TokenBroker


def say(*words):
    print(*words, flush=True)


def listen(client):
    for event in client.events():
        say("event", event.id, event.name, event.data.get("storage_key", "-"))


def main():
    client = last = kept = None
    for line in sys.stdin:
        command, *words = line.split()
        try:
            if command == "client":
                client = TokenBroker(sys.argv[1], sys.argv[2], max_age=int(words[0]), timeout=int(words[1]))
                say("ok")
            elif command == "token":
                last = client.token(words[0], min_ttl=int(words[1]))
                say("token", last.etag, last.token)
            elif command == "keep":
                kept = last
                say("ok")
            elif command == "refuse":
                with concurrent.futures.ThreadPoolExecutor(int(words[1])) as threads:
                    found = threads.map(lambda _: client.token(words[0], refused=kept).etag, range(int(words[1])))
                    say("tokens", *found)
            elif command == "listen":
                threading.Thread(target=listen, args=[client], daemon=True).start()
                say("ok")
        except BrokerError as error:
            after = "-" if error.retry_after is None else error.retry_after
            say("error", error.status, error.code or "-", after, "yes" if error.must_log_in else "no")


main()
