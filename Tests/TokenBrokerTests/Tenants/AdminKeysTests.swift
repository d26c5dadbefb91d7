import BrokerCore
import BrokerTesting
import Cryptography
import HTTPCodec
import Testing
import TokenBroker

@Suite struct `The operator's keys` {
    private static let key = "0123456789abcdef0123456789abcdef"
    private static let other = "fedcba9876543210fedcba9876543210"

    private static func fault(_ text: String) -> AdminKeys.Fault? {
        do throws(AdminKeys.Fault) {
            _ = try AdminKeys(parsing: SecretBytes(utf8: text))
            return nil
        } catch {
            return error
        }
    }

    private static func name(_ text: String) -> AdminName { AdminName(text.utf8)! }

    @Test(arguments: [
        key, "ops:" + key, "ops:\(key),ci:\(other)", "\(key),ci:\(other)", "0-a:" + key,
        String(repeating: "n", count: 63) + ":" + key, "ops:a:b" + key, "abcdefgh" + String(repeating: "x", count: 504),
        "!~" + key, "ops/admin:" + key, "ops/operator:\(key),\(other)", "ops/auditor:\(key),ci/admin:\(other)",
        "ops:a/b:" + key, "/operator" + key,
    ])
    func `are taken by themselves or with names`(text: String) {
        #expect(Self.fault(text) == nil)
    }

    @Test(
        arguments: [
            ("", .malformedKey(.unnamed)), (String(key.dropLast()), .malformedKey(.unnamed)),
            ("ops:" + key.dropLast(), .malformedKey(name("ops"))),
            ("abcdefgh" + String(repeating: "x", count: 505), .malformedKey(.unnamed)),
            (key + " ", .malformedKey(.unnamed)), ("é" + key, .malformedKey(.unnamed)),
            (key + "\u{7f}", .malformedKey(.unnamed)), ("ops:\(key),", .malformedKey(.unnamed)),
            ("Ops:" + key, .malformedName(position: 1)), (":" + key, .malformedName(position: 1)),
            ("-a:" + key, .malformedName(position: 1)), ("\(key), ci:\(other)", .malformedName(position: 2)),
            (String(repeating: "n", count: 64) + ":" + key, .malformedName(position: 1)),
            ("ops:\(key),ops:\(other)", .duplicateName(name("ops"))),
            ("\(key),admin:\(other)", .duplicateName(.unnamed)), ("ops:\(key),ci:\(key)", .duplicateKey(name("ci"))),
            ("\(other),ops/:" + key, .unknownRole(position: 2)), ("ops/Admin:" + key, .unknownRole(position: 1)),
            ("ops/operators:" + key, .unknownRole(position: 1)), ("ops/operator/:" + key, .unknownRole(position: 1)),
            ("ops/operator :" + key, .unknownRole(position: 1)), ("0123456789/x:" + key, .unknownRole(position: 1)),
            ("/operator:" + key, .malformedName(position: 1)), ("Ops/operator:" + key, .malformedName(position: 1)),
            ("ops/operator:" + key, .noAdmin), ("ops/auditor:\(key),ci/operator:\(other)", .noAdmin),
            ("ops/operator:\(key),ops:\(other)", .duplicateName(name("ops"))),
            ("ops/operator:\(key),ci:\(key)", .duplicateKey(name("ci"))),
            ("ops/operator:short", .malformedKey(name("ops"))),
            (String(repeating: "a", count: 32), .guessable(.unnamed)),
            ("ops:" + String(repeating: "abcdefg", count: 5), .guessable(name("ops"))),
        ] as [(String, AdminKeys.Fault)])
    func `are refused where they are weak or ambiguous, and not shown`(text: String, fault: AdminKeys.Fault) {
        #expect(Self.fault(text) == fault)
        #expect(!"\(fault)".contains("0123456789"))
    }

    @Test func `of eight different characters are taken`() {
        #expect(Self.fault(String(repeating: "abcdefgh", count: 4)) == nil)
    }

    @Test func `open the broker each, and the log has the name and not the key`() async throws {
        let keys = try AdminKeys(parsing: SecretBytes(utf8: "ops:\(Self.key),ci:\(Self.other)"))
        let broker = try await BrokerHarness { $0.adminKeys = keys }
        for (key, name) in [(Self.key, "ops"), (Self.other, "ci")] {
            #expect(await broker.call(.get, "/tenants", key: key).status == 200)
            #expect(broker.log.last?.contains(#""admin":"\#(name)""#) == true, "\(broker.log)")
            #expect(await broker.call(.get, "/tenants/none", key: key).status == 404)
            #expect(broker.log.last?.contains(#""admin":"\#(name)""#) == true)
        }
        for key in ["ops:" + Self.key, Self.key.uppercased(), BrokerHarness.adminKey] {
            #expect(await broker.call(.get, "/tenants", key: key).status == 401)
        }
        #expect(!broker.log.joined().contains(Self.key) && !broker.log.joined().contains(Self.other))
    }

    @Test func `that are none let no operator in`() async throws {
        let broker = try await BrokerHarness { $0.adminKeys = nil }
        #expect(await broker.call(.get, "/tenants").status == 401)
        #expect(await broker.call(.get, "/tenants", key: "").status == 401)
    }
}
