import ExternalText
import JSON

/// What a file for `token-broker apply` says: `tenants: {name: {…, keys: {…}, clients: {…}}}` and `providers: {name: {…}}`.
struct ApplyFile: Sendable {
    final class Tenant: Sendable {
        let name: String
        /// Of the configuration.
        let members: JSONValue
        let keys: [(name: String, members: JSONValue)]
        let clients: [(name: String, members: JSONValue)]

        init(
            _ name: String, _ members: JSONValue, keys: [(name: String, members: JSONValue)],
            clients: [(name: String, members: JSONValue)]
        ) {
            self.name = name
            self.members = members
            self.keys = keys
            self.clients = clients
        }
    }

    let providers: [(name: String, members: JSONValue)]
    let tenants: [Tenant]

    private static let keyMembers: Set<WireText> = ["permissions", "storage_keys", "tenants", "identity", "expires_in"]

    /// - Throws: `refused`, with the line or the place of what is wrong.
    init(_ text: String, path: String) throws(CommandError) {
        let value = try Self.value(text, path)
        do throws(Fault) {
            try Self.refuseOthers(value, ["providers", "tenants"], at: "")
            providers = try Self.objects(value["providers"], at: "providers")
            var tenants: [Tenant] = []
            for (name, members) in try Self.objects(value["tenants"], at: "tenants") {
                let place = "tenants.\(name)"
                var configuration = members.object ?? [:]
                configuration["keys"] = nil
                configuration["clients"] = nil
                let keys = try Self.objects(members["keys"], at: place + ".keys")
                for key in keys { try Self.refuseOthers(key.members, Self.keyMembers, at: "\(place).keys.\(key.name)") }
                tenants.append(
                    Tenant(
                        name, .object(configuration), keys: keys,
                        clients: try Self.objects(members["clients"], at: place + ".clients")))
            }
            self.tenants = tenants
        } catch {
            throw CommandError(.refused, TextTable.shown("\(path): \(error.reason)"), next: "token-broker apply --help")
        }
    }

    private struct Fault: Error {
        let reason: String
    }

    /// JSON where the text begins as an object of it does, else YAML.
    private static func value(_ text: String, _ path: String) throws(CommandError) -> JSONValue {
        if let value = try? JSONValue(parsing: Array(text.utf8)) { return value }
        do throws(YAMLReader.Fault) {
            return try YAMLReader.value(of: text)
        } catch {
            throw CommandError(
                .refused, TextTable.shown("\(path), \(error)"), next: "token-broker apply --help")
        }
    }

    /// Objects by their names, sorted.
    private static func objects(_ value: JSONValue?, at place: String) throws(Fault) -> [(
        name: String, members: JSONValue
    )] {
        guard let value, value != .null else { return [] }
        guard let members = value.object else { throw Fault(reason: "\(place) must have a name for each of them") }
        var objects: [(name: String, members: JSONValue)] = []
        for (name, members) in members.sorted(by: { $0.key < $1.key }) {
            guard case .object = members else {
                throw Fault(
                    reason: "\(place).\(name.text) must have members; nothing is deleted by apply")
            }
            objects.append((name: name.text, members: members))
        }
        return objects
    }

    private static func refuseOthers(_ value: JSONValue, _ known: Set<WireText>, at place: String) throws(Fault) {
        guard let members = value.object else { throw Fault(reason: "there are no tenants and no providers in it") }
        guard let other = members.keys.filter({ !known.contains($0) }).min() else { return }
        let complaint = Nearest.complaint(about: other.text, "member", among: known.map(\.text).sorted())
        throw Fault(reason: (place.isEmpty ? "" : "\(place): ") + complaint)
    }
}
