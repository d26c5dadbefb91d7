internal import Glibc
internal import HTTPCodec
internal import Reactor
internal import Synchronization

/// Where a worker's requests are answered that need neither their own task nor so much as a look at their fields: those
/// that the shortcut answers, and above all those whose bytes were answered before and whose answer still holds.
///
/// It reads and writes the connections that owe nothing and wait for nothing; whatever else comes up is handed to the
/// worker, with what was read. Every answer leaves, or is handed over, before another connection is looked at.
///
/// On the loop's thread only. Unchecked, because the compiler cannot see that; it holds plain memory instead of objects,
/// because what is done for each of a hundred thousand requests a second is little more than copying their answers, and
/// counting references to objects would cost as much again.
@safe final class FastLane: ReadinessHandler, TurnObserver, @unchecked Sendable {
    /// Answers nothing.
    private final class NoShortcut: Shortcut {
        let generation = Generation()
        func clocks() -> (monotonic: MonotonicInstant, milliseconds: Int64) { (.now, WallClock.milliseconds) }
        func answer(_ bytes: Span<UInt8>, _ answer: inout ShortcutAnswer, _ output: OutputBuffer) {}
        func answered(_ count: Int, kind: Int) {}
        func turnEnded(answers: Int, nanoseconds: Int64) {}
    }

    /// What the lane knows of a connection, by its slot.
    private struct Place {
        var serial: UInt64 = 0
        /// When the connection began, and when the last request was answered here, in nanoseconds of the loop's clock.
        var began: Int64 = 0
        var lastAnswer: Int64 = 0
        var descriptor: CInt = -1
        /// Where the answer to the last request is kept; -1 for nowhere.
        var kept: Int32 = -1
        /// The frame of the last request that had one; -1 for none.
        var frame: Int32 = -1
        /// Likewise the number of its secret.
        var secret: Int32 = -1
        var standing = Standing.closed
        /// Whether it is in one of the lines; what became ready meanwhile.
        var isWaiting = false
        var readiness = Readiness()
    }

    /// Who is to look at a connection that became ready, and when.
    private enum Standing: UInt8 {
        /// The worker, when its turn comes in the slow line.
        case closed
        /// The lane, at once.
        case open
        /// The lane, too, but in the slow line: it had more to read than its portion.
        case heavy
    }

    /// An answer that is kept, with the request that it answers.
    private struct Kept {
        /// In nanoseconds of the shortcut's clock, and the same by the time of day, in milliseconds: a clock may be moved.
        var end: Int64 = .min
        var lastMillisecond: Int64 = .min
        var generation = 0
        /// The second that its date is of.
        var second: Int64 = 0
        /// The time of day that its seconds count down to, and the last one at which they are right, in milliseconds.
        var secondsEnd: Int64 = 0
        var secondsLast: Int64 = .max
        /// 0 in a place that is free.
        var headLength: UInt32 = 0
        var answerLength: UInt32 = 0
        var dateOffset: UInt16 = 0
        var suffixOffset: UInt16 = 0
        /// 0 where there are none.
        var secondsOffset: UInt16 = 0
        var secondsWidth: UInt8 = 0
        var kind: UInt8 = 0
        var closes = false
        /// The hash of the head.
        var hash: UInt64 = 0
        /// The hash of the head that came last without being kept: one is kept when it comes twice in a row, so that what
        /// comes once pushes nothing out.
        var candidate: UInt64 = 0
    }

    /// A request of which one part and a secret may be others, as the shortcut said: what stands before the part, between
    /// both and behind them is kept.
    private struct Frame {
        /// In nanoseconds of the shortcut's clock.
        var end: Int64 = .min
        /// 0 in a place that is free.
        var partStart: UInt32 = 0
        /// Of what stands between the part and the secret, of the secret, and of what stands behind it.
        var middleLength: UInt16 = 0
        var secretLength: UInt16 = 0
        var restLength: UInt16 = 0
        /// What the shortcut said of it.
        var number = 0
        /// The hash of what is kept.
        var hash: UInt64 = 0
        /// As in `Kept`.
        var candidate: UInt64 = 0
        /// The mark of the part and the secret that came last.
        var last: UInt64 = 0
    }

    /// What tells whether a secret may be the one that is kept in a place. Four of them lie together, for the secrets whose
    /// hash leads there.
    private struct Tag {
        var hash: UInt64 = 0
        /// In nanoseconds of the shortcut's clock; 0 in a place that is free.
        var end: Int64 = 0
    }

    /// A secret that is kept, and whose it is.
    @unsafe private struct Secret {
        /// Counted once.
        var holder: Unmanaged<AnyObject>
        var length: Int
        var bytes: (UInt64, UInt64, UInt64, UInt64, UInt64, UInt64) = (0, 0, 0, 0, 0, 0)

        static func bytes(_ secret: UnsafeMutablePointer<Secret>) -> UnsafeMutableRawPointer {
            unsafe UnsafeMutableRawPointer(secret) + 16
        }
    }

    @unsafe private struct State {
        var places: UnsafeMutablePointer<Place>
        var placeCount: Int
        /// Whether the clocks have been read in this turn.
        var areClocksRead = false
        var monotonic: Int64 = 0
        var milliseconds: Int64 = 0
        /// Whether there had been more to do than could be done when this turn began. One turn that takes long is no
        /// overload: the process may not have been let run.
        var isPressed = false
        /// Whether those who could be served at once wait in line, too: where a crowd of them keeps the loop busy.
        var isQueuing = false
        /// Of the turn's answers, by kind, and which kinds there were.
        var counts: UnsafeMutablePointer<Int>
        var kinds: UInt32 = 0
        var began = MonotonicInstant(nanoseconds: 0)
        /// When the one of those who were answered in this turn began to wait who did so first.
        var earliest = MonotonicInstant(nanoseconds: 0)
        var keptCount = 0
        var frameCount = 0
        var secretCount = 0
        var isMemoryTaken = false
        var isClosed = false
        /// Those who are served at once, where the loop has had no pause for long; else it is empty.
        var fast = WaitingLine()
        /// Those whose turn may take longer.
        var slow = WaitingLine()
    }

