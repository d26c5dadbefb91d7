import Cryptography
import HTTPCodec
import HTTPServer

/// The answer of `/docs`: what openapi.yaml says, as a page for people. It runs no script and loads nothing.
enum DescriptionPage {
    static var response: Response {
        Response(
            .ok,
            fields: [
                "Content-Type": "text/html; charset=utf-8",
                // The page has links to documents of other servers, which need not know where it is read.
                "Referrer-Policy": "no-referrer", "Content-Security-Policy": policy,
            ],
            body: OpenAPIDescription.page)
    }

    /// It allows exactly the style in the page.
    private static let policy = LoginPage.policy(
        styleDigest: Base64.encode(SHA256.digest(style(of: OpenAPIDescription.page))), hasForm: false)

    /// The text of the page's style. Empty if it has none.
    private static func style(of page: [UInt8]) -> [UInt8] {
        let (opening, closing) = ("<style>", "</style>")
        guard let start = place(of: opening, in: page[...]) else { return [] }
        let rest = page[(start + opening.utf8.count)...]
        guard let end = place(of: closing, in: rest) else { return [] }
        return Array(rest[..<end])
    }

    private static func place(of text: String, in bytes: ArraySlice<UInt8>) -> Int? {
        bytes.indices.first { bytes[$0...].starts(with: text.utf8) }
    }
}
