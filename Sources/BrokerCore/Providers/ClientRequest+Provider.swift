import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth

extension ClientRequest {
    /// A request to an endpoint of a provider, with the tenant's pins.
    /// - Parameter query: parameters that follow the query which the endpoint has already (RFC 6749 §3.1); empty for none.
    /// - Throws: `illegal_configuration` where the endpoint or the pins are not usable.
    init(
        provider server: AuthorizationServer, _ method: Method, _ endpoint: String, query: [FormEncoding.Pair] = []
    ) throws(BrokerError) {
        let separator = WireText(endpoint).contains("?") ? "&" : "?"
        guard let url = URLTarget(query.isEmpty ? endpoint : endpoint + separator + FormEncoding.encode(query)) else {
            throw BrokerError(
                .illegalConfiguration,
                URLTarget(endpoint) == nil
                    ? "The provider's endpoint is not a usable URL."
                    : "The provider takes the parameters of this request in its address, which is too short for them.")
        }
        self.init(
            method: method, url: url, fields: ["Accept": "application/json", "User-Agent": "token-broker"],
            pins: try PinSet.inForce(server.pinnedCertificates, at: url),
            avoidsListedNetworks: url.isNamed(byResource: server.namedBy))
        proxy = try OutboundProxy.inForce(server.outboundProxy)
        self.fields.add(server.requestHeaders)
    }

    /// A GET request to a tenant's provider, with the tenant's pins and header fields.
    /// - Throws: `illegal_configuration` where the pins are not usable.
    init(
        get url: URLTarget, _ fields: Fields, for configuration: TenantConfiguration, timeLimit: Duration
    ) throws(BrokerError) {
        self.init(
            method: .get, url: url, fields: fields, pins: try PinSet.inForce(configuration.effectivePins, at: url),
            timeLimit: timeLimit, avoidsListedNetworks: url.isNamed(byResource: configuration.protectedResource))
        proxy = try OutboundProxy.inForce(configuration.outboundProxy)
        self.fields.add(configuration.requestHeaders)
    }

    /// The parameters in the form of an HTML form: those of the body, or the query of a request without a body.
    var parameters: [UInt8] {
        if body.first == UInt8(ascii: "{"), let members = (try? JSONValue(parsing: body))?.object {
            let pairs = members.compactMap { name, value in value.string.map { FormEncoding.Pair(name, $0) } }
            return Array(FormEncoding.encode(pairs).utf8)
        }
        guard body.isEmpty else { return body }
        let parts = WireText(url.pathAndQuery).split(at: "?", limit: 2)
        return parts.count == 2 ? Array(parts[1].utf8) : []
    }
}

extension URLTarget {
    /// Whether an address was named by a resource, or by what that has named, and not by the operator, who has named the resource's
    /// own host. The private networks that he has listed for his providers are not for such addresses.
    /// - Parameter resource: the address of the resource; nil for a provider that the operator has named.
    func isNamed(byResource resource: String?) -> Bool {
        guard let resource else { return false }
        return URLTarget(resource)?.origin != origin
    }
}

extension ClientRequest {
    /// Adds fields, which replace those of the same names.
    mutating func add(_ headers: RequestHeaders) { fields.add(headers) }
}

extension ClientResponse {
    /// Whether the answer says that its body is a form.
    var isForm: Bool {
        fields["Content-Type"].map { MediaType($0).name == Self.form } ?? false
    }

    private static let form: WireText = "application/x-www-form-urlencoded"
}

extension Fields {
    /// Adds what the operator has the broker send to a provider. `User-Agent` is replaced by it.
    fileprivate mutating func add(_ headers: RequestHeaders) {
        for field in headers.fields { set(field.name.text, field.value.text) }
    }
}