    /// How a turn at a connection ended.
    enum Outcome {
        /// Everything was answered, and the answers are with the kernel.
        case done
        /// So it is, and there may be more to read.
        case portionTaken
        /// The worker is to go on: see `Remainder`.
        case handOver
    }

    /// What is left for the worker when the lane hands a connection over.
    struct Remainder {
        /// What was read and not answered, within the lane's input.
        var input = 0..<0
        /// Whether the kernel may have more to read. It may have where the lane has not looked at all.
        var mayHaveInput = true
        /// What of the output has left; the rest has not.
        var sent = 0
        /// Whether the last answer closes the connection.
        var closes = false
        /// The connection is broken.
        var hasFailed = false

        /// Takes note of what a send came to: bytes, or -1 with the reason in `errno`, which is read first.
        mutating func note(_ result: Int) {
            let number = errno
            sent = max(0, result)
            hasFailed = result < 0 && number != EAGAIN && number != EWOULDBLOCK && number != EINTR
        }
    }

    /// Goes on where the lane does not.
    weak var worker: Worker?
    /// Where every read of the worker lands first, too.
    let input: InputBuffer
    let output: OutputBuffer
    private(set) var remainder = Remainder()
    private let loop: EventLoop
    private let stamp: ResponseStamp
    private let shortcut: any Shortcut
    private let generation: Generation
    private let counters: WorkerCounters
    private let unsentBytes: Int
    /// In nanoseconds; see `ServerConfiguration`.
    private let turnBudget: Int64
    private let overloadTime: Int64
    /// Nobody outside can tell which heads share a place, or make two that have one hash.
    private let seed: UInt64
    private let state: UnsafeMutablePointer<State>
    private let kept: UnsafeMutablePointer<Kept>
    private let memory: UnsafeMutableRawPointer
    private let frames: UnsafeMutablePointer<Frame>
    private let frameMemory: UnsafeMutableRawPointer
    /// Both so that four tags, and a secret, are in one line of the processor's cache: of thousands of tenants none is in
    /// it when it is asked for.
    private let tags: UnsafeMutablePointer<Tag>
    private let secrets: UnsafeMutablePointer<Secret>
    private let tagMemory: UnsafeMutableRawPointer
    /// A bit for each place of a secret that is taken.
    private let takenSecrets: UnsafeMutablePointer<UInt64>

    private static let keptPlaces = 512
    /// A power of two.
    static let framePlaces = 256
    /// A power of two, of which so many lie together.
    private static let secretPlaces = 32_768
    private static let tagsTogether = 4
    /// In bytes.
    private static let cacheLine = 64
    /// In bytes, which `Secret` has: an API key has 46.
    private static let longestSecret = 48
    private static let longestHead = 640
    private static let longestAnswer = 2432
    /// In bytes; no head is shorter, and nothing that tells one apart from others.
    private static let leastCompared = 16
    private static var stride: Int { longestHead + longestAnswer }
    /// How many of the fast line are served in a turn, before the kernel is asked who else has come.
    private static let fastInTurn = 16
    /// For how long the slow line is served in a turn, in nanoseconds: about what three of the fast take.
    private static let slowInTurn: Int64 = 25_000
    /// How many bytes of a connection's requests are read before others have their turn.
    private static let portion = 8192
    /// Room for one more answer once as much is unsent as a connection may have.
    private static let outputReserve = 65_536

    init(
        loop: EventLoop, input: InputBuffer, stamp: ResponseStamp, shortcut: (any Shortcut)?, counters: WorkerCounters,
        configuration: ServerConfiguration
    ) {
        let isClosed = shortcut == nil
        let shortcut = shortcut ?? NoShortcut()
        self.loop = loop
        self.input = input
        self.stamp = stamp
        self.shortcut = shortcut
        self.counters = counters
        unsentBytes = configuration.unsentBytes
        turnBudget = configuration.turnBudget.nanoseconds
        overloadTime = configuration.overloadTime.nanoseconds
        var random = SystemRandomNumberGenerator()
        seed = random.next()
        generation = shortcut.generation
        output = OutputBuffer(capacity: unsentBytes + Self.outputReserve, stamp: stamp)
        unsafe state = .allocate(capacity: 1)
        unsafe state.initialize(
            to: State(
                places: .allocate(capacity: 64), placeCount: 64, counts: .allocate(capacity: ShortcutAnswer.kinds),
                isClosed: isClosed))
        unsafe state.pointee.places.initialize(repeating: Place(), count: 64)
        unsafe state.pointee.counts.initialize(repeating: 0, count: ShortcutAnswer.kinds)
        unsafe kept = .allocate(capacity: Self.keptPlaces)
        unsafe kept.initialize(repeating: Kept(), count: Self.keptPlaces)
        // The kernel gives the pages of a block of this size as they are written to.
        unsafe memory = .allocate(byteCount: Self.keptPlaces * Self.stride, alignment: 4096)
        unsafe frames = .allocate(capacity: Self.framePlaces)
        unsafe frames.initialize(repeating: Frame(), count: Self.framePlaces)
        unsafe frameMemory = .allocate(byteCount: Self.framePlaces * Self.longestHead, alignment: 4096)
        // Zeros are free places, and pages that nobody has written to take no memory.
        guard
            let zeros = unsafe calloc(Self.secretPlaces * MemoryLayout<Tag>.stride + Self.cacheLine, 1)
        else { preconditionFailure("no memory for the fast lane") }
        unsafe tagMemory = zeros
        unsafe tags = zeros.alignedUp(toMultipleOf: Self.cacheLine)
            .bindMemory(to: Tag.self, capacity: Self.secretPlaces)
        let secretBytes = unsafe Self.secretPlaces * MemoryLayout<Secret>.stride
        unsafe secrets = UnsafeMutableRawPointer.allocate(byteCount: secretBytes, alignment: Self.cacheLine)
            .bindMemory(to: Secret.self, capacity: Self.secretPlaces)
        unsafe takenSecrets = .allocate(capacity: Self.secretPlaces / 64)
        unsafe takenSecrets.initialize(repeating: 0, count: Self.secretPlaces / 64)
    }

