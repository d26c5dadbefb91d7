internal import BrokerCore
internal import ExternalText
package import HTTPCodec
package import HTTPServer
internal import JSON
internal import Reactor

/// The HTTP face of the broker: finds the route, asks for the key, answers, and writes down what happened.
package struct Service: RequestHandler {
    private let broker: Broker
    private let router: Router
    private let limits: RequestLimits

    /// - Parameter limits: the server's.
    package init(_ broker: Broker, limits: RequestLimits = RequestLimits()) {
        self.broker = broker
        self.limits = limits
        router = Router(Routes(broker).all)
    }

    /// Every operation, for the test that holds openapi.yaml against it.
    package static func operations(of broker: Broker) -> [(method: String, path: String)] {
        Routes(broker).all.map { ($0.method.name, $0.path.description) }
    }

    package func respond(to request: Request) async -> Response {
        let start = broker.time.monotonic
        var route: StaticString = "unknown"
        var response: Response
        var problem: BrokerError?
        var caller: Caller?
        do throws(BrokerError) {
            let match = try router.match(request.method, request.path)
            route = match.route.path
            // The key comes before the body and everything else: a stranger learns nothing and costs little.
            caller = match.route.access == .open ? nil : try await broker.authenticator.caller(of: request)
            if match.route.access == .admin, case .key? = caller {
                throw BrokerError(.forbidden, "Only the admin key may do this.")
            }
            if case .tenant(let permission) = match.route.access, case .key(let key)? = caller,
                !key.permissions.contains(permission)
            {
                throw BrokerError(.forbidden, "The API key lacks the permission \(permission.rawValue).")
            }
            response = try await match.route.handle(
                Call(request: request, parameters: match.parameters, caller: caller))
        } catch {
            problem = error
            response = error.response
        }
        report(request, route, response, problem, caller, took: start.duration(to: broker.time.monotonic))
        return response
    }

    package func isEssential(_ path: String) -> Bool {
        let essential: [WireText] = ["/livez", "/healthz", "/readyz", "/metrics"]
        return essential.contains(WireText(path))
    }

    package func makeShortcut() -> (any Shortcut)? {
        broker.settings.logsReads ? nil : WarmReads(broker, limits: limits)
    }

    package func response(to refusal: Refusal) -> Response {
        BrokerError(.retryableError, refusal.detail).response
    }

    package func refused(_ refusal: Refusal, count: Int) {
        broker.log.warning("requests_refused", [.reason(refusal.name), .count(count)])
    }

    package func response(toFault status: Status, detail: String) -> Response {
        let code: BrokerError.Code =
            switch status.code {
            case 413: .payloadTooLarge
            // The request asked for what this server does not do; nothing went wrong in it.
            case 501, 505: .invalidRequest
            case 503: .retryableError
            case 500...: .internalError
            default: .invalidRequest
            }
        var response = BrokerError(code, detail).response
        if status != response.status { response = Self.problem(status, code, detail) }
        response.closesConnection = true
        broker.metrics.requestAnswered(route: "malformed", method: "OTHER", status: status.code, took: .zero)
        broker.log.info("request_refused", [.status(status)])
        return response
    }

    /// For the statuses that only HTTP itself has use for: the code says that the request was not well-formed, the
    /// status says how.
    private static func problem(_ status: Status, _ code: BrokerError.Code, _ detail: String) -> Response {
        var response = Response(
            status, fields: ["Content-Type": "application/problem+json", "Cache-Control": "no-store"])
        response.body = JSONWriter.object { json in
            json.member("type", "urn:token-broker:problem:\(code.rawValue)")
            json.member("title", status.reason)
            json.member("status", status.code)
            json.member("detail", detail)
            json.member("code", code.rawValue)
        }
        return response
    }

    private func report(
        _ request: Request, _ route: StaticString, _ response: Response, _ problem: BrokerError?, _ caller: Caller?,
        took duration: Duration
    ) {
        broker.metrics.requestAnswered(
            route: route, method: LogField.knownName(of: request.method), status: response.status.code,
            took: duration)
        guard broker.log.isEnabled(.info) else { return }
        // They are most of all requests, and each is in the metrics.
        if !broker.settings.logsReads, problem == nil, route.description == "/credentials", request.method == .get {
            return
        }
        var fields: [LogField] = [
            .request(RequestID(request.id)), .method(request.method), .route(route), .status(response.status),
            .duration(duration),
        ]
        if case .key(let key)? = caller { fields.append(.tenant(key.tenant)) }
        if let problem {
            fields.append(.code(problem.code))
            if let error = problem.storeError { fields.append(.store(error)) }
            broker.log.info("request_failed", fields + [.outcome("failed")])
        } else {
            broker.log.info("request", fields + [.outcome("answered")])
        }
    }
}
