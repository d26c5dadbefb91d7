internal import Glibc
internal import Reactor

/// The commits whose files are not durable yet, in one file that is: a commit takes place when its frame is there, for
/// the price of one synchronization, however many files it changes.
///
/// The frames stand one behind the other from the file's beginning. A new frame is written over what was there, and the
/// file keeps its size, so that a synchronization has no more to write than the frame. What counts are the frames from
/// the beginning on whose numbers rise by one; what else stands in the file is older, and done with.
///
/// Where all the files of its frames are durable, the file begins again with a frame that has no steps. It fits into one
/// sector of a disk, which is written whole or not at all. Before that, the steps of all its frames can be made again.
///
/// Not Sendable: belongs to one `FileRecords` and its thread. Calls block.
final class CommitLog {
    static let name = "commits"
    /// Octets of frames after which the file begins again. Bounds what a start has to make again, and how long a
    /// commit takes that finds the file full.
    private static let capacity = 256 << 10
    /// Octets by which the file grows.
    private static let growth = 64 << 10

    private let directory: StoreDirectory
    private var lastNumber: Int64 = 0
    /// Where the next frame goes.
    private var end = 0
    /// Octets of the file.
    private var size = 0
    /// Whether the frame at `end`, of which nobody has been told, may be on the disk.
    private var mustErase = false
    /// Whether the frame with which the file begins again may be there for this process only.
    private var mustBegin = false

    init(_ directory: StoreDirectory) {
        self.directory = directory
    }

    /// Makes the file, durable once the store's directory is synchronized.
    func create() throws(SystemError) {
        try directory.remove(Self.name)
        try directory.write(Self.name, CommitFrame.encode([], number: 1))
    }

    /// Whether there is room for a frame of that many octets, or never will be more.
    func hasRoom(for count: Int) -> Bool { isEmpty || end + count <= Self.capacity }

    private var isEmpty: Bool { end <= CommitFrame.encode([], number: lastNumber).count }

    /// The frame by which these changes come into force.
    func frame(of changes: [FileChange]) throws(SystemError) -> [UInt8] {
        let frame = CommitFrame.encode(changes, number: lastNumber + 1)
        guard frame.count <= Int(Int32.max) else { throw SystemError("write", number: EFBIG) }
        return frame
    }

    /// Writes a frame, durably.
    /// - Throws: when the frame is not there. Where even that is not certain, `read` must come before anything else.
    func write(_ frame: [UInt8]) throws(SystemError) {
        let frameEnd = end + frame.count
        var bytes = frame
        if frameEnd > size {
            let grown = (frameEnd + Self.growth - 1) / Self.growth * Self.growth
            bytes += [UInt8](repeating: 0, count: grown - frameEnd)
        }
        mustErase = true
        do throws(SystemError) {
            try directory.overwrite(Self.name, at: end, bytes)
        } catch {
            try? erase()
            throw error
        }
        mustErase = false
        size = max(size, end + bytes.count)
        end = frameEnd
        lastNumber += 1
    }

    /// Whether nobody can say what the file holds, before `read`.
    var isUnsure: Bool { mustErase }

    /// Takes back a frame that could not be synchronized: the kernel may hold for written what never reached the disk, or
    /// hold what it will write yet.
    private func erase() throws(SystemError) {
        try directory.overwrite(Self.name, at: end, [UInt8](repeating: 0, count: MemoryLayout<UInt32>.size))
        mustErase = false
    }

    /// Begins again. To be called when the files of all the frames are durable.
    func begin() throws(SystemError) {
        let frame = CommitFrame.encode([], number: lastNumber + 1)
        mustBegin = true
        try directory.overwrite(Self.name, at: 0, frame)
        mustBegin = false
        lastNumber += 1
        end = frame.count
        if size > Self.capacity {
            try directory.truncate(Self.name, to: Self.capacity)
            size = Self.capacity
        }
    }

    /// The commits that the file holds, in order, and durable from now on. Nil where there is no file.
    func read() throws(ReadingFailure) -> [[FileChange]]? {
        let bytes: [UInt8]?
        do throws(SystemError) {
            if mustErase { try erase() }
            // A process that died may have left it to the kernel.
            try directory.synchronizeFile(Self.name)
            bytes = try directory.read(Self.name, limit: Int(Int32.max))
        } catch {
            throw .system(error)
        }
        guard let bytes else { return nil }
        var commits: [[FileChange]] = []
        var last: Int64?
        var rest = bytes[...]
        do throws(FramedFile.Failure) {
            while true {
                let frame = try CommitFrame(decoding: rest)
                if let last, frame.number != last + 1 { break }
                last = frame.number
                if !frame.changes.isEmpty { commits.append(frame.changes) }
                rest = rest.dropFirst(frame.count)
            }
        } catch {
            if error == .newerFormat { throw .frame(.newerFormat) }
        }
        // A frame is written when the one before it is durable: with a later one behind it, it was damaged.
        guard let last, !CommitFrame.hasFrame(above: last, behind: rest) else { throw .frame(.damaged) }
        lastNumber = last
        end = bytes.count - rest.count
        size = bytes.count
        if mustBegin, commits.isEmpty {
            do throws(SystemError) { try begin() } catch { throw .system(error) }
        }
        return commits
    }

    enum ReadingFailure: Error {
        case system(SystemError)
        case frame(FramedFile.Failure)
    }
}