    deinit {
        wipeAll()
        unsafe state.pointee.places.deallocate()
        unsafe state.pointee.counts.deallocate()
        unsafe state.deinitialize(count: 1)
        unsafe state.deallocate()
        unsafe kept.deallocate()
        unsafe memory.deallocate()
        unsafe frames.deallocate()
        unsafe frameMemory.deallocate()
        unsafe free(tagMemory)
        unsafe secrets.deallocate()
        unsafe takenSecrets.deallocate()
    }

    // MARK: The worker's side

    /// A connection begins. What became ready for the slot's last one is not for this one.
    func begin(_ id: ConnectionID, _ descriptor: CInt) {
        if unsafe id.slot >= state.pointee.placeCount { grow(beyond: id.slot) }
        let place = unsafe state.pointee.places + id.slot
        // Its entry in a line stands for this connection now.
        unsafe place.pointee = Place(
            serial: id.serial, began: loop.turnTime.nanoseconds, descriptor: descriptor,
            isWaiting: place.pointee.isWaiting)
    }

    /// The connection owes nothing, waits for its next request, and may be served here from now on.
    func open(_ id: ConnectionID) {
        if unsafe state.pointee.isClosed { return }
        unsafe state.pointee.places[id.slot].standing = .open
    }

    /// The connection is the worker's alone until it is opened again.
    func close(_ id: ConnectionID) {
        unsafe state.pointee.places[id.slot].standing = .closed
    }

    /// Answers nothing any more. The lines go on.
    func closeForGood() {
        unsafe state.pointee.isClosed = true
        for index in unsafe 0..<state.pointee.placeCount { unsafe state.pointee.places[index].standing = .closed }
        wipeAll()
    }

    /// Has the worker look at the connection again when its turn comes, behind others.
    func wait(_ id: ConnectionID) {
        wait(id.slot, [], isFast: false)
    }

    /// The connection asks for what is not answered here: until it is again, its turn is the slow line's.
    func forgetAnswers(_ id: ConnectionID) {
        unsafe state.pointee.places[id.slot].lastAnswer = 0
    }

    /// When a request of the connection was last answered here; nil where none was.
    func lastAnswer(_ id: ConnectionID) -> MonotonicInstant? {
        let place = unsafe state.pointee.places[id.slot]
        guard place.serial == id.serial, place.lastAnswer > 0 else { return nil }
        return MonotonicInstant(nanoseconds: place.lastAnswer)
    }

    /// Takes note of what the worker has taken over.
    func clearRemainder() {
        remainder = Remainder()
        output.removeAll()
    }

    /// Overwrites what is kept and does not hold any more, and what requests and answers have left in the buffers: there
    /// are API keys and tokens in it. Called between turns. Returns whether anything is left.
    func tidy() -> Bool {
        input.wipe()
        output.wipe()
        if unsafe state.pointee.keptCount + state.pointee.frameCount + state.pointee.secretCount == 0 { return false }
        let now = shortcut.clocks().monotonic.nanoseconds
        for index in 0..<Self.keptPlaces where unsafe kept[index].end <= now { wipe(index) }
        for index in 0..<Self.framePlaces where unsafe frames[index].end <= now { wipeFrame(index) }
        wipeSecrets(endedAt: now)
        return unsafe state.pointee.keptCount + state.pointee.frameCount + state.pointee.secretCount > 0
    }

    private func wipeAll() {
        for index in 0..<Self.keptPlaces { wipe(index) }
        for index in 0..<Self.framePlaces { wipeFrame(index) }
        wipeSecrets(endedAt: .max)
    }

    private func wipe(_ index: Int) {
        guard unsafe kept[index].headLength > 0 else { return }
        unsafe explicit_bzero(memory + index * Self.stride, Self.stride)
        let candidate = unsafe kept[index].candidate
        unsafe kept[index] = Kept()
        unsafe kept[index].candidate = candidate
        unsafe state.pointee.keptCount -= 1
    }

    private func wipeFrame(_ index: Int) {
        guard unsafe frames[index].partStart > 0 else { return }
        unsafe explicit_bzero(frameMemory + index * Self.longestHead, Self.longestHead)
        let candidate = unsafe frames[index].candidate
        unsafe frames[index] = Frame()
        unsafe frames[index].candidate = candidate
        unsafe state.pointee.frameCount -= 1
    }

    private func wipeSecrets(endedAt now: Int64) {
        for group in 0..<Self.secretPlaces / 64 {
            var taken = unsafe takenSecrets[group]
            while taken != 0 {
                let index = group * 64 + taken.trailingZeroBitCount
                taken &= taken - 1
                if unsafe tags[index].end <= now { wipeSecret(index) }
            }
        }
    }

    private func wipeSecret(_ index: Int) {
        guard unsafe tags[index].end != 0 else { return }
        unsafe secrets[index].holder.release()
        unsafe explicit_bzero(secrets + index, MemoryLayout<Secret>.stride)
        unsafe tags[index] = Tag()
        unsafe takenSecrets[index / 64] &= ~(1 << UInt64(index % 64))
        unsafe state.pointee.secretCount -= 1
    }

    private func grow(beyond slot: Int) {
        let count = unsafe max(slot + 1, state.pointee.placeCount * 2)
        let larger = UnsafeMutablePointer<Place>.allocate(capacity: count)
        unsafe larger.initialize(repeating: Place(), count: count)
        unsafe larger.update(from: state.pointee.places, count: state.pointee.placeCount)
        unsafe state.pointee.places.deallocate()
        unsafe state.pointee.places = larger
        unsafe state.pointee.placeCount = count
    }

