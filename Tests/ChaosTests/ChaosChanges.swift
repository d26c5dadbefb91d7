import BrokerTesting
import Cryptography
import DevelopmentProvider
import Synchronization

/// What operators change while a run goes on: tenants' scopes, the client's secret, master keys.
final class ChaosChanges: Sendable {
    static let publicClient = "app"
    static let secretClient = "app-with-secret"

    private struct State {
        /// The tenants that have the scope `w_usr`.
        var wide: Set<Int> = []
        var secretNumber = 1
        /// The first one seals.
        var masterKeys = [BrokerHarness.masterKeys]
    }

    private let state = Mutex(State())
    /// What the tenants' configurations say of the provider.
    private let graceSeconds: Int

    init(graceSeconds: Int) {
        self.graceSeconds = graceSeconds
    }

    /// The last two of five tenants have a client with a secret.
    static func clientID(of tenant: Int) -> String { tenant % 5 >= 3 ? secretClient : publicClient }

    /// Two of five tenants have their access tokens verified, one without a secret and one with it.
    private static func verifies(_ tenant: Int) -> Bool { [1, 3].contains(tenant % 5) }

    var secret: String { state.withLock { Self.secret($0.secretNumber) } }

    /// The value of the variable.
    var masterKeys: String { state.withLock { $0.masterKeys.joined(separator: ",") } }

    private static func secret(_ number: Int) -> String { "secret-number-\(number)" }

    /// What `PUT /tenants/{tenant}` is given.
    func configuration(of tenant: Int, at providerURL: String) -> String {
        let (isWide, secret) = state.withLock { ($0.wide.contains(tenant), Self.secret($0.secretNumber)) }
        let clientID = Self.clientID(of: tenant)
        let secretMember = clientID == Self.secretClient ? #""client_secret": "\#(secret)", "# : ""
        let verification =
            #""token_verification": {"access_token": {"scope": "r_usr"}, "jwks": "\#(providerURL)/v1/jwks"}, "#
        return #"""
            {"client_id": "\#(clientID)", \#(secretMember)\#(Self.verifies(tenant) ? verification : "")"scopes": ["r_usr"\#(isWide ? #", "w_usr""# : "")],
             "reuse_grace": \#(graceSeconds), "login_service_base_uri": "\#(providerURL)", "auth_service_base_uri": "\#(providerURL)/v1"}
            """#
    }

    /// Gives the tenant another scope, or takes it away. Returns whether it has it now.
    func changeScopes(of tenant: Int) -> Bool {
        state.withLock { state in
            if state.wide.remove(tenant) == nil { state.wide.insert(tenant) }
            return state.wide.contains(tenant)
        }
    }

    /// Makes a new secret, which the provider takes from now on beside the one before.
    func changeSecret(at provider: DevelopmentProvider) {
        let (old, new) = state.withLock { state in
            state.secretNumber += 1
            return (Self.secret(state.secretNumber - 1), Self.secret(state.secretNumber))
        }
        provider.configure { configuration in
            for place in configuration.clients.indices where configuration.clients[place].id == Self.secretClient {
                configuration.clients[place].secret = new
                configuration.clients[place].formerSecrets = [old]
            }
        }
    }

    /// Adds a new key behind the others, so that all replicas can open what it is to seal.
    /// - Parameter bytes: 32 of them.
    func addMasterKey(_ bytes: [UInt8]) {
        state.withLock { state in
            state.masterKeys.append("k\(state.masterKeys.count + 1):\(Base64.encode(bytes))")
        }
    }

    /// Puts the key that was added last in front, where it seals.
    func useMasterKey() {
        state.withLock { state in
            state.masterKeys.insert(state.masterKeys.removeLast(), at: 0)
        }
    }
}
