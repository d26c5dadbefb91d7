import CFuzzing
import Glibc

/// A reader of the project that gets bytes from outside or from a disk. What is wrong with it ends the program by SIGABRT, as
/// LLVM's libFuzzer wants it.
enum FuzzTarget: String, CaseIterable {
    /// The head of a request.
    case request
    /// A response: head, and content by each framing.
    case response
    /// The chunked transfer coding.
    case chunked
    /// Queries and forms.
    case form
    /// JSON texts.
    case json
    /// A signed token in its compact form.
    case jws
    /// The claims of a token with a good signature.
    case claims
    /// A JWK set, and a private JWK.
    case keys
    /// A private key as PEM text, and a public one as SubjectPublicKeyInfo.
    case pem
    /// The body of a provider's answer, and documents about apps.
    case answer
    /// The values of header fields: dates, `Retry-After`, media types, bearer tokens.
    case header
    /// URLs, links between apps, redirects and network addresses.
    case address
    /// The configuration of a tenant, as an operator sends it and as it is stored.
    case tenant
    /// What stands in a sealed record; the first octet says of which kind.
    case record
    /// A file of the embedded store; the first octet says which.
    case store

    // Readers with a known fault, which the tests hold this program to.
    case faultyCrash = "faulty-crash"
    case faultyGrowth = "faulty-growth"
    case faultyCost = "faulty-cost"

    nonisolated(unsafe) static var chosen = FuzzTarget.request

    var isFaulty: Bool { rawValue.utf8.starts(with: "faulty-".utf8) }

    /// Octets up to which inputs are made and grown: what the reader's callers let through, or enough to see what grows.
    var longest: Int {
        let enough =
            switch self {
            case .request: 15_000
            case .header, .address: 8000
            case .jws, .claims, .pem, .tenant: 48_000
            default: 1 << 18
            }
        #if DEBUG
            return min(enough, 1 << 16)
        #else
            return enough
        #endif
    }

    /// How many ways of growing are tried of a file.
    private static let growths: UInt64 = 12
    /// Of the inputs that are made, one of so many is grown.
    private static let grownShare: UInt64 = 256

    /// Reads the input, and ends the program where a reader disagrees with itself, costs too much, or costs more than in
    /// proportion to the size when the input is grown.
    /// - Parameter isFile: whether the input is one of the corpus, of which all ways of growing are tried.
    func judge(_ bytes: [UInt8], isFile: Bool) {
        watch(bytes) {
            let used = CostOracle.time { read(bytes) }
            if let fault = CostOracle.fault(of: bytes.count, first: used, { read(bytes) }) { fail(fault) }
        }
        if isFile {
            for number in 0..<Self.growths { grow(bytes, number) }
        } else {
            var hash: UInt64 = 0xcbf2_9ce4_8422_2325
            for byte in bytes { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 }
            hash ^= hash >> 29
            if hash.isMultiple(of: Self.grownShare) { grow(bytes, hash / Self.grownShare % 1000) }
        }
    }

    private func grow(_ bytes: [UInt8], _ number: UInt64) {
        if bytes.isEmpty { return }
        let growth = Growth(of: bytes, number: number)
        let large = growth.grown(bytes, to: longest)
        let small = growth.grown(bytes, to: longest / 4)
        watch(large) {
            if let fault = CostOracle.growthFault(small, large, { read($0) }) { fail(fault) }
        }
    }

    /// Lets the input be kept if the program ends meanwhile.
    private func watch(_ bytes: [UInt8], _ body: () -> Void) {
        unsafe bytes.withUnsafeBufferPointer { buffer in
            unsafe cfuzzing_begin(buffer.baseAddress, buffer.count)
            body()
            cfuzzing_begin(nil, 0)
        }
    }

    private func read(_ bytes: [UInt8]) {
        switch self {
        case .request: HTTPReaders.readRequest(bytes)
        case .response: HTTPReaders.readResponse(bytes)
        case .chunked: HTTPReaders.readChunks(bytes)
        case .form: HTTPReaders.readForm(bytes)
        case .header: HTTPReaders.readHeader(bytes)
        case .address: HTTPReaders.readAddress(bytes)
        case .json: DocumentReaders.readJSON(bytes)
        case .answer: DocumentReaders.readAnswer(bytes)
        case .tenant: DocumentReaders.readTenant(bytes)
        case .jws: KeyReaders.readToken(bytes)
        case .claims: KeyReaders.readClaims(bytes)
        case .keys: KeyReaders.readKeys(bytes)
        case .pem: KeyReaders.readKey(bytes)
        case .record: RecordReaders.read(bytes)
        case .store: StoreReader.shared.read(bytes)
        case .faultyCrash: if bytes.starts(with: "fail".utf8) { fail("it begins with the word") }
        case .faultyGrowth:
            var sum: UInt8 = 0
            for place in stride(from: 0, to: bytes.count, by: 64) { for byte in bytes { sum &+= bytes[place] ^ byte } }
            if sum == 1, bytes.isEmpty { fail("no input has a sum") }
        case .faultyCost:
            let end = cfuzzing_processor_time() + CostOracle.base + CostOracle.perByte * Int64(bytes.count) + 1_000_000
            while cfuzzing_processor_time() < end {}
        }
    }
}

/// Ends the program. The fuzzer, or this program's own handler, keeps the input.
func fail(_ reason: String) -> Never {
    print("fuzz: \(unsafe FuzzTarget.chosen.rawValue): \(reason)")
    fflush(nil)
    abort()
}

/// Ends the program unless the condition holds.
func require(_ condition: Bool, _ reason: @autoclosure () -> String) {
    if !condition { fail(reason()) }
}