    // MARK: Turns

    func turnBegan(at time: MonotonicInstant, busySince: MonotonicInstant, readyCount: Int) {
        unsafe state.pointee.areClocksRead = false
        unsafe state.pointee.began = time
        unsafe state.pointee.earliest = time
        unsafe state.pointee.isPressed = time.nanoseconds &- busySince.nanoseconds > overloadTime
        unsafe state.pointee.isQueuing =
            state.pointee.isPressed && (readyCount > WaitingLine.leastCrowd || state.pointee.fast.count > 0)
    }

    /// - Parameter tag: the connection's slot.
    func becameReady(_ readiness: Readiness, tag: Int) {
        let place = unsafe state.pointee.places + tag
        // Whoever owes nothing has nothing to write.
        if readiness.rawValue == Readiness.writable.rawValue, unsafe place.pointee.standing != .closed { return }
        // Whoever is new, or is about to leave, may be one of a crowd.
        let isFast =
            unsafe place.pointee.standing == .open && place.pointee.lastAnswer > 0
            && Self.isForReading(readiness)
        if unsafe isFast && !place.pointee.isWaiting && !state.pointee.isQueuing {
            let outcome = serve(tag, readiness)
            if outcome != .done { goOn(outcome, tag, readiness, isRefused: false) }
        } else {
            wait(tag, readiness, isFast: isFast)
        }
    }

    /// Whether there is something to read, and neither a hang-up nor the peer's end. By numbers: what option sets have for
    /// this is called through tables of witnesses, a fifth of what a request costs.
    @inline(__always)
    private static func isForReading(_ readiness: Readiness) -> Bool {
        readiness.rawValue & ~Readiness.writable.rawValue == Readiness.readable.rawValue
    }

    /// A connection was accepted, whose first request has most often come by now.
    func accepted(_ id: ConnectionID) {
        attend(id.slot, .readable, isRefused: false)
    }

    private func wait(_ slot: Int, _ readiness: Readiness, isFast: Bool) {
        let place = unsafe state.pointee.places + slot
        unsafe place.pointee.readiness = Readiness(rawValue: place.pointee.readiness.rawValue | readiness.rawValue)
        if unsafe place.pointee.isWaiting { return }
        unsafe place.pointee.isWaiting = true
        let entry = unsafe WaitingLine.Entry(slot: slot, since: state.pointee.began)
        if isFast { unsafe state.pointee.fast.append(entry) } else { unsafe state.pointee.slow.append(entry) }
        loop.requestTurn()
    }

    /// Serves those whose turn it is. Many small turns, and not few that are long: whoever becomes ready meanwhile and can
    /// be served at once waits for no longer than one.
    private func serveLines() {
        let fastLimit = unsafe limit(&state.pointee.fast)
        var left = Self.fastInTurn
        while left > 0, let turn = unsafe state.pointee.fast.next(limit: fastLimit) {
            serve(turn)
            left -= 1
        }
        if unsafe state.pointee.slow.count > 0 {
            let slowLimit = unsafe limit(&state.pointee.slow)
            let end = MonotonicInstant.now.advanced(byNanoseconds: Self.slowInTurn)
            while let turn = unsafe state.pointee.slow.next(limit: slowLimit) {
                serve(turn)
                if MonotonicInstant.now >= end { break }
            }
        }
        if unsafe state.pointee.fast.count + state.pointee.slow.count > 0 { loop.requestTurn() }
    }

    /// Who began to wait before is refused. Nobody is for as long as the line has not been too long for the time of an
    /// overload: the process may not have been let run, and all have waited for that.
    private func limit(_ line: inout WaitingLine) -> MonotonicInstant {
        let nobody = MonotonicInstant(nanoseconds: .min)
        let now = unsafe state.pointee.began
        let limit = unsafe state.pointee.isPressed ? now.advanced(byNanoseconds: -turnBudget) : nobody
        guard let since = line.standing(at: now, limit: limit) else { return nobody }
        return now.nanoseconds &- since.nanoseconds > overloadTime ? limit : nobody
    }

    private func serve(_ turn: WaitingLine.Turn) {
        let place = unsafe state.pointee.places + turn.slot
        let readiness = unsafe place.pointee.readiness
        unsafe place.pointee.isWaiting = false
        unsafe place.pointee.readiness = []
        // The entry can be that of an earlier connection.
        let isRefused = unsafe turn.isRefused && place.pointee.began <= turn.since.nanoseconds
        // It is the worker who refuses.
        if isRefused { unsafe place.pointee.standing = .closed }
        attend(turn.slot, readiness, isRefused: isRefused)
        let isAnswered = unsafe place.pointee.lastAnswer == state.pointee.began.nanoseconds
        if isAnswered, unsafe turn.since < state.pointee.earliest { unsafe state.pointee.earliest = turn.since }
    }

    private func attend(_ slot: Int, _ readiness: Readiness, isRefused: Bool) {
        goOn(serve(slot, readiness), slot, readiness, isRefused: isRefused)
    }

    private func goOn(_ outcome: Outcome, _ slot: Int, _ readiness: Readiness, isRefused: Bool) {
        switch outcome {
        case .done: break
        case .portionTaken: wait(slot, .readable, isFast: false)
        case .handOver: worker?.assumeIsolated { $0.becameReady(slot, readiness, isRefused: isRefused) }
        }
    }

    // MARK: Serving

