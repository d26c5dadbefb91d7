import CredentialStore
import Cryptography
import ExternalText
package import OAuth

/// Challenges, which an app signs to prove that it has a key.
///
/// A challenge says itself until when it is valid and for what, and has the broker's authentication code. So issuing challenges
/// stores nothing, however many are asked for. What is stored is the use of a challenge, until the challenge has expired: so it
/// is used once, on any replica.
///
/// Safe to use from any task.
package struct AppChallenges: Sendable {
    package enum Purpose: String, Sendable, CaseIterable {
        case appToApp = "app2app_request"
        case biometric = "biometric_request"

        fileprivate var number: UInt8 {
            switch self {
            case .appToApp: 1
            case .biometric: 2
            }
        }
    }

    package struct Issued: Sendable {
        /// 32 characters of Crockford's Base 32.
        package let token: String
        package let expires: Timestamp
    }

    /// For how long a challenge is valid.
    package static let validity: Duration = .seconds(300)
    /// For how long after that its use is remembered: by as much as two clocks may differ.
    private static let memory: Duration = .seconds(300)
    private static let label = "challenge"
    private static let codeBytes = 10
    /// The expiry in seconds, the purpose, and random octets.
    private static let messageBytes = 10
    private static let storeRetries = 3

    let vault: Vault
    let time: any Time

    /// - Throws: `internal_error` where the system's random source fails.
    package func issue(for purpose: Purpose) throws(BrokerError) -> Issued {
        let seconds = time.now.advanced(by: Self.validity).milliseconds / 1000
        let random: [UInt8]
        do {
            random = try SecureRandom.bytes(Self.messageBytes - 5)
        } catch {
            throw BrokerError(.internalError, "The system's random source failed.")
        }
        let message = [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: seconds >> $0) } + [purpose.number] + random
        let code = vault.authenticationCode(of: message, label: Self.label, count: Self.codeBytes)
        return Issued(token: Crockford.encode(message + code), expires: Timestamp(milliseconds: seconds * 1000))
    }

    /// Uses a challenge. It cannot be used again, also where its purpose is another one.
    /// - Returns: whether it was good for the purpose.
    /// - Throws: `temporarily_unavailable` where the store does not answer. It is not known then whether the challenge was used.
    func use(_ token: WireText, for purpose: Purpose) async throws(AppError) -> Bool {
        guard let bytes = Crockford.decode(token), bytes.count == Self.messageBytes + Self.codeBytes else {
            return false
        }
        let message = Array(bytes.prefix(Self.messageBytes))
        guard vault.isAuthentic(Array(bytes.dropFirst(Self.messageBytes)), of: message, label: Self.label) else {
            return false
        }
        let seconds = message.prefix(4).reduce(Int64(0)) { $0 << 8 | Int64($1) }
        let expires = Timestamp(milliseconds: seconds * 1000)
        guard expires > time.now else { return false }
        let id = RecordID(.usedChallenge, .broker, key: Base64URL.encode(SHA256.digest(bytes)))
        let record = OpenRecord(
            id: id, version: 1, content: SecretBytes([]), expires: expires.advanced(by: Self.memory))
        do throws(StoreError) {
            let use = try vault.prepare([.insert(record)])
            try await vault.commit(use, retrying: .times(Self.storeRetries), by: time)
        } catch .conflict {
            // It was used before.
            return false
        } catch {
            throw AppError(BrokerError(error))
        }
        return message[4] == purpose.number
    }
}

/// Crockford's Base 32 of whole groups of five octets: digits and upper-case letters without I, L, O and U.
enum Crockford {
    private static let alphabet = Array("0123456789ABCDEFGHJKMNPQRSTVWXYZ".utf8)

    static func encode(_ bytes: [UInt8]) -> String {
        precondition(bytes.count % 5 == 0, "whole groups only")
        var text: [UInt8] = []
        for start in stride(from: 0, to: bytes.count, by: 5) {
            let group = bytes[start..<start + 5].reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
            for shift in stride(from: 35, through: 0, by: -5) {
                text.append(alphabet[Int(group >> UInt64(shift)) & 31])
            }
        }
        return String(decoding: text, as: UTF8.self)
    }

    /// Nil for a text of another form.
    static func decode(_ text: WireText) -> [UInt8]? {
        guard text.count % 8 == 0, text.count <= 128 else { return nil }
        var bytes: [UInt8] = []
        var (group, digits): (UInt64, Int) = (0, 0)
        for byte in text.utf8 {
            guard let value = alphabet.firstIndex(of: byte) else { return nil }
            group = group << 5 | UInt64(value)
            digits += 1
            if digits == 8 {
                for shift in stride(from: 32, through: 0, by: -8) {
                    bytes.append(UInt8(truncatingIfNeeded: group >> UInt64(shift)))
                }
                (group, digits) = (0, 0)
            }
        }
        return bytes
    }
}
