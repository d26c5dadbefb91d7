import Glibc
import Reactor

/// The write-ahead log: the commits whose changes are not durable in their files yet. A commit takes place when its
/// frame is durable in this file, at the price of one synchronization, however many files the commit changes.
///
/// The frames follow each other from the beginning of the file. A new frame overwrites what is there, and the file
/// keeps its size, so that a synchronization writes the frame only, and that a commit which frees space works on a full
/// disk. The valid frames are those from the beginning of the file whose numbers rise by one. The rest of the file is
/// old frames, or a frame that was not finished.
///
/// After a checkpoint the file starts again with a frame without changes. That frame fits into one sector of a disk,
/// which is written whole or not at all. Until then a recovery can make the changes of all frames again.
///
/// Not Sendable: belongs to one `FileRecords` and its thread. Calls block.
final class CommitLog {
    static let name = "commits"
    /// The length of the file in octets. The file is longer only while a larger frame is in it. Limits the work of a
    /// recovery and of the checkpoint that a commit makes when the file is full.
    private static let capacity = 256 << 10
    /// The most octets of a frame: far more than a commit needs, and a limit for what is read into memory.
    private static let frameLimit = 1 << 30

    /// The most octets of the file that are read.
    static let countLimit = Int(Int32.max)

    private let files: StoreFiles
    private var lastNumber: Int64 = 0
    /// The offset of the next frame.
    private var end = 0
    /// The length of the file in octets.
    private var size = 0
    /// Whether a frame at `end`, whose commit was reported as failed, may be on the disk.
    private var mustErase = false

    init(_ files: StoreFiles) {
        self.files = files
    }

    /// Creates the file. It is durable when the store's directory is synchronized.
    func create() throws(SystemError) {
        try files.directory.remove(Self.name)
        try files.directory.write(Self.name, Self.empty)
    }

    /// The content of the file after a checkpoint.
    static var empty: [UInt8] {
        let frame = CommitFrame.encode([], number: 1)
        return frame + [UInt8](repeating: 0, count: capacity - frame.count)
    }

    /// Whether a frame of that many octets fits into the file, or a checkpoint would not make more room.
    func hasRoom(for count: Int) -> Bool { isEmpty || end + count <= Self.capacity }

    private var isEmpty: Bool { end <= CommitFrame.encode([], number: lastNumber).count }

    /// The frame that commits these changes.
    func frame(of changes: [FileChange]) throws(SystemError) -> [UInt8] {
        let frame = CommitFrame.encode(changes, number: lastNumber + 1)
        guard frame.count <= Self.frameLimit else { throw SystemError("write", number: EFBIG) }
        return frame
    }

    /// Writes a frame, durably.
    /// - Throws: when the frame is not in the file. If it may be there, it is erased before anything else is written or
    ///   read.
    func write(_ frame: [UInt8]) throws(SystemError) {
        if mustErase { try erase() }
        mustErase = true
        do throws(SystemError) {
            try files.directory.overwrite(Self.name, at: end, with: frame)
        } catch {
            // When erasing fails as well, the next call erases.
            try? erase()
            throw error
        }
        mustErase = false
        end += frame.count
        size = max(size, end)
        lastNumber += 1
    }

    /// Erases a frame that could not be synchronized: the kernel may treat data as written that never reached the disk,
    /// or write it later.
    private func erase() throws(SystemError) {
        try files.directory.overwrite(Self.name, at: end, with: [UInt8](repeating: 0, count: MemoryLayout<UInt32>.size))
        mustErase = false
    }

    /// Starts the file again. To be called when the changes of all frames are durable in their files.
    func restart() throws(SystemError) {
        let frame = CommitFrame.encode([], number: lastNumber + 1)
        try files.directory.overwrite(Self.name, at: 0, with: frame)
        // A frame at the old end has a lower number than the next one now.
        mustErase = false
        lastNumber += 1
        end = frame.count
        if size > Self.capacity {
            try files.directory.truncate(Self.name, to: Self.capacity)
            size = Self.capacity
        }
    }

    /// The commits in the file, in order. They are durable when this returns.
    func read() throws(FileStoreError) -> [[FileChange]] {
        if mustErase { try files.onFile(Self.name) { () throws(SystemError) in try erase() } }
        guard let bytes = try files.read(Self.name, limit: Self.countLimit) else {
            throw files.damage(Self.name, .missing)
        }
        let decoded = Self.decode(bytes)
        if let flaw = decoded.flaw { throw files.damage(Self.name, flaw) }
        guard let number = decoded.number else { throw files.damage(Self.name, .empty) }
        // The process that wrote the frames may have died before they were durable. Or its synchronization has failed,
        // and the kernel treats them as written. So they are written again.
        try files.onDisk { () throws(SystemError) in
            try files.directory.overwrite(Self.name, at: 0, with: Array(bytes.prefix(decoded.count)))
        }
        lastNumber = number
        end = decoded.count
        size = bytes.count
        return decoded.commits
    }

    /// The commits at the beginning of `bytes`, the number of the last frame (nil when there is none), the length of
    /// all frames in octets, and the flaw behind them, if there is one.
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
                // A frame is written only when the one before it is durable. So a later frame behind the valid ones
                // shows that one between them was damaged. And the file never becomes shorter than when it was created.
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
}