    /// Reads from a connection that became ready, answers what can be answered at once, and sends it.
    @inline(__always)
    private func serve(_ slot: Int, _ readiness: Readiness) -> Outcome {
        let place = unsafe state.pointee.places + slot
        if unsafe place.pointee.standing == .closed { return .handOver }
        // A hang-up or the peer's end is the worker's business, whatever came before it.
        guard Self.isForReading(readiness) else { return .handOver }
        let descriptor = unsafe place.pointee.descriptor
        let received = Kernel.receive(descriptor, input, Self.portion)
        guard received > 0 else {
            // Nothing at all is no reason for anybody to look again; an end or an error is.
            let number = errno
            if received < 0, number == EAGAIN || number == EWOULDBLOCK {
                unsafe place.pointee.standing = .open
                return .done
            }
            return handOver(Remainder())
        }
        readClocks()
        if let outcome = unsafe sendKept(place, received) { return outcome }
        var (answered, closes) = (0, false)
        while true {
            let before = answered
            while answered < received, !closes, output.count < unsentBytes {
                let length = unsafe answer(answered..<received, place, &closes)
                if length == 0 { break }
                answered += length
            }
            var rest = Remainder(
                input: answered..<received,
                // A short read has emptied the socket, and the next byte makes a new edge.
                mayHaveInput: received == Self.portion, closes: closes)
            if answered == before { return handOver(rest) }
            unsafe place.pointee.lastAnswer = state.pointee.began.nanoseconds
            let length = output.count
            let sent = unsafe Kernel.send(descriptor, output.base, length)
            if sent != length {
                rest.note(sent)
                return handOver(rest)
            }
            output.removeAll()
            if answered == received, !closes {
                unsafe place.pointee.standing = rest.mayHaveInput ? .heavy : .open
                return rest.mayHaveInput ? .portionTaken : .done
            }
            if closes { return handOver(rest) }
        }
    }

    /// Answers the only request that came, where it is the connection's last one again, straight from where the answer is
    /// kept. Nil where that is not so.
    @inline(__always)
    private func sendKept(_ place: UnsafeMutablePointer<Place>, _ received: Int) -> Outcome? {
        let index = unsafe Int(place.pointee.kept)
        guard index >= 0 else { return nil }
        let entry = unsafe kept + index
        guard unsafe Int(entry.pointee.headLength) == received, unsafe !entry.pointee.closes,
            unsafe isKept(input.base, received, at: index), unsafe holds(entry), received < Self.portion
        else { return nil }
        let answer = unsafe prepare(entry, index)
        let length = unsafe Int(entry.pointee.answerLength)
        unsafe place.pointee.lastAnswer = state.pointee.began.nanoseconds
        count(Int(unsafe entry.pointee.kind))
        let sent = unsafe Kernel.send(place.pointee.descriptor, answer, length)
        if sent == length {
            unsafe place.pointee.standing = .open
            return .done
        }
        var rest = Remainder(mayHaveInput: false)
        rest.note(sent)
        // What did not leave is queued like any other answer.
        unsafe output.append(answer, length)
        return handOver(rest)
    }

    private func handOver(_ rest: Remainder) -> Outcome {
        remainder = rest
        return .handOver
    }

    /// Reads the clocks, once in a turn.
    @inline(__always)
    private func readClocks() {
        if unsafe state.pointee.areClocksRead { return }
        let (monotonic, milliseconds) = shortcut.clocks()
        unsafe state.pointee.areClocksRead = true
        unsafe state.pointee.monotonic = monotonic.nanoseconds
        unsafe state.pointee.milliseconds = milliseconds
        stamp.update(WallClock.milliseconds / 1000)
    }

    /// Appends the answer to the request that begins there. Returns the request's length; 0 where it is for others.
    @inline(__always)
    private func answer(_ range: Range<Int>, _ place: UnsafeMutablePointer<Place>, _ closes: inout Bool) -> Int {
        let index = unsafe Int(place.pointee.kept)
        if index >= 0 {
            let length = unsafe Int(kept[index].headLength)
            // One that came alone has been compared already: see `sendKept`.
            if length > 0, length <= range.count, range.lowerBound > 0 || length < range.count,
                unsafe isKept(input.base + range.lowerBound, length, at: index), repeatAnswer(index, &closes)
            {
                return length
            }
        }
        if unsafe place.pointee.frame >= 0 {
            let length = unsafe answerInFrame(range, place, &closes)
            if length > 0 { return length }
        }
        return unsafe make(range, place, &closes)
    }

    /// Whether a head is the one that is kept there.
    @inline(__always)
    private func isKept(_ head: UnsafeMutableRawPointer, _ length: Int, at index: Int) -> Bool {
        unsafe Self.equal(head, memory + index &* Self.stride, length)
    }

    /// Whether bytes are the same, in a time that depends on the length only: there are API keys among them.
    @inline(__always)
    private static func equal(
        _ one: UnsafeMutableRawPointer, _ other: UnsafeMutableRawPointer, _ length: Int
    ) -> Bool {
        let (one, other) = (UnsafeRawPointer(one), UnsafeRawPointer(other))
        // Words that overlap, the last bytes' among them: some bytes are compared twice.
        if length >= 16 {
            typealias Word = SIMD2<UInt64>
            @inline(__always)
            func difference(_ offset: Int) -> Word {
                unsafe one.loadUnaligned(fromByteOffset: offset, as: Word.self)
                    ^ other.loadUnaligned(fromByteOffset: offset, as: Word.self)
            }
            var sum = difference(0) | difference(length &- 16)
            if length > 32 {
                sum |= difference(16) | difference(length &- 32)
                var offset = 32
                while offset < length &- 32 {
                    sum |= difference(offset) | difference(offset &+ 16)
                    offset &+= 32
                }
            }
            return sum[0] | sum[1] == 0
        }
        @inline(__always)
        func difference<Word: FixedWidthInteger & BitwiseCopyable>(_ offset: Int, _: Word.Type) -> Word {
            unsafe one.loadUnaligned(fromByteOffset: offset, as: Word.self)
                ^ other.loadUnaligned(fromByteOffset: offset, as: Word.self)
        }
        if length >= 8 { return difference(0, UInt64.self) | difference(length &- 8, UInt64.self) == 0 }
        if length >= 4 { return difference(0, UInt32.self) | difference(length &- 4, UInt32.self) == 0 }
        var sum: UInt8 = 0
        for offset in 0..<length { sum |= difference(offset, UInt8.self) }
        return sum == 0
    }

