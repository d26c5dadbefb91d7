#!/usr/bin/env python3
"""Holds Deploy/ and the Dockerfile against public schemas and against the program.

    Tests/DeployTests/check.py token-broker    the program, as built

Needs no network and no container engine: the schemas come with PyPI's kubernetes-validate and with Debian's
docker-compose, and promtool with its prometheus. Says everything that does not fit and ends with 1 if anything does not.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "Deploy"
MANIFESTS = DEPLOY / "kubernetes"
# The oldest whose stable API has all that the manifests use, and all that came after it.
OLDEST_KUBERNETES = 27
# Applied by themselves: kustomization.yaml leaves them out.
SEPARATE = {"ingress.yaml", "ingress-apps.yaml", "secret.example.yaml"}
# Between the end of the grace and the end of the process: storing, closing, writing the log.
END_S = 5

faults = []


def expect(condition, text):
    if not condition:
        faults.append(text)


def read(path):
    return (ROOT / path).read_text()


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(s|m)", str(text)).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


class Program:
    """What token-broker says of itself."""

    def __init__(self, path):
        def printed(*words):
            return subprocess.run([path, *words], capture_output=True, text=True, check=True, timeout=60).stdout

        commands, environment = printed("--help"), printed("help", "variables")
        self.commands = set(re.findall(r"^  ([a-z]+)", commands, re.MULTILINE))
        listed = re.findall(r"^  (TOKEN_BROKER_\w+)( \*)?", environment, re.MULTILINE)
        self.variables = {name for name, _ in listed}
        self.secrets = {name for name, star in listed if star}
        self.grace_s = int(re.search(r"TOKEN_BROKER_SHUTDOWN_GRACE[^;]*;\s*default\s+(\d+)", environment)[1])

    def check_environment(self, where, environment):
        for name, value in environment.items():
            if not name.startswith("TOKEN_BROKER_"):
                continue
            plain = name.removesuffix("_FILE") if name not in self.variables else name
            expect(plain in self.variables, f"{where}: {name} is not in token-broker help variables")
            if plain != name:
                expect(plain in self.secrets, f"{where}: {plain} cannot be given as a file")
            expect(name not in self.secrets, f"{where}: {name} is a secret, which is to come from a file")

    def grace(self, environment):
        return int(environment.get("TOKEN_BROKER_SHUTDOWN_GRACE", self.grace_s))


def dockerfile_facts():
    text = read("Dockerfile")
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)
    copied = re.findall(r"^COPY --from=(\w+) (\S+) (\S+)$", text, re.MULTILINE)
    built = re.search(r"^RUN Deploy/build ((?:[\w-]+ )+)", text, re.MULTILINE)[1].split()
    products = re.findall(r'\.executable\(name: "([^"]+)"', read("Package.swift"))
    for product in built:
        expect(product in products, f"Dockerfile: {product} is no product of Package.swift")
        expect(f'/{product}"' in text, f"Dockerfile: {product} is built and not installed")
    for stage, source, target in copied:
        expect(stage in stages, f"Dockerfile: {stage} is no stage")
        if source.endswith(".json"):
            expect(f">{source}\n" in text, f"Dockerfile: nothing writes {source}")
            continue
        expect(source.lstrip("/") in built, f"Dockerfile: {source} is not built")
        expect(f'ENTRYPOINT ["{target}"]' in text, f"Dockerfile: nothing starts {target}")
    for stage in re.findall(r"^FROM (\w+) AS", text, re.MULTILINE):
        expect(stage in stages, f"Dockerfile: {stage} is no stage")
    # What the manifest of the package names, and what builds it, must get into the image that does.
    let_in = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    for path in ["Package.swift", "openapi.yaml", "Sources", "Tests", "Deploy/build", "Deploy/function-order.txt",
                 "Deploy/sbom"]:
        expect(path in let_in and (ROOT / path).exists(), f".dockerignore: {path} is not let in")
    return {
        "stages": stages,
        "programs": {target for _, source, target in copied if not source.endswith(".json")},
        "users": re.findall(r"^USER (\d+):", text, re.MULTILINE),
        "ports": [int(port) for port in re.findall(r"^EXPOSE (\d+)", text, re.MULTILINE)],
        "listen": re.search(r"^ENV TOKEN_BROKER_LISTEN=(\S+)$", text, re.MULTILINE)[1],
    }


def check_compose(program, image):
    path = DEPLOY / "compose.yaml"
    result = run("docker-compose", "--file", path, "config", "--quiet")
    expect(result.returncode == 0, f"compose.yaml: {result.stderr.strip()}")
    compose = yaml.safe_load(path.read_text())
    services = compose["services"]

    with tempfile.TemporaryDirectory() as directory:
        made = run(DEPLOY / "compose/make-secrets", directory, f"{os.getuid()}:{os.getgid()}")
        expect(made.returncode == 0, f"make-secrets: {made.stderr}")
        first = {file.name: file.read_text() for file in pathlib.Path(directory).iterdir()}
        run(DEPLOY / "compose/make-secrets", directory, f"{os.getuid()}:{os.getgid()}")
        second = {file.name: file.read_text() for file in pathlib.Path(directory).iterdir()}
        expect(first == second, "make-secrets changes what is there")
    for name, secret in compose["secrets"].items():
        expect(secret == {"file": f"compose/secrets/{name}"} and name in first, f"compose.yaml: secret {name}")
    expect(first.keys() == compose["secrets"].keys(), "compose.yaml and make-secrets differ in the secrets' names")

    for name, service in services.items():
        where = f"compose.yaml: {name}"
        expect(service.get("read_only") is True, f"{where}: the root file system can be written")
        expect(service.get("cap_drop") == ["ALL"] and "cap_add" not in service, f"{where}: has capabilities")
        expect("no-new-privileges:true" in service.get("security_opt", []), f"{where}: can gain privileges")
        for limit in ["mem_limit", "cpus", "pids_limit"]:
            expect(limit in service, f"{where}: has no {limit}")
        expect("healthcheck" in service, f"{where}: has no health check")
        for secret in service.get("secrets", []):
            expect(secret in compose["secrets"], f"{where}: {secret} is no secret")
        environment = service.get("environment", {})
        program.check_environment(where, environment)
        for variable, value in environment.items():
            if variable.endswith("_FILE"):
                expect(value.removeprefix("/run/secrets/") in service["secrets"], f"{where}: {variable}")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            there = (DEPLOY / source).is_file() if source.startswith(".") else source in compose["volumes"]
            expect(there, f"{where}: {source} is not there")
        for network in service["networks"]:
            expect(network in compose["networks"], f"{where}: {network} is no network")
        build = service.get("build", {})
        if "target" in build:
            expect(build["target"] in image["stages"], f"{where}: {build['target']} is no stage of the Dockerfile")
        for other, wait in service.get("depends_on", {}).items():
            healthy = wait["condition"] == "service_healthy"
            expect("test" in services[other]["healthcheck"] or not healthy, f"{where}: {other} is never healthy")
        for port in service.get("ports", []):
            expect(str(port).startswith("127.0.0.1:"), f"{where}: {port} is open to other machines")

    replicas = [name for name in services if name.startswith("broker-")]
    expect(len(replicas) >= 2, "compose.yaml: there are not two replicas")
    expect(len({tuple(services[name]["volumes"]) for name in replicas}) == len(replicas), "replicas share a volume")
    listen = int(image["listen"].rsplit(":", 1)[1])
    for name in replicas:
        service = services[name]
        environment = service["environment"]
        grace = program.grace(environment)
        stop = seconds(service["stop_grace_period"])
        expect(stop >= grace + END_S, f"compose.yaml: {name} is killed {stop} s after SIGTERM, its grace is {grace} s")
        command = service["healthcheck"]["test"]
        expect(command[1] in image["programs"] and command[2] in program.commands, f"compose.yaml: {name}: {command}")
        journal = environment["TOKEN_BROKER_JOURNAL_DIR"]
        mounts = [volume.split(":")[1] for volume in service["volumes"]]
        expect(any(journal.startswith(mount) for mount in mounts), f"compose.yaml: {name}: {journal} is no volume")
        expect(service["depends_on"]["migrate"]["condition"] == "service_completed_successfully", f"{name}: migrate")
    expect(services["migrate"]["command"] == ["migrate"] and "migrate" in program.commands, "compose.yaml: migrate")

    haproxy = read("Deploy/compose/haproxy.cfg")
    paths = yaml.safe_load(read("openapi.yaml"))["paths"]
    for uri in re.findall(r"\buri (\S+)", haproxy):
        expect(uri in paths, f"haproxy.cfg: openapi.yaml has no {uri}")
    for name in replicas:
        servers = re.findall(rf"^ +server {name} (\S+)$", haproxy, re.MULTILINE)
        expect(servers and set(servers) == {f"{name}:{listen}"}, f"haproxy.cfg: {name} is at {servers}")
    inside = int(services["load-balancer"]["ports"][0].rsplit(":", 1)[1])
    expect(f"bind :{inside}\n" in haproxy, f"haproxy.cfg: does not listen on {inside}")


def check_kubernetes(program, image):
    documents = []
    for path in sorted(MANIFESTS.glob("*.yaml")):
        if path.name != "kustomization.yaml":
            documents += [(path.name, document) for document in yaml.safe_load_all(path.read_text())]
    newest = int(kubernetes_validate.latest_version().split(".")[1])
    for name, document in documents:
        for minor in range(OLDEST_KUBERNETES, newest + 1):
            try:
                kubernetes_validate.validate(document, f"1.{minor}", strict=True)
            except kubernetes_validate.ValidationError as error:
                expect(False, f"{name}: {document['kind']}: Kubernetes 1.{minor}: {error.message}")

    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    files = {path.name for path in MANIFESTS.glob("*.yaml")} - {"kustomization.yaml"} - SEPARATE
    expect(set(kustomization["resources"]) == files, "kustomization.yaml: not the manifests that are there")
    version = re.search(r'versionText = "([^"]+)"', read("Sources/token-broker/Commands.swift"))[1]
    expect(str(kustomization["images"][0]["newTag"]) == version, f"kustomization.yaml: the program is {version}")

    def the(kind, name="token-broker"):
        return next(d for _, d in documents if d["kind"] == kind and d["metadata"]["name"] == name)

    for name, document in documents:
        if document["kind"] != "Namespace":
            expect(document["metadata"].get("namespace") == kustomization["namespace"], f"{name}: other namespace")

    replicas = the("StatefulSet")
    template = replicas["spec"]["template"]
    pod = template["spec"]
    labels = template["metadata"]["labels"]
    selectors = [
        replicas["spec"]["selector"]["matchLabels"],
        the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        the("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        the("Service")["spec"]["selector"],
        the("Service", "token-broker-replicas")["spec"]["selector"],
    ] + [spread["labelSelector"]["matchLabels"] for spread in pod["topologySpreadConstraints"]]
    for selector in selectors:
        expect(selector.items() <= labels.items(), f"{selector} does not select the replicas")
    expect(replicas["spec"]["replicas"] > the("PodDisruptionBudget")["spec"]["maxUnavailable"], "no replica is left")
    denial = the("NetworkPolicy", "default-deny")["spec"]
    expect(denial == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}, "default-deny does not deny")

    # The profile "restricted" of the pod security standards, and a root that cannot be written.
    user = pod["securityContext"]["runAsUser"]
    expect(pod["securityContext"]["runAsNonRoot"] is True and str(user) in image["users"], f"user {user}")
    expect(pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", "no seccomp profile")
    expect(pod["automountServiceAccountToken"] is False, "a token of the cluster is mounted")
    expect(the("ServiceAccount")["automountServiceAccountToken"] is False, "a token of the cluster is mounted")
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    claims = {claim["metadata"]["name"] for claim in replicas["spec"]["volumeClaimTemplates"]}
    for container in pod["initContainers"] + pod["containers"]:
        name = container["name"]
        context = container["securityContext"]
        expect(context["readOnlyRootFilesystem"] is True, f"{name}: the root file system can be written")
        expect(context["allowPrivilegeEscalation"] is False, f"{name}: can gain privileges")
        expect(context["capabilities"] == {"drop": ["ALL"]}, f"{name}: has capabilities")
        expect({"requests", "limits"} <= container["resources"].keys(), f"{name}: has no resources")
        expect(container["image"] == kustomization["images"][0]["name"], f"{name}: another image")
        environment = {variable["name"]: variable["value"] for variable in container["env"]}
        program.check_environment(f"statefulset.yaml: {name}", environment)
        for argument in container.get("args", []):
            expect(argument in program.commands, f"{name}: {argument} is no command")
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        for path in [value for variable, value in environment.items() if variable.endswith("_FILE")]:
            directory, key = path.rsplit("/", 1)
            volume = mounts.get(directory)
            keys = the("Secret", secrets.get(volume))["stringData"] if volume in secrets else {}
            expect(key in keys, f"{name}: no secret has {path}")
        if journal := environment.get("TOKEN_BROKER_JOURNAL_DIR"):
            volume = next((volume for mount, volume in mounts.items() if journal.startswith(mount)), None)
            expect(volume in claims, f"{name}: {journal} does not outlive the pod")
    for secret in [document for _, document in documents if document["kind"] == "Secret"]:
        for key, value in secret["stringData"].items():
            expect("FILL-IN" in value, f"secret.example.yaml: {key} looks like a value")

    broker = pod["containers"][0]
    environment = {variable["name"]: variable["value"] for variable in broker["env"]}
    ports = {port["name"]: port["containerPort"] for port in broker["ports"]}
    listen = int(environment["TOKEN_BROKER_LISTEN"].rsplit(":", 1)[1])
    expect(ports["http"] == listen and listen in image["ports"], f"the broker listens on {listen}")
    operations = int(environment["TOKEN_BROKER_OPERATIONS_LISTEN"].rsplit(":", 1)[1])
    expect(ports["operations"] == operations, f"the broker answers probes on {operations}")
    for name, target in [("token-broker", "http"), ("token-broker-replicas", "operations")]:
        served = {port["targetPort"] for port in the("Service", name)["spec"]["ports"]}
        expect(served == {target}, f"the service {name} leads to {served}")
    paths = yaml.safe_load(read("openapi.yaml"))["paths"]
    for kind, path in [("startup", "/readyz"), ("readiness", "/livez"), ("liveness", "/livez")]:
        probe = broker[f"{kind}Probe"]["httpGet"]
        expect(probe == {"path": path, "port": "operations"} and path in paths, f"{kind}Probe: {probe}")
    stop = pod["terminationGracePeriodSeconds"]
    before = int(broker["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = program.grace(environment)
    expect(stop >= before + grace + END_S, f"killed after {stop} s; preStop {before} s, grace {grace} s")
    startup = broker["startupProbe"]["periodSeconds"] * broker["startupProbe"]["failureThreshold"]
    patience = int(re.search(r"patience: Duration = \.seconds\((\d+)\)", read(
        "Sources/token-broker/RunningService.swift"))[1])
    expect(startup > patience, f"startupProbe gives up after {startup} s, serve after {patience} s")

    host = environment["TOKEN_BROKER_PUBLIC_BASE_URL"].removeprefix("https://")
    rule = the("Ingress", "token-broker-login")["spec"]["rules"][0]
    expect(rule["host"] == host, f"ingress.yaml: the host is {rule['host']}, the base URL has {host}")
    outside = {path["path"] for path in rule["http"]["paths"]}
    pages = {f"/login/{name}/" for name in ["callback", "start", "confirm", "ended", "reconnect"]}
    expect(outside == {"/login/callback"} | pages, f"ingress.yaml: {outside} is exposed")
    for path in outside:
        expect(any(known.startswith(path) for known in paths), f"ingress.yaml: openapi.yaml has no {path}")
    apps = the("Ingress", "token-broker-apps")["spec"]["rules"][0]
    expect(apps["host"] == host, f"ingress-apps.yaml: the host is {apps['host']}, the base URL has {host}")
    outside = {path["path"] for path in apps["http"]["paths"]}
    wanted = {path for path in paths if path.startswith("/oauth2/") or path.startswith("/.well-known/")}
    expect(outside == wanted, f"ingress-apps.yaml: {outside ^ wanted} differ from openapi.yaml")


def check_alerts():
    """The alert rules as Prometheus reads them, and what they say of the series in their tests."""
    directory = DEPLOY / "prometheus"
    for command in [("check", "rules", "--lint-fatal"), ("test", "rules")]:
        name = "alerts.yml" if command[0] == "check" else "alerts.test.yml"
        result = run("promtool", *command, directory / name)
        expect(result.returncode == 0, f"{name}: {result.stdout.strip()} {result.stderr.strip()}")
    rules = yaml.safe_load((directory / "alerts.yml").read_text())
    tests = yaml.safe_load((directory / "alerts.test.yml").read_text())["tests"]
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    for fires in [True, False]:
        tried = {case["alertname"] for test in tests for case in test["alert_rule_test"]
                 if bool(case["exp_alerts"]) == fires}
        expect(alerts == tried, f"alerts.test.yml: not tried {'firing' if fires else 'silent'}: {alerts ^ tried}")


def check_texts(program):
    pages = [("OPERATIONS.md", read("Deploy/OPERATIONS.md"))]
    pages += [(f"operations/{path.name}", path.read_text()) for path in sorted((DEPLOY / "operations").glob("*.md"))]
    others = [(name, read(f"Deploy/{name}")) for name in ["ARCHITECTURE.md", "CALLS.md", "LIBRARY.md", "PERFORMANCE.md"]]
    for name, text in [("README.md", read("README.md"))] + pages + others:
        for variable in set(re.findall(r"\bTOKEN_BROKER_[A-Z_]+[A-Z]\b", text)):
            known = {variable, variable.removesuffix("_FILE")} & program.variables
            expect(known, f"{name}: {variable} is not in token-broker help variables")
    events = set()
    for path in (ROOT / "Sources").rglob("*.swift"):
        text = path.read_text()
        events |= set(re.findall(r'log\.(?:debug|info|warning|error)\(\s*"(\w+)"', text))
        for names in re.findall(r"var \w*[eE]vent: StaticString \{(.*?)\n    \}", text, re.DOTALL):
            events |= set(re.findall(r'"(\w+)"', names))
    lines = [(name, line) for name, text in pages
             for line in set(re.findall(r"(?:\blines?|\blog (?:has|says))\s+`([a-z_]+)`", text))]
    expect(len(lines) >= 4, "operations/: no lines of the log were found in the pages")
    for name, line in lines:
        expect(line in events, f"{name}: the log has no line {line}")
    sources = read("Sources/BrokerCore/Telemetry/Metrics+Help.swift")
    named = set(re.findall(r'^\s*\(?"(\w+)", "(?:counter|gauge|histogram)"', sources, re.MULTILINE))
    shown = re.search(r"enum Shown: .*?\n\n", sources, re.DOTALL)[0]
    named |= {given or case for case, given in re.findall(r'^ +case (\w+)(?: = "(\w+)")?$', shown, re.MULTILINE)}
    expect(len(named) >= 40, "Metrics+Help.swift: the names of the metrics were not found")
    tables = {"owner", *re.findall(r"TABLE (?:IF NOT EXISTS )?token_broker_(\w+)", read(
        "Sources/CredentialStore/Postgres/Migrations.swift") + read(
        "Sources/CredentialStore/Postgres/Statements.swift"))}
    for name, text in pages + [("alerts.yml", read("Deploy/prometheus/alerts.yml"))]:
        for metric in set(re.findall(r"\btoken_broker_(\w+)", text)) - tables:
            plain = re.sub(r"_(bucket|sum|count)$", "", metric)
            expect({metric, plain} & named, f"{name}: there is no metric token_broker_{metric}")


def main():
    program = Program(sys.argv[1])
    image = dockerfile_facts()
    check_compose(program, image)
    check_kubernetes(program, image)
    check_alerts()
    check_texts(program)
    for fault in faults:
        print(fault)
    if faults:
        sys.exit(1)
    print("compose.yaml, kubernetes/, prometheus/, the pages for operators and the Dockerfile fit the schemas and the program")


if __name__ == "__main__":
    main()
