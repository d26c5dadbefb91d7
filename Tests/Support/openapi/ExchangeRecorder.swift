import BrokerCore
import ExternalText
import FoundationEssentials
package import HTTPCodec
import HTTPServer
import JSON
package import Reactor
import Synchronization
import TokenBroker

/// Remembers what brokers answered, to be held against openapi.yaml.
package final class ExchangeRecorder: Sendable {
    private let lines = Mutex<[[UInt8]]>([])

    package init() {}

    /// `BrokerHarness.call`, remembered.
    @discardableResult
    package func call(
        _ broker: BrokerHarness, _ method: Method, _ target: String, key: String? = BrokerHarness.adminKey,
        tenant: String? = nil, body: String? = nil, fields: Fields = [:], source: NetworkSource = .unknown,
        waited: Duration = .zero
    ) async -> BrokerHarness.Answer {
        let answer = await broker.call(
            method, target, key: key, tenant: tenant, body: body, fields: fields, source: source, waited: waited)
        record(method, target, body ?? "", answer, isRefused: false)
        return answer
    }

    /// What the server is told to answer to a request that it does not take.
    package func refuse(_ broker: BrokerHarness, _ method: Method, _ target: String, _ status: Status) {
        let path = String(target.prefix { $0 != "?" })
        let response = broker.service.response(toFault: status, detail: "The server does not take this.", path: path)
        record(method, target, "", BrokerHarness.Answer(response), isRefused: true)
    }

    private func record(
        _ method: Method, _ target: String, _ body: String, _ answer: BrokerHarness.Answer, isRefused: Bool
    ) {
        let line = JSONWriter.object { json in
            json.member("method", method.name)
            json.member("target", target)
            json.member("body", body)
            json.member("refused", isRefused)
            json.member("status", answer.status)
            json.name("fields")
            json.array { json in
                for field in answer.fields.all {
                    json.object { json in
                        json.member("name", field.name.text)
                        json.member("value", field.value.text)
                    }
                }
            }
            json.member("answer", answer.text)
        }
        lines.withLock { $0.append(line) }
    }

    /// What is not as openapi.yaml describes it, and what it describes that never happened.
    package func faults() async throws -> [String] {
        let lines = lines.withLock { $0 }
        let path = FileManager.default.temporaryDirectory.path + "/exchanges-" + UUID().uuidString
        defer { try? FileManager.default.removeItem(atPath: path) }
        try Data(lines.joined(separator: [UInt8(ascii: "\n")])).write(to: URL(filePath: path))
        let result = try await OpenAPIChecker.run("answers", path)
        guard result["count"]?.integer == Int64(lines.count) else {
            throw OpenAPIChecker.Failure(description: "contract.py has not seen every exchange")
        }
        return OpenAPIChecker.texts(result["faults"])
    }
}