    /// Appends the answer that is kept there, if it still holds.
    @inline(__always)
    private func repeatAnswer(_ index: Int, _ closes: inout Bool) -> Bool {
        let entry = unsafe kept + index
        guard unsafe holds(entry) else { return false }
        unsafe output.append(prepare(entry, index), Int(entry.pointee.answerLength))
        count(Int(unsafe entry.pointee.kind))
        closes = unsafe entry.pointee.closes
        return true
    }

    @inline(__always)
    private func holds(_ entry: UnsafeMutablePointer<Kept>) -> Bool {
        unsafe entry.pointee.end > state.pointee.monotonic && entry.pointee.generation == generation.current
            && entry.pointee.lastMillisecond >= state.pointee.milliseconds
    }

    /// Gives the kept answer the date and a name of its own.
    @inline(__always)
    private func prepare(_ entry: UnsafeMutablePointer<Kept>, _ index: Int) -> UnsafeMutableRawPointer {
        let answer = unsafe memory + index * Self.stride + Self.longestHead
        if unsafe entry.pointee.second != stamp.second || entry.pointee.secondsLast < state.pointee.milliseconds {
            unsafe refresh(entry, answer)
        }
        unsafe stamp.writeNextSuffix(to: answer + Int(entry.pointee.suffixOffset))
        return unsafe answer
    }

    @inline(__always)
    private func count(_ kind: Int) {
        unsafe state.pointee.counts[kind] &+= 1
        unsafe state.pointee.kinds |= 1 << UInt32(kind)
    }

    /// Brings what changes with the time up to date.
    private func refresh(_ entry: UnsafeMutablePointer<Kept>, _ answer: UnsafeMutableRawPointer) {
        unsafe stamp.writeDate(to: answer + Int(entry.pointee.dateOffset))
        unsafe entry.pointee.second = stamp.second
        guard unsafe entry.pointee.secondsOffset > 0 else { return }
        let end = unsafe entry.pointee.secondsEnd
        let left = unsafe ShortcutAnswer.seconds(until: end, at: state.pointee.milliseconds)
        unsafe entry.pointee.secondsLast = Self.lastMillisecond(of: left, until: end)
        let width = unsafe Int(entry.pointee.secondsWidth)
        let seconds = unsafe answer + Int(entry.pointee.secondsOffset)
        // They are no more digits than they were, and may be fewer.
        unsafe seconds.initializeMemory(as: UInt8.self, repeating: UInt8(ascii: " "), count: width)
        _ = unsafe OutputBuffer.write(decimal: left, before: seconds + width)
    }

    /// The last millisecond at which so many whole seconds are left until `end`.
    private static func lastMillisecond(of seconds: Int64, until end: Int64) -> Int64 {
        seconds == 0 ? .max : end - seconds * 1000
    }

    /// Has the shortcut find the answer by the part and the secret alone, where all the rest is as it was in the connection's
    /// last request.
    private func answerInFrame(
        _ range: Range<Int>, _ place: UnsafeMutablePointer<Place>, _ closes: inout Bool
    ) -> Int {
        let index = unsafe Int(place.pointee.frame)
        let frame = unsafe frames + index
        let (start, behind) = unsafe (Int(frame.pointee.partStart), Self.lengthBehind(frame))
        guard start > 0, range.count > start + behind, unsafe frame.pointee.end > state.pointee.monotonic
        else { return 0 }
        let head = unsafe input.base + range.lowerBound
        let known = unsafe frameMemory + index &* Self.longestHead
        // The part ends where the byte stands that is the first one behind it in the frame.
        let next = unsafe known.load(fromByteOffset: start, as: UInt8.self)
        guard
            let found = unsafe memchr(head + start, CInt(next), range.count - behind - start + 1),
            case let end = unsafe UnsafeRawPointer(found) - UnsafeRawPointer(head), end > start,
            unsafe Self.isFramed(head, end, frame, known)
        else { return 0 }
        var number = -1
        if unsafe frame.pointee.secretLength > 0 {
            number = unsafe secretNumber(
                head + end + Int(frame.pointee.middleLength), Int(frame.pointee.secretLength), place)
            if number < 0 { return 0 }
        }
        let length = end + behind
        let generation = generation.current
        var answer = newAnswer()
        input.withBytes(range.lowerBound + start..<range.lowerBound + end) { part in
            let name = unsafe frame.pointee.number
            if number < 0 { return shortcut.answer(part: part, inFrame: name, of: nil, &answer, output) }
            // Nobody but us lets go of it.
            unsafe secrets[number].holder._withUnsafeGuaranteedRef {
                shortcut.answer(part: part, inFrame: name, of: $0, &answer, output)
            }
        }
        if answer.consumed == 0 { return 0 }
        note(answer, &closes)
        // Kept is what comes again, as in `make`; most that come in a frame do not.
        let mark = unsafe Self.mark(head, start, end, number)
        if unsafe frame.pointee.last == mark {
            unsafe keep(head, length, hashOf(head, length), answer, generation, place)
        } else {
            unsafe frame.pointee.last = mark
        }
        return length
    }

    /// What most parts differ in: their ends, with what stands around them, which a frame's have in common.
    @inline(__always)
    private static func mark(_ head: UnsafeMutableRawPointer, _ start: Int, _ end: Int, _ number: Int) -> UInt64 {
        let first = unsafe head.loadUnaligned(fromByteOffset: start, as: UInt64.self)
        let last = unsafe head.loadUnaligned(fromByteOffset: end &- 8, as: UInt64.self)
        return first &* 0x9e37_79b9_7f4a_7c15 ^ last &+ UInt64(truncatingIfNeeded: end &<< 32 &+ number)
    }

