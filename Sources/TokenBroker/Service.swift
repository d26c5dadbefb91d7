import BrokerCore
import CredentialStore
import Cryptography
import ExternalText
package import HTTPCodec
package import HTTPServer
import JSON
import OAuth
import Reactor
package import TLS

/// Handles HTTP requests: finds the route, authenticates the caller, answers, and writes log and metrics.
package final class Service: RequestHandler {
    private let broker: Broker
    private let router: Router
    private let scope: Scope
    /// Nil if this listener answers no request within the turn.
    private let quickReads: QuickReads?

    /// The routes that a listener serves.
    package enum Scope: Sendable {
        case all
        /// Probes and metrics.
        case operations
        /// All routes except probes and metrics, which have a listener of their own.
        case api
    }

    package init(_ broker: Broker, scope: Scope = .all) {
        self.broker = broker
        self.scope = scope
        let routes = Routes(broker, isForOperators: scope == .operations).all.filter { route in
            switch scope {
            case .all: true
            case .operations: Self.isOperation(route.path.description)
            case .api: !Self.isOperation(route.path.description)
            }
        }
        router = Router(routes)
        let read = routes.first(where: QuickReads.answers)
        // Only `respond` writes a line in the log, or an entry in the audit log, for each read.
        let tells = broker.settings.logsReads || broker.core.audit.tellsOfReads
        quickReads = tells ? nil : read.map { QuickReads(broker, $0) }
        broker.metrics.expect(routes.map { ($0.path, $0.method.name) } + [("unknown", "GET"), ("malformed", "OTHER")])
    }

    /// Whether `TOKEN_BROKER_OPERATIONS_LISTEN` moves this path to the listener for probes and metrics.
    private static func isOperation(_ path: String) -> Bool {
        ["/livez", "/healthz", "/readyz", "/metrics"].contains(path)
    }

    /// Every operation, for the test that compares them with openapi.yaml.
    package static func operations(of broker: Broker) -> [(method: String, path: String)] {
        Routes(broker).all.map { ($0.method.name, $0.path.description) }
    }

    /// The result of checking the head of a request.
    private struct Reception: Sendable {
        /// Nil if no route has this path and method.
        var match: Router.Match?
        /// Nil on open routes.
        var caller: Caller?
        /// Why the request is refused; nil if its route answers it.
        var problem: BrokerError?
        var took = Duration.zero
    }

    /// The longest content of a request that is not read while it comes, in bytes. 1 MiB.
    package static let longestContent = 1 << 20

    package func admit(_ request: Request) async -> Admission {
        guard let trace = TraceContext(request.fields) else { return await admitted(request) }
        return await TraceContext.$current.withValue(trace) { await admitted(request) }
    }

    private func admitted(_ request: Request) async -> Admission {
        let reception = await receive(request, hasContent: true)
        if let problem = reception.problem {
            await tell(of: problem, request, reception)
            let response = self.response(to: problem, request)
            report(request, reception, response, problem, took: reception.took)
            return .refused(opened(response, request.path))
        }
        let isOpen = reception.match?.route.access == .open
        let route = reception.match?.route
        return .admitted(
            contentBytes: route?.contentLimit, isStreamed: route?.isStreamed ?? false, isOpen: isOpen, found: reception)
    }

    private func response(to problem: BrokerError, _ request: Request) -> Response {
        var response = Route.isForApps(request.path) ? AppError(problem).response : problem.response
        // The client shows its new certificate on its next connection only.
        if problem.code == .unauthorized, let peer = request.peer,
            !CallerAuthenticator.isValid(peer, at: broker.time.now)
        {
            response.closesConnection = true
        }
        return response
    }

    package func respond(to request: Request) async -> Response {
        guard let trace = TraceContext(request.fields) else { return await answer(request) }
        return await TraceContext.$current.withValue(trace) { await answer(request) }
    }

    private func answer(_ request: Request) async -> Response {
        let start = broker.time.monotonic
        let reception = await reception(of: request)
        var response: Response
        var problem = reception.problem
        do throws(BrokerError) {
            guard let match = reception.match, problem == nil else {
                throw problem ?? BrokerError(.notFound, "There is nothing at this path.")
            }
            if match.route.access == .admin, mayChange(request.method, request.path), let came = request.arrival,
                came.duration(to: start) >= CredentialsWriter.punctuality
            {
                throw Self.late
            }
            response = try await handle(
                Call(request: request, parameters: match.parameters, caller: reception.caller), match.route)
        } catch {
            problem = error
            response = self.response(to: error, request)
            await tell(of: error, request, reception)
        }
        // `start` is later than the checks that were made before the content arrived, so their time is added.
        let took =
            start.duration(to: broker.time.monotonic) + (request.admission == nil ? .zero : reception.took)
        report(request, reception, response, problem, took: took)
        return opened(response, request.path)
    }

    /// An operator's request that has waited for so long may have been given up, and made again at another replica. What it asks for
    /// may be wrong by now, so it is not begun.
    private static let late = BrokerError(
        .retryableError,
        "The broker stood still while this request waited, so nothing was done. Ask again if that is still wanted.",
        retryAfter: 1)

    private func opened(_ response: Response, _ path: String) -> Response {
        var response = response
        CrossOrigin.open(&response, to: path)
        return response
    }

    /// Has the route answer. The audit log tells who causes what the route does.
    private func handle(_ call: Call, _ route: Route) async throws(BrokerError) -> Response {
        guard broker.core.audit.isOn else { return try await route.handle(call) }
        let outcome = await AuditOrigin.$current.withValue(Self.origin(of: call.request, call.caller, route)) {
            () async -> Result<Response, BrokerError> in
            do throws(BrokerError) {
                return .success(try await route.handle(call))
            } catch {
                return .failure(error)
            }
        }
        return try outcome.get()
    }

    /// Has the audit log tell that the caller may not make this request. A request without a valid key has no entry: each would be
    /// a commit that anyone can cause.
    private func tell(of problem: BrokerError, _ request: Request, _ reception: Reception) async {
        guard problem.code == .forbidden, broker.core.audit.isOn, let caller = reception.caller,
            let route = reception.match?.route
        else { return }
        var tenant = tenantNamed(request, reception)
        if case .key(let key) = caller { tenant = key.isWithoutTenant ? nil : key.tenant }
        await broker.core.audit.tell(
            ofRefusalTo: Self.origin(of: request, caller, route), tenant: tenant, storageKey: problem.storageKey)
    }

    private static func origin(of request: Request, _ caller: Caller?, _ route: Route) -> AuditOrigin {
        let caller =
            switch caller {
            case .key(let key)?: "key:\(key.id)"
            case .admin(let name, _)?: "admin:\(name)"
            // Browsers and apps have no key.
            case nil: "anyone"
            }
        let address = request.client.map { $0 == .unspecified ? "unix" : $0.description }
        return AuditOrigin(
            caller: caller, address: address, operation: "\(route.method.name) \(route.path)",
            requestID: request.id)
    }

    /// The result of checking the head. A request with content was checked at its admission.
    private func reception(of request: Request) async -> Reception {
        guard var admitted = request.admission as? Reception else {
            return await receive(request, hasContent: !request.body.isEmpty)
        }
        // The content may have taken long to arrive, and the key may have been deleted since then. So it is checked
        // again.
        guard admitted.caller != nil, admitted.problem == nil else { return admitted }
        do throws(BrokerError) {
            admitted.caller = try await authenticated(request)
        } catch {
            admitted.problem = error
        }
        return admitted
    }

    /// Finds the route and the caller, and checks whether the caller may use the route. Reads only the head.
    private func receive(_ request: Request, hasContent: Bool) async -> Reception {
        let start = broker.time.monotonic
        var reception = Reception()
        do throws(BrokerError) {
            let match = try router.match(request.method, request.path)
            reception.match = match
            // The key is checked before everything else. So a client without a key learns nothing and costs little.
            if match.route.access != .open { reception.caller = try await authenticated(request) }
            try match.route.authorize(reception.caller)
            try broker.rateLimits.admit(reception.caller, from: request.source)
            if hasContent { try match.route.checkContent(request.fields) }
        } catch {
            reception.problem = error
        }
        reception.took = start.duration(to: broker.time.monotonic)
        return reception
    }

    /// The caller of the request. Delays refusals if the source is refused often.
    private func authenticated(_ request: Request) async throws(BrokerError) -> Caller {
        do throws(BrokerError) {
            return try await broker.authenticator.caller(of: request)
        } catch {
            // A stranger can also send tokens that nothing can verify.
            let isUnverified = error.code == .retryableError
            if isUnverified || error.code == .unauthorized {
                try await broker.authenticationFailures.admit(request.source)
            }
            if isUnverified { broker.metrics.workloadTokenUnverified() }
            throw error
        }
    }

    package func isEssential(_ path: String) -> Bool {
        scope != .api && Self.isOperation(path)
    }

    package func identities(of certificate: PeerCertificate) -> [SIMD4<UInt64>] {
        CallerIdentity.all(uris: certificate.uris, dnsNames: certificate.dnsNames).map(\.digest.vector)
    }

    package func answerNow(
        _ head: borrowing RequestHead, _ bytes: Span<UInt8>, from peer: PeerIdentity?, into answer: NowAnswer
    ) -> Int? {
        quickReads?.answer(head, bytes, from: peer, into: answer)
    }

    package func answeredNow(_ count: Int, kind: Int) {
        quickReads?.answered(count, kind: kind)
    }

    package func turnEnded(answers count: Int, took: Duration) {
        quickReads?.turnEnded(answers: count, took: took)
    }

    package func response(to refusal: Refusal) -> Response {
        BrokerError(.retryableError, refusal.detail).response
    }

    package func response(to refusal: Refusal, path: String) -> Response? {
        guard Route.isForApps(path) else { return nil }
        return opened(AppError(BrokerError(.retryableError, refusal.detail)).response, path)
    }

    package func mayChange(_ method: Method, _ path: String) -> Bool {
        switch method {
        case .head, .options: false
        // A browser comes back from the provider, or begins a login, by a GET.
        case .get: Route.isChangedByGet(path)
        default: true
        }
    }

    package func refused(_ refusal: Refusal, count: Int) {
        broker.log.warning("requests_refused", [.reason(refusal.name), .count(count)])
    }

    package func response(toFault status: Status, detail: String, path: String) -> Response {
        guard Route.isForApps(path) else { return response(toFault: status, detail: detail) }
        noteFault(status)
        // An error of RFC 6749 says little; the status says what HTTP has a status for.
        let code: AppError.Code =
            status == .serviceUnavailable
            ? .temporarilyUnavailable : status == .internalServerError ? .serverError : .invalidRequest
        var response = AppError(code, AppError.plain(detail), status: status).response
        response.closesConnection = true
        return opened(response, path)
    }

    private func noteFault(_ status: Status) {
        broker.metrics.requestAnswered(route: "malformed", method: "OTHER", status: status.code, took: .zero)
        broker.log.info("request_refused", [.status(status)])
    }

    package func response(toFault status: Status, detail: String) -> Response {
        let code: BrokerError.Code =
            switch status.code {
            case 413: .payloadTooLarge
            // The request asks for something that this server does not implement. It is not an internal error.
            case 501, 505: .invalidRequest
            case 503: .retryableError
            case 500...: .internalError
            default: .invalidRequest
            }
        var response = BrokerError(code, detail).response
        if status != response.status { response = Self.problem(status, code, detail) }
        response.closesConnection = true
        noteFault(status)
        return response
    }

    /// A problem for faults that HTTP has its own statuses for. The code says that the request is malformed; the status
    /// says how.
    private static func problem(_ status: Status, _ code: BrokerError.Code, _ detail: String) -> Response {
        var response = Response(
            status, fields: ["Content-Type": "application/problem+json", "Cache-Control": "no-store"])
        response.body = JSONWriter.object { json in
            json.member("type", "urn:token-broker:problem:\(code.rawValue)")
            json.member("title", "\(status.reason)")
            json.member("status", status.code)
            json.member("detail", detail)
            json.member("code", code.rawValue)
        }
        return response
    }

    /// The tenant that a request with an admin key names. Only the name of a known tenant is logged, because any other
    /// name is text from outside.
    private func tenantNamed(_ request: Request, _ reception: Reception) -> TenantName? {
        let text = reception.match?.parameters["tenant"] ?? request.fields.values("X-Tenant").first
        // The tenant is in memory, because answering the request read it.
        return text.flatMap { TenantName($0) }.flatMap { broker.tenants.isKnown($0) ? $0 : nil }
    }

    private func report(
        _ request: Request, _ reception: Reception, _ response: Response, _ problem: BrokerError?,
        took duration: Duration
    ) {
        let route = reception.match?.route.path ?? "unknown"
        broker.metrics.requestAnswered(
            route: route, method: LogField.knownName(of: request.method), status: response.status.code,
            took: duration)
        if let quota = problem?.quota { broker.metrics.refused(over: quota) }
        guard broker.log.isEnabled(.info) else { return }
        // Most requests are of this kind, and the metrics count each of them.
        if !broker.settings.logsReads, problem == nil, route.description == "/credentials", request.method == .get {
            return
        }
        var fields: [LogField] = [
            .request(RequestID(request.id)), .method(request.method), .route(route), .status(response.status),
            .duration(duration),
        ]
        if let client = request.client { fields.append(.peer(client)) }
        switch reception.caller {
        case .key(let key)?:
            fields.append(.apiKey(APIKeyID(key.id)))
            if !key.isWithoutTenant { fields.append(.tenant(key.tenant)) }
        case .admin(let name, _)?:
            fields.append(.admin(name))
            if let tenant = tenantNamed(request, reception) { fields.append(.tenant(tenant)) }
        case nil: break
        }
        if let problem {
            fields.append(.code(problem.code))
            if let error = problem.storeError { fields.append(.store(error)) }
            broker.log.info("request_failed", fields + [.outcome("failed")])
        } else {
            broker.log.info("request", fields + [.outcome("answered")])
        }
    }
}
