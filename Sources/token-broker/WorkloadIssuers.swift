import BrokerCore
import ExternalText
import HTTPSClient
import JSON
import OAuth

/// Reads the issuers of workloads' tokens: `[{"issuer": "https://…", "audience": "…", "jwks_uri": "https://…"}]`.
enum WorkloadIssuers {
    /// What is wrong with the list, without its values.
    struct Fault: Error, CustomStringConvertible {
        let description: String
    }

    private static let longestAudience = 255

    /// - Parameter allowsHTTP: whether the addresses may be of http.
    static func read(_ bytes: [UInt8], allowsHTTP: Bool) throws(Fault) -> [WorkloadIssuer] {
        guard let elements = (try? JSONValue(parsing: bytes))?.array else {
            throw Fault(description: "must be a JSON array of objects")
        }
        guard (1...WorkloadTokens.mostIssuers).contains(elements.count) else {
            throw Fault(description: "must have 1 to \(WorkloadTokens.mostIssuers) members")
        }
        var issuers: [WorkloadIssuer] = []
        for (index, element) in elements.enumerated() {
            var reader = ObjectReader(element, at: "/\(index)")
            let issuer = reader.requiredString("issuer", limit: CallerIdentity.longestIssuer)
            let audience = reader.requiredString("audience", limit: longestAudience)
            let keys = reader.string("jwks_uri")
            let scheme = allowsHTTP ? "http or https" : "https"
            if let issuer, !CallerIdentity.isIssuer(issuer) || !isAllowed(issuer, allowsHTTP) {
                reader.note("issuer", "must be an address of \(scheme) without a query and a fragment")
            }
            if let keys, !isAllowed(keys, allowsHTTP) { reader.note("jwks_uri", "must be an address of \(scheme)") }
            if let issuer, issuers.contains(where: { $0.issuer == issuer }) {
                reader.note("issuer", "is that of another member")
            }
            do throws(BrokerError) {
                try reader.finish()
            } catch {
                let faults = error.faults.map { "\($0.pointer.isEmpty ? "/\(index)" : $0.pointer) \($0.detail)" }
                throw Fault(description: "has faults: " + faults.joined(separator: "; "))
            }
            guard let issuer, let audience else { continue }
            issuers.append(WorkloadIssuer(issuer: issuer, audience: audience, keys: keys?.text))
        }
        return issuers
    }

    private static func isAllowed(_ address: WireText, _ allowsHTTP: Bool) -> Bool {
        guard let url = URLTarget(address.text) else { return false }
        return url.scheme == .https || allowsHTTP
    }
}