    /// Of all that stands behind the part.
    @inline(__always)
    private static func lengthBehind(_ frame: UnsafeMutablePointer<Frame>) -> Int {
        unsafe Int(frame.pointee.middleLength) + Int(frame.pointee.secretLength) + Int(frame.pointee.restLength)
    }

    /// Whether a request whose part ends there has what a frame has before it, behind it, and behind the secret.
    @inline(__always)
    private static func isFramed(
        _ head: UnsafeMutableRawPointer, _ end: Int, _ frame: UnsafeMutablePointer<Frame>,
        _ known: UnsafeMutableRawPointer
    ) -> Bool {
        let (start, middle) = unsafe (Int(frame.pointee.partStart), Int(frame.pointee.middleLength))
        let (secret, rest) = unsafe (Int(frame.pointee.secretLength), Int(frame.pointee.restLength))
        return unsafe equal(head, known, start) && equal(head + end, known + start, middle)
            && equal(head + end + middle + secret, known + start + middle, rest)
    }

    /// The number of a secret that is known; -1 for any other. First it is compared with the connection's last one.
    @inline(__always)
    private func secretNumber(
        _ secret: UnsafeMutableRawPointer, _ length: Int, _ place: UnsafeMutablePointer<Place>
    ) -> Int {
        let last = unsafe Int(place.pointee.secret)
        if last >= 0, unsafe isKept(secret, length, asNumber: last) { return last }
        let hash = unsafe hashOf(secret, length)
        let first = Self.firstTag(hash)
        for index in first..<first + Self.tagsTogether where unsafe tags[index].hash == hash {
            if unsafe isKept(secret, length, asNumber: index) {
                unsafe place.pointee.secret = Int32(index)
                return index
            }
        }
        return -1
    }

    @inline(__always)
    private func isKept(_ secret: UnsafeMutableRawPointer, _ length: Int, asNumber index: Int) -> Bool {
        let known = unsafe secrets + index
        return unsafe tags[index].end > state.pointee.monotonic && known.pointee.length == length
            && Self.equal(secret, Secret.bytes(known), length)
    }

    @inline(__always)
    private static func firstTag(_ hash: UInt64) -> Int {
        Int(truncatingIfNeeded: hash >> 8) & (Self.secretPlaces - tagsTogether)
    }

    /// Has the request's secret be known by its bytes.
    private func keepSecret(
        _ head: UnsafeMutableRawPointer, _ answer: borrowing ShortcutAnswer, _ place: UnsafeMutablePointer<Place>
    ) {
        let (start, length) = (answer.secret.lowerBound, answer.secret.count)
        guard answer.secretLife > 0, length >= Self.leastCompared, length <= Self.longestSecret,
            let holder = shortcut.lastHolder
        else { return }
        let hash = unsafe hashOf(head + start, length)
        let first = Self.firstTag(hash)
        let places = first..<first + Self.tagsTogether
        // In its own place or one that nobody needs: what is in use stays.
        guard
            let index = places.first(where: { unsafe tags[$0].hash == hash })
                ?? places.first(where: { unsafe tags[$0].end <= state.pointee.monotonic })
        else { return }
        wipeSecret(index)
        unsafe state.pointee.secretCount += 1
        unsafe takenSecrets[index / 64] |= 1 << UInt64(index % 64)
        unsafe (secrets + index).initialize(to: Secret(holder: .passRetained(holder), length: length))
        unsafe Secret.bytes(secrets + index).copyMemory(from: head + start, byteCount: length)
        unsafe tags[index] = Tag(hash: hash, end: state.pointee.monotonic + answer.secretLife)
        unsafe place.pointee.secret = Int32(index)
    }

    @inline(__always)
    private func newAnswer() -> ShortcutAnswer {
        unsafe ShortcutAnswer(
            start: output.count, monotonic: MonotonicInstant(nanoseconds: state.pointee.monotonic),
            milliseconds: state.pointee.milliseconds)
    }

    @inline(__always)
    private func note(_ answer: borrowing ShortcutAnswer, _ closes: inout Bool) {
        precondition(answer.kind >= 0 && answer.kind < ShortcutAnswer.kinds)
        count(answer.kind)
        closes = answer.closes
    }

    /// Has the shortcut find the answer, and keeps it where it says so. Not part of its caller, which has more to do with
    /// what is kept.
    @inline(never)
    private func make(_ range: Range<Int>, _ place: UnsafeMutablePointer<Place>, _ closes: inout Bool) -> Int {
        let head = unsafe input.base + range.lowerBound
        var hash: UInt64?
        // Another connection may have sent the same. Where one head arrives at a time, its length is known beforehand.
        if range.count <= Self.longestHead {
            let guess = unsafe hashOf(head, range.count)
            hash = guess
            let index = Self.index(guess)
            if unsafe kept[index].hash == guess, unsafe Int(kept[index].headLength) == range.count,
                unsafe isKept(head, range.count, at: index), repeatAnswer(index, &closes)
            {
                unsafe place.pointee.kept = Int32(index)
                return range.count
            }
        }
        // Read before the answer is made: what changes meanwhile makes it one that does not hold.
        let generation = generation.current
        var answer = newAnswer()
        input.withBytes(range) { shortcut.answer($0, &answer, output) }
        let length = answer.consumed
        if length == 0 { return 0 }
        precondition(length <= range.count)
        note(answer, &closes)
        if length != range.count { hash = nil }
        unsafe keep(head, length, hash ?? hashOf(head, length), answer, generation, place)
        unsafe keepSecret(head, answer, place)
        unsafe keepFrame(head, length, answer, place)
        return length
    }

