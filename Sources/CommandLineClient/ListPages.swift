import ExternalText
import HTTPCodec
import JSON

/// A list that the broker answers in pages.
final class ListPages: Sendable {
    private let path: String
    private let member: WireText
    private let filter: [(name: String, value: String)]
    private let limit: Int

    /// The most elements of a page that the broker answers.
    private static let longestPage = 1000

    /// - Parameters:
    ///   - member: of the answer, with the elements.
    ///   - filter: what else the query says.
    ///   - limit: how many elements are wanted; nil for all.
    init(_ path: String, _ member: WireText, filter: [(name: String, value: String)] = [], limit: Int? = nil) {
        self.path = path
        self.member = member
        self.filter = filter
        self.limit = limit ?? .max
    }

    /// The elements of all pages.
    func elements(_ api: BrokerAPI) async throws(CommandError) -> [JSONValue] {
        var elements: [JSONValue] = []
        try await forEachPage(api) { page in
            elements += page[self.member]?.array ?? []
            return elements.count
        }
        return Array(elements.prefix(limit))
    }

    /// Has each page read, until there is none left or as many elements are read as are wanted.
    /// - Parameter body: returns how many elements are read so far.
    func forEachPage(
        _ api: BrokerAPI, _ body: (JSONValue) throws(CommandError) -> Int
    ) async throws(CommandError) {
        var count = 0
        var cursor: String?
        repeat {
            var query = filter + [(name: "limit", value: String(min(Self.longestPage, limit - count)))]
            if let cursor { query.append((name: "cursor", value: cursor)) }
            let page = try await api.send(BrokerAPI.Request(.get, path, query: query)).json()
            count = try body(page)
            let next = page["next_cursor"]?.string?.text
            if next != nil, next == cursor { throw CommandError(.failed, "the pages of the list do not end") }
            cursor = next
        } while cursor != nil && count < limit
    }
}
