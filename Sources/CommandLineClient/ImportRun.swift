import HTTPCodec
import JSON

/// Where the lines of an import come from.
enum ImportSource: Sendable {
    case lines(NDJSONLines)
    case items(ArraySlice<ImportItem>)

    mutating func next() throws(CommandError) -> ImportItem? {
        switch self {
        case .items(var items):
            let item = items.popFirst()
            self = .items(items)
            return item
        case .lines(var lines):
            // Not held twice, so that a line is not a copy of the whole piece.
            self = .items([])
            defer { self = .lines(lines) }
            return try lines.next()
        }
    }
}

/// What an import is to do.
struct ImportPlan: Sendable {
    var replaces = false
    var verifies = false
    var isDry = false
    var printsJSON = false
    /// How many lines or entries there are; lines that are empty may be among them.
    var total = 0
    /// Where the state is kept; nil for nowhere.
    var statePath: String?
    let order: ImportState.Order

    var query: [(name: String, value: String)] {
        (replaces ? [("replace", "true")] : []) + (verifies ? [("verify", "true")] : [])
            + (isDry ? [("dry_run", "true")] : [])
    }

    /// How many lines a request has. A provider is asked for each line that is verified.
    var longestBatch: Int { verifies ? 100 : 1000 }
}

/// One import: sends lines in batches, one after another, and tells what became of them. After each batch it keeps how far it is.
final class ImportRun {
    private let api: BrokerAPI
    private let plan: ImportPlan
    private let terminal: any Terminal
    private let bar: ProgressBar
    private(set) var state: ImportState
    /// Whether the state is in its file.
    private var isStateKept: Bool

    /// The most that a request has, in bytes; a longer line is sent alone.
    private static let longestRequest = 1 << 20

    /// - Parameter done: what an earlier run has done.
    init(_ api: BrokerAPI, _ plan: ImportPlan, _ terminal: any Terminal, done: ImportTally) {
        self.api = api
        self.plan = plan
        self.terminal = terminal
        state = ImportState(order: plan.order, tally: done)
        isStateKept = done.all > 0
        bar = ProgressBar(terminal, total: plan.total, done: done.all)
    }

    func run(_ source: ImportSource) async throws(CommandError) {
        do throws(CommandError) {
            try await work(source)
            bar.clear()
        } catch {
            bar.clear()
            let done = state.tally.all
            if done == 0 || plan.isDry || error.text.isEmpty { throw error }
            throw CommandError(
                error.status,
                error.text + "\n  \(done) were dealt with before. The same command "
                    + (isStateKept ? "goes on with the others." : "begins anew, and finds unchanged what is stored."),
                next: error.next)
        }
    }

    private func work(_ source: ImportSource) async throws(CommandError) {
        var source = source
        for _ in 0..<state.tally.all {
            guard try source.next() != nil else { break }
        }
        var batch: [ImportItem] = []
        var size = 0
        while let item = try source.next() {
            let length = if case .line(let line) = item.content { line.count + 1 } else { 0 }
            if batch.count == plan.longestBatch || !batch.isEmpty && size + length > Self.longestRequest {
                try await take(batch)
                try keep()
                try terminal.checkOutput()
                (batch, size) = ([], 0)
            }
            batch.append(item)
            size += length
        }
        try await take(batch)
        if let path = plan.statePath, isStateKept { ImportState.remove(path) }
    }

    private func keep() throws(CommandError) {
        guard let path = plan.statePath else { return }
        try state.write(path)
        isStateKept = true
    }

    /// Sends the lines of a batch, and tells the outcomes of all of it in their order.
    private func take(_ batch: [ImportItem]) async throws(CommandError) {
        var told = try await outcomes(of: batch)[...]
        if !told.isEmpty, told.allSatisfy(\.isForNow) {
            throw CommandError(
                .tryLater, told.first?.complaint ?? "the broker cannot take lines over now", next: nil)
        }
        let outcomes = batch.map { item in
            if case .line = item.content, let outcome = told.popFirst() { return outcome }
            return ImportOutcome(item: item, told: nil)
        }
        tell(outcomes)
        for outcome in outcomes {
            switch outcome.kind {
            case .imported: state.tally.imported += 1
            case .unchanged: state.tally.unchanged += 1
            case .refused: state.tally.refused += 1
            }
        }
        bar.advance(to: state.tally.all)
    }

    private func outcomes(of batch: [ImportItem]) async throws(CommandError) -> [ImportOutcome] {
        var lines: [ImportItem] = []
        var body: [UInt8] = []
        for item in batch {
            guard case .line(let line) = item.content else { continue }
            lines.append(item)
            body += line
            body.append(0x0a)
        }
        if lines.isEmpty { return [] }
        let answer = try await api.send(
            BrokerAPI.Request(
                .post, "/credentials/import", query: plan.query, fields: ["Content-Type": "application/x-ndjson"],
                body: body, limit: .seconds(600), form: .lines))
        return try ImportOutcome.read(answer.body, of: lines)
    }

    private func tell(_ outcomes: [ImportOutcome]) {
        if plan.printsJSON, !outcomes.isEmpty {
            bar.clear()
            terminal.print(json: outcomes.flatMap(\.encoded))
        }
        for outcome in outcomes {
            let notes = outcome.kind == .refused ? [] : outcome.item.notes
            let lines =
                notes.map { TextTable.shown("\(outcome.item.name ?? "line \(outcome.item.number)"): note: \($0)") }
                + [outcome.complaint].compactMap(\.self)
            if lines.isEmpty { continue }
            bar.clear()
            terminal.note(lines.joined(separator: "\n"))
        }
    }
}