    /// Takes the request for a frame of others, and the connection's next one for one of them.
    private func keepFrame(
        _ head: UnsafeMutableRawPointer, _ length: Int, _ answer: borrowing ShortcutAnswer,
        _ place: UnsafeMutablePointer<Place>
    ) {
        let (start, end) = (answer.part.lowerBound, answer.part.upperBound)
        // Without a secret, all that stands behind the part is between it and nothing.
        let secret = answer.secret.isEmpty ? length..<length : answer.secret
        let (middle, rest) = (secret.lowerBound - end, length - secret.upperBound)
        guard answer.frameLife > 0, start < end, min(start, middle) >= Self.leastCompared,
            start + middle + rest <= Self.longestHead
        else { return }
        let hash =
            unsafe hashOf(head, start) ^ hashOf(head + end, middle) &* 0x9e37_79b9_7f4a_7c15
            ^ hashOf(head + secret.upperBound, rest).byteSwapped ^ UInt64(secret.count)
        let index = Int(truncatingIfNeeded: hash >> 8) & (Self.framePlaces - 1)
        let frame = unsafe frames + index
        let known = unsafe frameMemory + index * Self.longestHead
        let isSame =
            unsafe frame.pointee.hash == hash && Int(frame.pointee.partStart) == start
            && Int(frame.pointee.middleLength) == middle && Int(frame.pointee.secretLength) == secret.count
            && Int(frame.pointee.restLength) == rest && Self.isFramed(head, end, frame, known)
        if !isSame {
            // One that is in use stays until another was wanted twice in a row.
            if unsafe frame.pointee.end > state.pointee.monotonic, unsafe frame.pointee.candidate != hash {
                unsafe frame.pointee.candidate = hash
                return
            }
            wipeFrame(index)
            unsafe known.copyMemory(from: head, byteCount: start)
            unsafe (known + start).copyMemory(from: head + end, byteCount: middle)
            unsafe (known + start + middle).copyMemory(from: head + secret.upperBound, byteCount: rest)
            unsafe frame.pointee = Frame(
                partStart: UInt32(start), middleLength: UInt16(middle), secretLength: UInt16(secret.count),
                restLength: UInt16(rest), hash: hash, candidate: hash)
            unsafe state.pointee.frameCount += 1
        }
        unsafe frame.pointee.end = state.pointee.monotonic + answer.frameLife
        unsafe frame.pointee.number = answer.frame
        unsafe place.pointee.frame = Int32(index)
    }

    private func keep(
        _ head: UnsafeMutableRawPointer, _ length: Int, _ hash: UInt64, _ answer: borrowing ShortcutAnswer,
        _ generation: Int, _ place: UnsafeMutablePointer<Place>
    ) {
        guard answer.life > 0, length >= Self.leastCompared, length <= Self.longestHead,
            output.count - answer.start <= Self.longestAnswer
        else { return }
        let index = Self.index(hash)
        let entry = unsafe kept + index
        if unsafe entry.pointee.candidate != hash {
            unsafe entry.pointee.candidate = hash
            return
        }
        if unsafe !state.pointee.isMemoryTaken { takeMemory() }
        // What was kept there may be longer.
        if unsafe entry.pointee.hash != hash { wipe(index) }
        if unsafe entry.pointee.headLength == 0 { unsafe state.pointee.keptCount += 1 }
        let target = unsafe memory + index * Self.stride
        unsafe target.copyMemory(from: head, byteCount: length)
        unsafe (target + Self.longestHead).copyMemory(
            from: output.base + answer.start, byteCount: output.count - answer.start)
        let left = ShortcutAnswer.seconds(until: answer.secondsEnd, at: answer.milliseconds)
        unsafe entry.pointee = Kept(
            end: state.pointee.monotonic + answer.life,
            lastMillisecond: state.pointee.milliseconds + answer.life / 1_000_000, generation: generation,
            second: stamp.second,
            secondsEnd: answer.secondsEnd,
            secondsLast: answer.secondsOffset == 0 ? .max : Self.lastMillisecond(of: left, until: answer.secondsEnd),
            headLength: UInt32(length), answerLength: UInt32(output.count - answer.start),
            dateOffset: UInt16(answer.dateOffset), suffixOffset: UInt16(answer.suffixOffset),
            secondsOffset: UInt16(answer.secondsOffset), secondsWidth: UInt8(answer.secondsWidth),
            kind: UInt8(answer.kind), closes: answer.closes, hash: hash,
            candidate: hash)
        unsafe place.pointee.kept = Int32(index)
    }

    /// Takes the memory of all answers that are kept when the first one is: what came page by page, for as long as requests
    /// come that have not come before, would look like a leak.
    private func takeMemory() {
        unsafe state.pointee.isMemoryTaken = true
        // Linux 5.14 and later; before, it does come page by page.
        _ = unsafe madvise(memory, Self.keptPlaces * Self.stride, MADV_POPULATE_WRITE)
    }

    @inline(__always)
    private func hashOf(_ head: UnsafeMutableRawPointer, _ length: Int) -> UInt64 {
        unsafe ByteRun.hash(head, length, seed: seed)
    }

    private static func index(_ hash: UInt64) -> Int { Int(truncatingIfNeeded: hash >> 8) & (keptPlaces - 1) }

    // MARK: Counting

    func readinessHandled() {
        if unsafe state.pointee.fast.count + state.pointee.slow.count > 0 { serveLines() }
        var kinds = unsafe state.pointee.kinds
        if kinds == 0 { return }
        unsafe state.pointee.kinds = 0
        var total = 0
        while kinds != 0 {
            let kind = kinds.trailingZeroBitCount
            kinds &= kinds - 1
            let count = unsafe state.pointee.counts[kind]
            unsafe state.pointee.counts[kind] = 0
            total += count
            shortcut.answered(count, kind: kind)
        }
        counters.requests.add(total, ordering: .relaxed)
        let took = unsafe MonotonicInstant.now.nanoseconds - state.pointee.earliest.nanoseconds
        shortcut.turnEnded(answers: total, nanoseconds: took)
    }
}
