import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import Testing
import TokenBroker

/// The page at `/docs`. That it is what openapi.yaml says, Deploy/test checks by `Tests/Support/openapi/page --check`.
@Suite struct `The page that shows the API` {
    private static let page = String(decoding: OpenAPIDescription.page, as: UTF8.self)

    @Test(arguments: ["text/html", "application/json", nil])
    func `is HTML for every caller, without a key`(accept: String?) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.get, "/docs", key: nil, fields: accept.map { ["Accept": $0] } ?? [:])
        #expect(answer.status == 200)
        #expect(answer.fields.values("Content-Type") == ["text/html; charset=utf-8"])
        #expect(answer.fields.values("Referrer-Policy") == ["no-referrer"])
        #expect(answer.text == Self.page)
        let head = await broker.call(.head, "/docs", key: nil)
        #expect(head.status == 200)
        #expect(head.fields["Content-Security-Policy"] == answer.fields["Content-Security-Policy"])
    }

    @Test func `lets a browser apply its own style, and nothing else`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.get, "/docs", key: nil)
        let style = try #require(
            Self.page.split(separator: "<style>", maxSplits: 1).last?.split(separator: "</style>", maxSplits: 1).first)
        #expect(style.hasPrefix(":root{"))
        let digest = Base64.encode(SHA256.digest(Array(style.utf8)))
        #expect(
            answer.fields.values("Content-Security-Policy") == [
                "default-src 'none'; style-src 'sha256-\(digest)'; base-uri 'none'; form-action 'none'; "
                    + "frame-ancestors 'none'"
            ])
        let rest = Self.page.replacing("<style>\(style)</style>", with: "", maxReplacements: 1)
        #expect(rest.utf8.count < Self.page.utf8.count)
        let active = [
            "<script", "<style", "<link", "<img", "<iframe", "<form", "<base", " style=", " src=", " onload=",
        ]
        for text in active { #expect(!rest.contains(text), "\(text)") }
    }

    @Test func `has an anchor for each operation and each schema, and each of its links leads to one`() throws {
        let lines = String(decoding: OpenAPIDescription.bytes, as: UTF8.self).split(separator: "\n")
        let operations = lines.compactMap { line in
            line.hasPrefix("      operationId: ") ? "operation-" + line.dropFirst("      operationId: ".count) : nil
        }
        #expect(operations.count > 70)
        let schemas = lines.drop { $0 != "  schemas:" }.compactMap { line in
            line.hasPrefix("    ") && line.hasSuffix(":") && line.dropFirst(4).first?.isLetter == true
                ? "schema-" + line.dropFirst(4).dropLast() : nil
        }
        #expect(schemas.count > 80)
        let anchors = Self.values(of: "id")
        #expect(Set(anchors).count == anchors.count)
        for name in operations + schemas { #expect(anchors.contains(name[...]), "\(name)") }
        let links = Set(Self.values(of: "href"))
        for link in links where link != "/openapi.yaml" {
            #expect(link.hasPrefix("#") ? anchors.contains(link.dropFirst()) : link.hasPrefix("https://"), "\(link)")
        }
        #expect(links.count > 150)
    }

    /// The values of an attribute, in their order in the page.
    private static func values(of attribute: String) -> [Substring] {
        let parts = page.split(separator: "\"", omittingEmptySubsequences: false)
        return zip(parts, parts.dropFirst()).filter { before, _ in before.hasSuffix(" \(attribute)=") }.map(\.1)
    }

    // A page of this size is read over a slow line in some seconds.
    @Test func `is not longer than half a mebibyte`() {
        #expect(OpenAPIDescription.page.count <= 1 << 19)
    }

    @Test func `takes no parameters, and no other method`() async throws {
        let broker = try await BrokerHarness()
        #expect(await broker.call(.get, "/docs?a=b", key: nil).code == "invalid_request")
        #expect(await broker.call(.post, "/docs", key: nil).code == "method_not_allowed")
        #expect(await broker.call(.get, "/docs/", key: nil).status == 404)
        let operations = Service(broker.broker, scope: .operations)
        #expect(await operations.respond(to: Request(method: .get, path: "/docs")).status == .notFound)
    }
}
