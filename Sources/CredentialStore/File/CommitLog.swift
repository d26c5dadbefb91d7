internal import Glibc
internal import Reactor

/// The commits whose files are not durable yet, in one file that is: a commit takes place when its frame is there, for
/// the price of one synchronization, however many files it changes.
///
/// The frames stand one behind the other from the file's beginning. A new frame is written over what was there, and the
/// file keeps its size, so that a synchronization has no more to write than the frame, and that a full disk leaves room
/// for what frees some. What counts are the frames from the beginning on whose numbers rise by one; what else stands in
/// the file is older and done with, or was never finished.
///
/// Where all the files of its frames are durable, the file begins again with a frame that has no steps. It fits into one
/// sector of a disk, which is written whole or not at all. Before that, the steps of all its frames can be made again.
///
/// Not Sendable: belongs to one `FileRecords` and its thread. Calls block.
final class CommitLog {
    static let name = "commits"
    /// Octets of the file, which has more only while a larger frame is in it. Bounds what a start has to make again, and
    /// how long a commit takes that finds the file full.
    private static let capacity = 256 << 10
    /// Octets that a frame may have: far more than a commit ever needs, and a bound on what is read into memory.
    private static let frameLimit = 1 << 30

    /// Octets of the file that are read at most.
    static let countLimit = Int(Int32.max)

    private let directory: StoreDirectory
    private var lastNumber: Int64 = 0
    /// Where the next frame goes.
    private var end = 0
    /// Octets of the file.
    private var size = 0
    /// Whether the frame at `end`, of which nobody has been told, may be on the disk.
    private var mustErase = false

    init(_ directory: StoreDirectory) {
        self.directory = directory
    }

    /// Makes the file, durable once the store's directory is synchronized.
    func create() throws(SystemError) {
        try directory.remove(Self.name)
        try directory.write(Self.name, Self.empty)
    }

    /// The content of the file of a store in which everything is durable.
    static var empty: [UInt8] {
        let frame = CommitFrame.encode([], number: 1)
        return frame + [UInt8](repeating: 0, count: capacity - frame.count)
    }

    /// Whether there is room for a frame of that many octets, or never will be more.
    func hasRoom(for count: Int) -> Bool { isEmpty || end + count <= Self.capacity }

    private var isEmpty: Bool { end <= CommitFrame.encode([], number: lastNumber).count }

    /// The frame by which these changes come into force.
    func frame(of changes: [FileChange]) throws(SystemError) -> [UInt8] {
        let frame = CommitFrame.encode(changes, number: lastNumber + 1)
        guard frame.count <= Self.frameLimit else { throw SystemError("write", number: EFBIG) }
        return frame
    }

    /// Writes a frame, durably.
    /// - Throws: when the frame is not there, or is before anything else will be written or read.
    func write(_ frame: [UInt8]) throws(SystemError) {
        if mustErase { try erase() }
        mustErase = true
        do throws(SystemError) {
            try directory.overwrite(Self.name, at: end, frame)
        } catch {
            // Where that fails, too, it is done later.
            try? erase()
            throw error
        }
        mustErase = false
        end += frame.count
        size = max(size, end)
        lastNumber += 1
    }

    /// Takes back a frame that could not be synchronized: the kernel may hold for written what never reached the disk, or
    /// hold what it will write yet.
    private func erase() throws(SystemError) {
        try directory.overwrite(Self.name, at: end, [UInt8](repeating: 0, count: MemoryLayout<UInt32>.size))
        mustErase = false
    }

    /// Begins again. To be called when the files of all the frames are durable.
    func begin() throws(SystemError) {
        let frame = CommitFrame.encode([], number: lastNumber + 1)
        try directory.overwrite(Self.name, at: 0, frame)
        // What stood at the end is older now.
        mustErase = false
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
            bytes = try directory.read(Self.name, limit: Self.countLimit)
        } catch {
            throw error.isOfTheFile ? .flaw(.otherFile) : .system(error)
        }
        guard let bytes else { return nil }
        let (commits, last, count, flaw) = Self.decode(bytes)
        guard let number = last, flaw == nil else { throw .flaw(flaw ?? .empty) }
        do throws(SystemError) {
            // Who wrote it may have died before it was durable, or have been told that it is not, while the kernel holds
            // it for written: it is written once more.
            try directory.overwrite(Self.name, at: 0, Array(bytes.prefix(count)))
        } catch {
            throw .system(error)
        }
        lastNumber = number
        end = count
        size = bytes.count
        return commits
    }

    /// The commits with which `bytes` begin, the number of the last frame (nil where there is none), the octets of all of
    /// them, and what is wrong behind them.
    static func decode(
        _ bytes: [UInt8]
    ) -> (commits: [[FileChange]], number: Int64?, count: Int, flaw: FileFlaw?) {
        var commits: [[FileChange]] = []
        var last: Int64?
        var rest = bytes[...]
        var flaw: FileFlaw?
        do throws(FramedFile.Failure) {
            while true {
                let frame = try CommitFrame(decoding: rest)
                if let last, frame.number != last + 1 { break }
                last = frame.number
                if !frame.changes.isEmpty { commits.append(frame.changes) }
                rest = rest.dropFirst(frame.count)
            }
        } catch {
            if error == .newerFormat { flaw = .newerFormat }
        }
        if flaw == nil {
            if let last {
                // A frame is written when the one before it is durable: with a later one behind it, it was damaged. And
                // the file is never shorter than it was made.
                if bytes.count < capacity {
                    flaw = .truncated
                } else if CommitFrame.hasFrame(above: last, behind: rest) {
                    flaw = .checksum
                }
            } else {
                flaw = bytes.isEmpty ? .empty : .checksum
            }
        }
        return (commits, last, bytes.count - rest.count, flaw)
    }

    enum ReadingFailure: Error {
        case system(SystemError)
        case flaw(FileFlaw)
    }
}
