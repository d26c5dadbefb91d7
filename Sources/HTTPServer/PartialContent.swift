import HTTPCodec
import Reactor

/// The content of a request, while it arrives.
final class PartialContent {
    let head: ReceivedHead
    /// The request that was admitted before its content arrived; nil where the content is dropped.
    let admitted: AdmittedRequest?
    /// Whether the content comes without a known caller.
    let isOpen: Bool
    let began: MonotonicInstant
    /// What has arrived, chunk framing removed. It grows with what arrives: a declared length reserves nothing.
    private(set) var bytes: [UInt8] = []
    /// For content of a known length: what is still to come.
    private var remaining = 0
    /// For chunked content.
    private var decoder: ChunkedDecoder?

    /// - Parameters:
    ///   - admitted: nil drops the content, as is done with what a GET or a HEAD sends (RFC 9110 §9.3.1).
    ///   - limit: of the content, in bytes. Throws `contentTooLarge` where more than that is declared.
    init(
        of head: ReceivedHead, admitted: AdmittedRequest?, limit: Int, overheadLimit: Int, isOpen: Bool,
        at now: MonotonicInstant
    ) throws(RequestFault) {
        switch head.framing {
        case .none: break
        case .length(let declared):
            guard declared <= limit else { throw .contentTooLarge }
            remaining = declared
        case .chunked: decoder = ChunkedDecoder(bodyLimit: limit, overheadLimit: overheadLimit)
        }
        self.head = head
        self.admitted = admitted
        self.isOpen = isOpen
        began = now
    }

    /// Reads from `start` on. Returns whether the content is complete, and where reading stopped.
    func read(_ input: Span<UInt8>, from start: Int) throws(RequestFault) -> (isComplete: Bool, end: Int) {
        if decoder == nil {
            let end = start + min(remaining, input.count - start)
            keep(input, start..<end)
            remaining -= end - start
            return (remaining == 0, end)
        }
        var index = start
        while let step = try nextChunkStep(input, from: index) {
            switch step {
            case .data(let range):
                keep(input, range)
                index = range.upperBound
            case .complete(let end): return (true, end)
            case .needsMore: return (false, input.count)
            }
        }
        return (false, input.count)
    }

    /// Removes what has arrived, for a reader of the content that does not wait for its end.
    func take() -> [UInt8] {
        defer { bytes = [] }
        return bytes
    }

    private func keep(_ input: Span<UInt8>, _ range: Range<Int>) {
        if admitted != nil { bytes.append(copying: input.extracting(range)) }
    }

    private func nextChunkStep(
        _ input: Span<UInt8>, from index: Int
    ) throws(RequestFault) -> ChunkedDecoder.Step? {
        do throws(ChunkedDecoder.Fault) {
            return try decoder?.next(input, from: index)
        } catch {
            switch error {
            case .malformed: throw .chunk
            case .overheadTooLarge: throw .chunkOverheadTooLarge
            case .bodyTooLarge: throw .contentTooLarge
            }
        }
    }
}

/// A request whose content the handler has agreed to read.
struct AdmittedRequest {
    /// Without its content.
    let request: Request
    let number: RequestNumber
}
